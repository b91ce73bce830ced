"""Newest records of a stream, for the page's tail: a bounded look at a time, nothing is kept."""

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.logd.client import Fetched, OffsetRange, batch_records, slice_rows
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import decode_body

RECORDS_MAX: Final = 200
"""Of one answer, over all partitions."""

BEHIND_MAX: Final = 5_000
"""Records a tail may be behind; then it goes on near the end and says how many it passed over."""

BACK: Final = 50
"""Records before the end with which a tail begins."""

VALUE_CHARACTERS_MAX: Final = 8_192
HEADERS_MAX: Final = 32
HEADER_CHARACTERS_MAX: Final = 512
"""Of a name, and of a value: publishers may send headers as large as whole messages."""

PARTITIONS_MAX: Final = 16
_FETCH_BYTES: Final = 1024 * 1024


class RecordReader(Protocol):
    """What of `AsyncLogClient` is needed to read."""

    async def offsets(self, stream: str, partition: int = 0) -> OffsetRange:
        """What can be read."""
        ...

    async def fetch(
        self, stream: str, offset: int, *, partition: int, bytes_max: int, subject: str | None
    ) -> Fetched:
        """Read from an offset on."""
        ...


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """What to look for.

    Attributes:
        at: Where to go on, by partition; None: near the end.
        subject: A filter; None: any.
        text: Must be in the value, the subject or the key, in any case; empty: any.
    """

    stream: str
    at: Mapping[int, int | None]
    subject: str | None = None
    text: str = ""


async def newest_records(log: RecordReader, wish: RecordQuery) -> dict[str, Any]:
    """Records after where the tail is, at most the newest `RECORDS_MAX`, in the order of time.

    Raises:
        LogdError: As reading does.
    """
    numbers = list(wish.at)[:PARTITIONS_MAX]
    looks = await asyncio.gather(*(_look(log, wish, number) for number in numbers))
    records = sorted(
        (record for look in looks for record in look["records"]),
        key=lambda record: (record["time_ms"], record["partition"], record["offset"]),
    )
    return {
        "records": records[-RECORDS_MAX:],
        "at": {str(number): look["next"] for number, look in zip(numbers, looks, strict=True)},
        "skipped": sum(look["skipped"] for look in looks) + max(0, len(records) - RECORDS_MAX),
        "looked_at": sum(look["looked_at"] for look in looks),
    }


async def _look(log: RecordReader, wish: RecordQuery, partition: int) -> dict[str, Any]:
    readable = await log.offsets(wish.stream, partition)
    wanted = wish.at[partition]
    start = max(readable.start, readable.end - BACK) if wanted is None else wanted
    if start > readable.end or start < readable.start:  # purged, cut off, or made again
        start = max(readable.start, min(start, readable.end - BACK))
    skipped = max(0, readable.end - start - BEHIND_MAX)
    if skipped:
        start, skipped = readable.end - BACK, readable.end - start - BACK
    found: list[dict[str, Any]] = []
    looked_at, next_offset = 0, start
    if start < readable.end:
        try:
            fetched = await log.fetch(
                wish.stream, start, partition=partition, bytes_max=_FETCH_BYTES,
                subject=wish.subject,
            )  # fmt: skip
        except RefusedError as refusal:
            if refusal.code != "OUT_OF_RANGE":
                raise
        else:
            next_offset = fetched.next_offset
            for offset, record in _rows(fetched, start):
                looked_at += 1
                shown = _shown(offset, record, partition)
                if _matches(shown, wish.text):
                    found.append(shown)
    return {"records": found, "next": next_offset, "skipped": skipped, "looked_at": looked_at}


def _rows(fetched: Fetched, start: int) -> Iterator[tuple[int, Any]]:
    for header, body in fetched.frames:
        yield from batch_records(header, slice_rows(header, decode_body(body), start))


def _shown(offset: int, record: Any, partition: int) -> dict[str, Any]:
    value, key = _text(record.value), _text(record.key)
    return {
        "offset": offset,
        "partition": partition,
        "time_ms": record.timestamp_ns // 1_000_000,
        "subject": record.subject,
        "key": None if key is None else key[:VALUE_CHARACTERS_MAX],
        "value": None if value is None else value[:VALUE_CHARACTERS_MAX],
        "cut": 0 if value is None else max(0, len(value) - VALUE_CHARACTERS_MAX),
        "headers": [
            [_cut(name), _cut(_text(held) or "")] for name, held in record.headers[:HEADERS_MAX]
        ],
    }


def _cut(text: str) -> str:
    whole = len(text) <= HEADER_CHARACTERS_MAX
    return text if whole else f"{text[: HEADER_CHARACTERS_MAX - 1]}…"


def _text(value: bytes | None) -> str | None:
    """Text as it is, anything else in base64."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


def _matches(shown: Mapping[str, Any], text: str) -> bool:
    if not text:
        return True
    wanted = text.casefold()
    fields = (shown["value"], shown["subject"], shown["key"], json.dumps(shown["headers"]))
    return any(wanted in field.casefold() for field in fields if field)
