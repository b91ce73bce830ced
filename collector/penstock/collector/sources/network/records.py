"""Requests taken apart into records before they are answered.

The records of a request take many times its bytes, so a source takes only some requests apart at
once; of the others only the bytes lie here, and are within the source's share.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.collector.limits import UNIT_DECOMPRESSED_BYTES_MAX
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.rejection_reasons import meaning
from penstock.collector.spool.writer import Payload, SpoolWriter
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

if TYPE_CHECKING:
    from penstock.collector.decode.otlp.logs import Made

_MAPPED_AT_ONCE: Final = 2
"""Requests taken apart at once: one may wait for its turn while the other has it."""
_TURN_RECORDS: Final = 200
"""Records mapped before other tasks get a turn; a few milliseconds of work."""


@dataclass(slots=True)
class RequestRecords:
    """A request's records, one a line.

    Attributes:
        verdicts: The validator's on the lines; None where it refuses one.
        unread: Lines, by index, that stand for what could not be made a record, with the reason.
        rejected: Why a record goes to quarantine, by its index.
    """

    lines: list[bytes] = field(default_factory=list)
    verdicts: list[Accepted | None] = field(default_factory=list)
    unread: list[tuple[int, str]] = field(default_factory=list)
    rejected: dict[int, str] = field(default_factory=dict)
    size: int = 0

    def add(self, found: list["Made"]) -> None:
        """Take lines, with the validator's verdicts where they are known, and what is none."""
        for made, known in found:
            line = made if isinstance(made, bytes) else made.encode()
            self.size += len(line)
            self.lines.append(line)
            self.verdicts.append(known or self._validate(made))

    def exceeds(self, max_records: int) -> bool:
        """Return whether they are more than one unit of the spool may hold."""
        return self.size > UNIT_DECOMPRESSED_BYTES_MAX or len(self.lines) > max_records

    def payload(self) -> Payload:
        """The records as one unit of the spool; their lines are let go."""
        meta = {"refused": self.unread} if self.unread else {}
        data, count = b"\n".join(self.lines), len(self.lines)
        self.lines.clear()
        return Payload("ndjson", data, count, meta, self.verdicts)

    def _validate(self, made: bytes | str) -> Accepted | None:
        """The verdict on the line that was taken last; None: it is refused, or is none."""
        index = len(self.lines) - 1
        if isinstance(made, str):
            reason = "not_otlp"
            self.unread.append((index, reason))
        else:
            verdict = check_line(made)
            if isinstance(verdict, Accepted):
                return verdict
            code = f"{verdict.reason}: {verdict.detail}".removesuffix(": ")
            reason = meaning(code) or code
        self.rejected[index] = reason
        return None


class RequestMapper:
    """Takes the requests of one source apart, a few at once."""

    def __init__(self, spool_writer: SpoolWriter) -> None:
        self._limits = spool_writer.limits
        self._mapping = asyncio.Semaphore(_MAPPED_AT_ONCE)

    async def map(
        self, lines: Iterator[list["Made"]], charge: Charge, until_s: float
    ) -> RequestRecords | None:
        """A request's records, which `charge` then holds; None when there was no room in time.

        A resource that many small records share stands in each of their lines, so these may take
        many times what was read. What they take is held, if need be beyond the bounds, and then no
        further request is taken apart until enough of it is durable.

        Args:
            lines: Makes the records; it is stopped once they exceed the bounds of one unit.
            charge: Charge of the request's bytes.
            until_s: Time until which it waits for its turn, by the event loop's clock.
        """
        now_s = asyncio.get_running_loop().time
        while await charge.share.settled(max(0.0, until_s - now_s())):
            if not await self._gets_turn(until_s):
                return None
            try:
                if charge.share.is_within:
                    records = await self._map(lines)
                    charge.grow(records.size)
                    return records
            finally:
                self._mapping.release()
        return None

    async def _gets_turn(self, until_s: float) -> bool:
        """Take one of the few turns; false after the time."""
        try:
            async with asyncio.timeout_at(until_s):
                await self._mapping.acquire()
        except TimeoutError:
            return False
        return True

    async def _map(self, lines: Iterator[list["Made"]]) -> RequestRecords:
        records, turn = RequestRecords(), _TURN_RECORDS
        for found in lines:
            records.add(found)
            if len(records.lines) >= turn:
                turn += _TURN_RECORDS
                await asyncio.sleep(0)
            if records.exceeds(self._limits.max_request_records):
                return records
        return records
