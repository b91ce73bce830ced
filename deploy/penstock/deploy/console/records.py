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
"""The records of one answer, over all partitions."""

BEHIND_MAX: Final = 5_000
"""Records a tail may be behind; then it goes on near the end and says how many it skipped."""

BACK: Final = 100
"""Records before the end with which a tail begins, and those of one page that looks back."""

BACK_FILTERED: Final = 2_000
"""Records before the end among which a tail with a filter begins to look."""

VALUE_CHARACTERS_MAX: Final = 8_192
WHOLE_CHARACTERS_MAX: Final = 1024 * 1024
"""Bytes of a value that are shown: in a list, and of a single record."""

HEADERS_MAX: Final = 32
HEADER_CHARACTERS_MAX: Final = 512
"""Bytes of a header's name and value that are shown: headers may be as large as messages."""

PARTITIONS_MAX: Final = 16
_FETCH_BYTES: Final = 1024 * 1024
_FETCHES_MAX: Final = 4
"""Fetches in each partition for one page that looks back."""

_ERROR: Final = 17
"""The least severity number of an error, as OpenTelemetry has them."""


class RecordReader(Protocol):
    """The part of `AsyncLogClient` that reads records."""

    async def offsets(self, stream: str, partition: int = 0) -> OffsetRange:
        """Return the range of offsets that can be read."""
        ...

    async def offset_for_timestamp(self, stream: str, timestamp_ns: int, partition: int = 0) -> int:
        """The first offset that is not older."""
        ...

    async def fetch(
        self, stream: str, offset: int, *, partition: int, bytes_max: int, subject: str | None
    ) -> Fetched:
        """Read from an offset on."""
        ...


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """A query for records.

    Attributes:
        at: Offsets to go on at, by partition; None: near the end, or at `since_ms`.
        subject: A filter; None: any.
        text: Must be in the value, the subject or the key, in any case; empty: any.
        severity: The least severity number, as OpenTelemetry has them; 0: any record, also one
            that has none. A span that failed counts as an error.
        back: Look back: show what comes after `at` or `since_ms` page by page, and pass over none.
        since_ms: Unix time in milliseconds to begin at then.
        whole: Show the record at `at` alone, with all of its value.
    """

    stream: str
    at: Mapping[int, int | None]
    subject: str | None = None
    text: str = ""
    severity: int = 0
    back: bool = False
    since_ms: int | None = None
    whole: bool = False

    @property
    def is_filtered(self) -> bool:
        return bool(self.subject or self.text or self.severity)


async def newest_records(log: RecordReader, query: RecordQuery) -> dict[str, Any]:
    """Records after where the tail is, at most the newest `RECORDS_MAX`, in the order of time.

    A tail that begins has the newest `BACK`. One that looks back has the oldest `BACK` of each
    partition.

    Raises:
        LogdError: As reading does.
    """
    numbers = list(query.at)[:PARTITIONS_MAX]
    look = _look_back if query.back or query.whole else _look
    looks = await asyncio.gather(*(look(log, query, number) for number in numbers))
    records = sorted(
        (record for look in looks for record in look["records"]),
        key=lambda record: (record["time_ms"], record["partition"], record["offset"]),
    )
    begins = all(offset is None for offset in query.at.values())
    most = len(records) if query.back else BACK if begins else RECORDS_MAX
    cut = 0 if begins else max(0, len(records) - most)
    return {
        "records": records[-most:] if most else [],
        "at": {str(number): look["next"] for number, look in zip(numbers, looks, strict=True)},
        "skipped": sum(look["skipped"] for look in looks) + cut,
        "looked_at": sum(look["looked_at"] for look in looks),
        "is_end": all(look["is_end"] for look in looks),
    }


async def _look(log: RecordReader, query: RecordQuery, partition: int) -> dict[str, Any]:
    readable = await log.offsets(query.stream, partition)
    wanted, back = query.at[partition], BACK_FILTERED if query.is_filtered else BACK
    start = max(readable.start, readable.end - back) if wanted is None else wanted
    if start > readable.end or start < readable.start:  # purged, cut off, or made again
        start = max(readable.start, min(start, readable.end - back))
    skipped = max(0, readable.end - start - BEHIND_MAX)
    if skipped:
        start, skipped = readable.end - BACK, readable.end - start - BACK
    found, next_offset, looked_at = await _fetch(log, query, partition, start, readable.end)
    is_end = next_offset >= readable.end
    return {"records": found, "next": next_offset, "skipped": skipped, "looked_at": looked_at,
            "is_end": is_end}  # fmt: skip


async def _look_back(log: RecordReader, query: RecordQuery, partition: int) -> dict[str, Any]:
    readable = await log.offsets(query.stream, partition)
    start = query.at[partition]
    if start is None and query.since_ms is not None:
        start = await log.offset_for_timestamp(query.stream, query.since_ms * 1_000_000, partition)
    start = max(readable.start, readable.start if start is None else start)
    found: list[dict[str, Any]] = []
    most = 1 if query.whole else BACK
    looked_at = 0
    for _ in range(_FETCHES_MAX):
        if start >= readable.end or len(found) >= most:
            break
        more, start, looked = await _fetch(log, query, partition, start, readable.end)
        found += more
        looked_at += looked
    if len(found) > most:
        found, start = found[:most], found[most]["offset"]
    return {"records": found, "next": start, "skipped": 0, "looked_at": looked_at,
            "is_end": start >= readable.end}  # fmt: skip


async def _fetch(
    log: RecordReader, query: RecordQuery, partition: int, start: int, end: int
) -> tuple[list[dict[str, Any]], int, int]:
    """Records that match from an offset on, the offset to go on at, and how many were looked at."""
    if start >= end:
        return [], start, 0
    try:
        fetched = await log.fetch(
            query.stream, start, partition=partition, bytes_max=_FETCH_BYTES, subject=query.subject
        )
    except RefusedError as refusal:
        if refusal.code != "OUT_OF_RANGE":
            raise
        return [], start, 0
    found, looked_at = [], 0
    for offset, record in _rows(fetched, start):
        looked_at += 1
        most = WHOLE_CHARACTERS_MAX if query.whole else VALUE_CHARACTERS_MAX
        if _matches(record, query):
            shown = _shown(offset, record, partition, most)
            if not query.text or _contains(shown, _text(record.value), query.text.casefold()):
                found.append(shown)
        if query.whole:
            break
    return found, fetched.next_offset, looked_at


async def newest_values(
    log: RecordReader, stream: str, partition: int, start: int, most: int
) -> list[bytes | None]:
    """Values of records from an offset on, at most the newest `most` of one fetch.

    Raises:
        LogdError: As reading does.
    """
    try:
        fetched = await log.fetch(
            stream, start, partition=partition, bytes_max=_FETCH_BYTES, subject=None
        )
    except RefusedError as refusal:
        if refusal.code != "OUT_OF_RANGE":
            raise
        return []
    return [record.value for _, record in _rows(fetched, start)][-most:]


def _rows(fetched: Fetched, start: int) -> Iterator[tuple[int, Any]]:
    for header, body in fetched.frames:
        yield from batch_records(header, slice_rows(header, decode_body(body), start))


def _shown(offset: int, record: Any, partition: int, most: int) -> dict[str, Any]:
    value, key = _text(record.value), _text(record.key)
    return {
        "offset": offset,
        "partition": partition,
        "time_ms": record.timestamp_ns // 1_000_000,
        "subject": record.subject,
        "key": None if key is None else key[:VALUE_CHARACTERS_MAX],
        "value": None if value is None else value[:most],
        "cut": 0 if value is None else max(0, len(value) - most),
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


def _matches(record: Any, query: RecordQuery) -> bool:
    return not query.severity or severity_of(record.value) >= query.severity


def severity_of(value: bytes | None) -> int:
    """The severity number of a record; of a span that failed that of an error; 0: it has none."""
    try:
        document = json.loads(value or b"")
    except (ValueError, RecursionError):
        return 0
    if not isinstance(document, dict):
        return 0
    number = document.get("severity_number")
    if isinstance(number, int):
        return number
    return _ERROR if document.get("status_code") == "ERROR" else 0


def _contains(shown: Mapping[str, Any], value: str | None, wanted: str) -> bool:
    fields = (value, shown["subject"], shown["key"], json.dumps(shown["headers"]))
    return any(wanted in field.casefold() for field in fields if field)
