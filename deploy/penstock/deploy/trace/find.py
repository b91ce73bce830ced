"""Finds records in the log: by position, by ids, or by a filter of the caller's.

A search for ids asks logd which ranges may hold them, and a scan reads the frames of these. The
scan looks for the bytes of an id in all values of a frame at once; only records that hold them are
parsed. In each partition it ends at the end that the log had when it came there.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.base.lazy_module import LazyModule
from penstock.deploy.console.records import severity_of
from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError, RefusedError
from penstock.logd.format.batch import decode_body
from penstock.logd.format.frame import NO_PRODUCER, FrameHeader
from penstock.logd.format.rows import slice_rows
from penstock.logd.limits import IDS_PER_REQUEST_MAX
from penstock.service.cli import Position

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

_FETCH_BYTES: Final = 8 * 1024 * 1024

_NEEDLES_MAX: Final = 8
"""Ids whose bytes are looked for one after the other; of more ids every record is parsed."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,;:-]+")
"""Characters that no encoder of JSON escapes."""

_SEVERITY_MAX: Final = 24
"""Severity numbers end there, as OpenTelemetry has them."""

CHECKED_TOGETHER: Final = 100
"""Records that `Search.check` gets at a time, at most."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets of a partition to look at, `start` inclusive, `end` exclusive.

    Attributes:
        problem: Why they cannot be read; empty: they may be.
    """

    stream: str
    partition: int
    start: int
    end: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record as the log has it.

    Attributes:
        timestamp_ns: Unix time that the log has for it: when the collector received it, or its
            publisher's time.
        value: Its bytes; None: a tombstone, or the log has it no more.
        producer: Producer id of its batch in hexadecimal; None: it was published alone.
        sequence: Sequence of its batch.
        missing: Why the log does not have it; empty: it has.
    """

    stream: str
    partition: int
    offset: int
    subject: str = ""
    timestamp_ns: int | None = None
    value: bytes | None = None
    producer: str | None = None
    sequence: int | None = None
    missing: str = ""

    @property
    def position(self) -> str:
        """STREAM/PARTITION/OFFSET."""
        return f"{self.stream}/{self.partition}/{self.offset}"

    def fields(self) -> dict[str, Any]:
        """The record's JSON object; empty where it is none."""
        return fields_of(self.value)


def fields_of(value: bytes | None) -> dict[str, Any]:
    """The JSON object that a value is; empty where it is none."""
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched for.

    Attributes:
        select: Returns which rows of a frame are wanted; it may let others through. A row for which
            it is null is not wanted.
        check: Of records that it let through, returns those that are wanted.
        ids: Ids of which a wanted record has one; empty: logd's index of ids does not help.
    """

    select: Callable[[PartitionRange, FrameHeader, pa.RecordBatch], pa.Array]
    check: Callable[[list[FoundRecord]], list[FoundRecord]]
    ids: tuple[str, ...] = ()


def _never() -> bool:
    return False


@dataclass(slots=True)
class Progress:
    """How far a search is. The search writes it, and others may read it meanwhile.

    Attributes:
        is_to_end: Returns whether the search is to end with what it has found. It is called after
            each frame and each partition, and may raise to end the search without a result.
        partitions: Number of partitions to look at; 0: not known yet.
        done: Number of those that were begun.
        looked_at: Number of records that were looked at.
        found: Number of records that were found.
        parts: Number of jobs and collectors that are being asked; 0: the search is still in the
            log.
    """

    is_to_end: Callable[[], bool] = _never
    partitions: int = 0
    done: int = 0
    looked_at: int = 0
    found: int = 0
    parts: int = 0


@dataclass(slots=True)
class Findings:
    """The result of a search.

    Attributes:
        records: Those that were found, in the order of the search.
        looked_at: Number of records that were looked at.
        is_cut: Whether the search ended at its limit, and there may be more.
        is_ended: Whether it was ended before it had looked at everything.
        problems: Partitions that could not be read, each with the reason.
    """

    records: list[FoundRecord] = field(default_factory=list)
    looked_at: int = 0
    is_cut: bool = False
    is_ended: bool = False
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the log that a search looks at.

    Attributes:
        streams: Names of streams; empty: all of them.
        start: Its begin, in each partition.
        end: Its end.
        after: Stream, partition and offset of the record behind which it goes on; None: everything
            is looked at.
    """

    streams: tuple[str, ...] = ()
    start: Position = "earliest"
    end: Position = "latest"
    after: tuple[str, int, int] | None = None


def at_position(log: LogClient, stream: str, partition: int, offset: int) -> FoundRecord:
    """The record at a position.

    Raises:
        RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`.
        LogdError: logd cannot be asked.
    """
    readable = log.offsets(stream, partition)
    if offset >= readable.end:
        why = f"the log ends before it: the next offset is {readable.end}"
        return FoundRecord(stream, partition, offset, missing=why)
    if offset < readable.start:
        why = f"the log has deleted it: it begins at offset {readable.start}"
        return FoundRecord(stream, partition, offset, missing=why)
    fetched = log.fetch(stream, offset, partition=partition, bytes_max=1)
    for header, body in fetched.frames:
        rows = slice_rows(header, decode_body(body), offset, offset + 1)
        for record in _records(PartitionRange(stream, partition, offset, offset + 1), header, rows):
            return record
    why = "the log has no record at this offset: compaction removed it"
    return FoundRecord(stream, partition, offset, missing=why)


def ranges(log: LogClient, scope: Scope, progress: Progress) -> Iterator[PartitionRange]:
    """Yield the ranges of offsets of a scope, each as it is then, by stream and partition.

    Partitions whose node goes away meanwhile, with no replica that takes its place, are yielded
    with the problem.

    Raises:
        RefusedError: `UNKNOWN_STREAM`.
        LogdError: logd cannot be asked.
    """
    leaders = _leaders(log, scope)
    after = scope.after
    parts = [it for it in sorted(leaders) if after is None or it >= after[:2]]
    progress.partitions = len(parts)
    away = ""
    for name, number in parts:
        progress.done += 1
        if away:  # nobody answers: each question would wait until it times out
            yield PartitionRange(name, number, 0, 0, away)
            continue
        if leaders.get((name, number)) is None:
            yield PartitionRange(name, number, 0, 0, "it has no leader")
            continue
        try:
            yield from _range(log, name, number, scope)
        except RefusedError:
            raise
        except LogdError as error:
            yield PartitionRange(name, number, 0, 0, str(error))
            try:
                leaders = _leaders(log, scope)
            except LogdError as gone:
                away = str(gone)


def _leaders(log: LogClient, scope: Scope) -> dict[tuple[str, int], str | None]:
    """The leader of each partition in a scope; None: it has none, and a question would time out."""
    streams = [log.stream(name) for name in scope.streams] if scope.streams else log.streams()
    return {(it.name, one.partition): one.leader for it in streams for one in it.partitions}


def _range(log: LogClient, name: str, number: int, scope: Scope) -> Iterator[PartitionRange]:
    first, end = log.offsets(name, number)
    after = scope.after
    if after is not None and (name, number) == after[:2]:
        first = max(first, after[2] + 1)
    if first < end:
        start = _resolved(log, name, number, scope.start, (first, end))
        stop = _resolved(log, name, number, scope.end, (first, end))
        yield PartitionRange(name, number, max(first, start), min(end, stop))


def _resolved(
    log: LogClient, stream: str, partition: int, wanted: Position, readable: tuple[int, int]
) -> int:
    if isinstance(wanted, datetime):
        return log.offset_for_timestamp(stream, round(wanted.timestamp() * 1e9), partition)
    if isinstance(wanted, int):
        return wanted
    return readable[0] if wanted == "earliest" else readable[1]


def by_id(trace_ids: Collection[str], record_ids: Collection[str]) -> Search:
    """A search for records that have one of these ids."""
    traces, records = frozenset(trace_ids), frozenset(record_ids)
    known = traces, records
    needles = [it.encode() for it in (*traces, *records)]

    def select(_part: PartitionRange, _header: FrameHeader, rows: pa.RecordBatch) -> pa.Array:
        values = rows.column("value")
        if len(needles) > _NEEDLES_MAX:
            return pa.array([has(fields_of(it)) for it in values.to_pylist()], pa.bool_())
        return reduce(pc.or_kleene, [pc.match_substring(values, it) for it in needles])

    def check(candidates: list[FoundRecord]) -> list[FoundRecord]:
        return [it for it in candidates if has(it.fields())]

    def has(fields: Mapping[str, Any]) -> bool:
        found = fields.get("trace_id"), fields.get("record_id")
        return any(isinstance(it, str) and it in ids for it, ids in zip(found, known, strict=True))

    return Search(select, check, (*trace_ids, *record_ids))


@dataclass(frozen=True, slots=True)
class Terms:
    """What is demanded of a record's service, text and severity; false: nothing.

    Attributes:
        service: The service; empty: any.
        text: Text that the body or the name has, case counts; empty: any.
        severity: Least severity number, a span that failed counts as an error; 0: any record.
    """

    service: str = ""
    text: str = ""
    severity: int = 0

    def __bool__(self) -> bool:
        """Return whether anything is demanded."""
        return bool(self.service or self.text or self.severity)

    def hold_for(self, value: bytes | None) -> bool:
        """Return whether a record's value has it all."""
        fields = fields_of(value)
        return (
            (not self.service or service_of(fields) == self.service)
            and (not self.text or any(self.text in it for it in texts_of(fields)))
            and (not self.severity or severity_of(value) >= self.severity)
        )


def service_of(fields: Mapping[str, Any]) -> str:
    """The service of a record; empty: it says none."""
    resource = fields.get("resource")
    name = resource.get("service.name") if isinstance(resource, dict) else None
    return name if isinstance(name, str) else ""


def texts_of(fields: Mapping[str, Any]) -> list[str]:
    """The body and the name of a record, as far as it has them."""
    return [it for it in (fields.get("body"), fields.get("name")) if isinstance(it, str)]


def by_terms(terms: Terms) -> Search:
    """A search for records of a service, with a text, or of a severity."""

    def select(_part: PartitionRange, _header: FrameHeader, rows: pa.RecordBatch) -> pa.Array:
        values = rows.column("value")
        mask = reduce(pc.and_kleene, _needles(terms, values), pa.array([True] * len(values)))
        kept = pc.fill_null(mask, fill_value=False).to_pylist()
        pairs = zip(kept, values.to_pylist(), strict=True)
        return pa.array([it and terms.hold_for(value) for it, value in pairs], pa.bool_())

    return Search(select, list)


def narrowed(search: Search, terms: Terms) -> Search:
    """A search for those records of another that have the terms, too."""

    def check(candidates: list[FoundRecord]) -> list[FoundRecord]:
        return [it for it in search.check(candidates) if terms.hold_for(it.value)]

    return Search(search.select, check, search.ids)


def _needles(terms: Terms, values: pa.Array) -> Iterator[pa.Array]:
    """Yield which values have the bytes that a record with the terms has in any encoder's JSON."""
    for text in (terms.service, terms.text):
        plain = max(_PLAIN.findall(text), key=len, default="")
        if plain:
            yield pc.match_substring(values, plain.encode())
    if terms.severity:
        numbers = "|".join(map(str, range(terms.severity, _SEVERITY_MAX + 1)))
        yield pc.match_substring_regex(
            values, rf'"severity_number"\s*:\s*({numbers})|"status_code"\s*:\s*"ERROR"'.encode()
        )


def scan(
    log: LogClient,
    parts: Iterable[PartitionRange],
    search: Search,
    *,
    limit: int,
    progress: Progress | None = None,
) -> Findings:
    """Look at the records of some ranges, by logd's index of ids at those that may be wanted.

    Args:
        log: The log.
        parts: The ranges.
        search: What is searched for.
        limit: Maximum records to find.
        progress: Is told how far the search is, and may end it.
    """
    found = Findings()
    progress = Progress() if progress is None else progress
    for part in parts:
        if part.problem:
            found.problems.append(f"{part.stream}/{part.partition}: {part.problem}")
            continue
        try:
            for narrow in _narrowed(log, part, search.ids):
                for candidates in _candidates(log, narrow, search, found, progress):
                    found.records += search.check(candidates)
                    progress.found = len(found.records)
                    if len(found.records) >= limit:
                        found.is_cut = True
                        del found.records[limit:]
                        return found
                if found.is_ended:
                    break
        except LogdError as error:  # what the other partitions have is told all the same
            found.problems.append(f"{part.stream}/{part.partition}: {error}")
        if found.is_ended or progress.is_to_end():
            found.is_ended = True
            return found
    return found


def _narrowed(log: LogClient, part: PartitionRange, ids: Sequence[str]) -> Iterator[PartitionRange]:
    """Yield the parts of a range that may hold records with one of the ids."""
    found = [(part.start, part.end)]
    if 0 < len(ids) <= IDS_PER_REQUEST_MAX:
        try:
            found = log.find_ids(part.stream, ids, part.start, part.end, part.partition)
        except RefusedError as error:
            if error.code != "UNKNOWN_API":  # of an earlier logd, which has no index
                raise
    for first, upto in found:
        yield PartitionRange(part.stream, part.partition, first, upto)


def _candidates(
    log: LogClient, part: PartitionRange, search: Search, found: Findings, progress: Progress
) -> Iterator[list[FoundRecord]]:
    """Yield the rows that a search selects, so many at a time as are checked together.

    Raises:
        LogdError: logd cannot be asked any more. What was selected before was yielded.
    """
    held, problem = list[FoundRecord](), None
    try:
        for header, rows in _frames(log, part):
            found.looked_at += rows.num_rows
            progress.looked_at = found.looked_at
            mask = search.select(part, header, rows)
            if pc.any(mask, min_count=0).as_py():
                held += _records(part, header, rows.filter(mask))
            while len(held) >= CHECKED_TOGETHER:
                yield held[:CHECKED_TOGETHER]
                held = held[CHECKED_TOGETHER:]
            if progress.is_to_end():
                found.is_ended = True
                break
    except LogdError as error:
        problem = error
    if held:
        yield held
    if problem is not None:
        raise problem


def _frames(log: LogClient, part: PartitionRange) -> Iterator[tuple[FrameHeader, pa.RecordBatch]]:
    """Yield the rows of a range by frame."""
    if part.start >= part.end:
        return
    with closing(
        log.batches(
            part.stream, part.start, part.end, partition=part.partition, bytes_max=_FETCH_BYTES
        )
    ) as batches:
        for header, batch in batches:
            yield header, slice_rows(header, batch, part.start, part.end)


def _records(
    part: PartitionRange, header: FrameHeader, rows: pa.RecordBatch
) -> Iterator[FoundRecord]:
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    columns = (rows.column(name).to_pylist() for name in ("offset_delta", "subject", "value"))
    has_producer = header.producer_id != NO_PRODUCER
    for time_ns, delta, subject, value in zip(times, *columns, strict=True):
        yield FoundRecord(
            part.stream,
            part.partition,
            header.base_offset + delta,
            subject,
            time_ns,
            value,
            header.producer_id.hex() if has_producer else None,
            header.producer_sequence if has_producer else None,
        )
