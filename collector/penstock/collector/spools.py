"""The two spools of a collector: one for audit and event records, one for everything else.

Each has its own room, senders' sequences and cursor, so that a flood of debug logs can neither
fill the room of audit records nor stand before them. A batch that holds both is taken apart; its
sender hears of it when both parts are durable, and a part that was taken before is a repeat when
the whole comes again.
"""

import asyncio
import dataclasses
from dataclasses import dataclass
from typing import Protocol

import orjson

from penstock.collector.core.inflate import unzstd
from penstock.collector.core.kinds import KINDS, URGENT, Kind, Sorted, sort_lines
from penstock.collector.core.unix_framing import BATCH_VERSION, decode_batch_header
from penstock.collector.errors import (
    RemoteProtocolError,
    SpoolFailedError,
    UndecodableError,
)
from penstock.collector.limits import UNIT_DECOMPRESSED_BYTES_MAX, UNIX_FRAME_BYTES_MAX
from penstock.collector.spool import Spool, Unit


class Spooling(Protocol):
    """What sources put units into; see `Spool.put`."""

    async def put(
        self, unit: Unit, *, era: int | None = None, wait: bool = True
    ) -> asyncio.Future[int] | None:
        """Take a unit."""
        ...

    @property
    def era(self) -> int:
        """Changes whenever something that was taken could not be made durable."""
        ...


@dataclass(frozen=True, slots=True)
class _Lack:
    spool: Spool
    size: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Spools:
    """Puts each record where its kind belongs."""

    bulk: Spool
    urgent: Spool

    @property
    def both(self) -> tuple[Spool, Spool]:
        """The urgent one first."""
        return self.urgent, self.bulk

    @property
    def era(self) -> int:
        """Of both."""
        return self.bulk.era + self.urgent.era

    async def put(
        self, unit: Unit, *, era: int | None = None, wait: bool = True
    ) -> asyncio.Future[int] | None:
        """Take a unit, in two parts if it must be; raises and returns what `Spool.put` does.

        What was taken of a unit whose other part failed is a repeat when it comes again from the
        same sender; who has no name may then send it twice.
        """
        while True:
            parts = take_apart(unit)
            full = self._full(parts)
            if full is None:
                break
            del parts  # what a batch expands to is not held while it waits
            await full.spool.find_room(full.size, full.kind, wait=wait)
        if era is not None and era != self.era:
            raise SpoolFailedError("the spool failed and was opened again")
        futures = [await self._of(part).put(part, wait=False) for part in parts]
        if len(parts) == 1:
            return futures[0]
        return _all_of([future for future in futures if future is not None])

    def _full(self, parts: list[Unit]) -> "_Lack | None":
        """Where there is no room for a part."""
        lacks = (_Lack(self._of(part), part.size, part.kind) for part in parts)
        return next((one for one in lacks if not one.spool.journal.has_room(one.size)), None)

    def _of(self, unit: Unit) -> Spool:
        return self.urgent if unit.kind in URGENT else self.bulk


def take_apart(unit: Unit) -> list[Unit]:
    """A unit by its records' urgency, with their kind; the urgent part first.

    One that would expand too far when it is taken apart stays whole, as urgent as its records are.
    """
    if unit.format == "ndjson":
        return _by_line(unit)
    if unit.format != "unix":
        return [unit]
    try:
        header = decode_batch_header(unit.payload)
        body = unit.payload[header.body_at :]
        if header.codec == "zstd":
            body = unzstd(body, UNIT_DECOMPRESSED_BYTES_MAX)
    except (RemoteProtocolError, UndecodableError):
        return [unit]  # decoding says what is wrong
    head = {
        "batch": BATCH_VERSION,
        "sender": header.sender,
        "seq": header.sequence,
        "count": header.count,
        "resource": dict(header.resource),
    }
    found = sort_lines(body)
    if found.rest and found.urgent and len(body) > UNIX_FRAME_BYTES_MAX:  # parts are not compressed
        return [dataclasses.replace(unit, kind=found.urgent_kind)]
    return _parts(unit, orjson.dumps(head) + b"\n", found)


def _by_line(unit: Unit) -> list[Unit]:
    kinds = [KINDS[one.kind] for one in unit.verdicts if one is not None]
    if kinds and len(kinds) == len(unit.verdicts) and URGENT.isdisjoint(kinds):
        return [dataclasses.replace(unit, kind=kinds[0])]  # the gate has told, of each
    found = sort_lines(unit.payload)
    if found.rest and found.urgent and "refused" in unit.meta:  # it counts lines
        return [dataclasses.replace(unit, kind=found.urgent_kind)]
    return _parts(unit, b"", found)


def _parts(unit: Unit, head: bytes, found: Sorted) -> list[Unit]:
    if not found.urgent:
        return [dataclasses.replace(unit, kind=found.kind)]
    if not found.rest:
        return [dataclasses.replace(unit, kind=found.urgent_kind)]
    return [
        dataclasses.replace(
            unit, payload=head + b"\n".join(lines), count=len(lines), kind=kind, verdicts=()
        )
        for lines, kind in ((found.urgent, found.urgent_kind), (found.rest, found.kind))
    ]


def _all_of(futures: list[asyncio.Future[int]]) -> asyncio.Future[int] | None:
    """Done when all are, not before: until then they hold what they were given.

    Fails when one of them did. None: there are none.
    """
    if not futures:
        return None
    whole: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = len(futures)

    def settle(_: asyncio.Future[int]) -> None:
        nonlocal waiting
        waiting -= 1
        if waiting or whole.done():
            return
        errors = [one.exception() for one in futures if not one.cancelled()]
        failed = next((error for error in errors if error is not None), None)
        if failed is not None:
            whole.set_exception(failed)
        elif len(errors) < len(futures):
            whole.cancel()
        else:
            whole.set_result(futures[-1].result())

    for future in futures:
        future.add_done_callback(settle)
    return whole
