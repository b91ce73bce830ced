"""Inspection of a lake: its partitions, its streams by offset range, gaps, duplicates, damage."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.router.lake.index import LakeIndex
from penstock.router.lake.layout import HIDDEN, LakeFile, Source, Span, source_of
from penstock.router.lake.merge import decode_source, naming_damage
from penstock.router.lake.store import LakeStore

EXAMPLES_MAX: Final = 20
"""Gaps, doubles or files that are named; all are counted."""


@dataclass(slots=True)
class PartitionTotal:
    """Totals of a partition of the lake, or of all of it."""

    files: int = 0
    compacted: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, order=True)
class StreamKey:
    """One generation of a partition of the log, as one sink wrote it."""

    owner: str
    stream: str
    stream_id: str
    partition: int


@dataclass(slots=True)
class StreamTotal:
    """Number of its rows, their lowest and highest offset, and the files that have some."""

    rows: int = 0
    first: int = 0
    last: int = -1
    files: int = 0


@dataclass(slots=True)
class Checked:
    """The rows of one generation of a partition of the log, as `verify` found them.

    Attributes:
        rows: Number of rows, duplicates included.
        first: The lowest offset.
        last: The highest offset.
        gaps: Missing offset ranges in between, both ends included.
        gap_offsets: Number of missing offsets.
        doubles: Offset ranges that are there more than once.
        double_rows: Number of surplus rows.
    """

    rows: int = 0
    first: int = 0
    last: int = -1
    gaps: list[tuple[int, int]] = field(default_factory=list)
    gap_offsets: int = 0
    doubles: list[tuple[int, int]] = field(default_factory=list)
    double_rows: int = 0


@dataclass(slots=True)
class Verified:
    """The result of `verify`.

    Attributes:
        streams: Rows by generation of a partition of the log.
        damaged: Files that cannot be read, each with the reason.
        foreign: Parquet files whose name no sink of Penstock made.
    """

    streams: dict[StreamKey, Checked] = field(default_factory=dict)
    damaged: list[tuple[str, str]] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """True if each row is there once, and all files can be read."""
        return not self.damaged and not any(it.double_rows for it in self.streams.values())


def live_files(store: LakeStore) -> list[LakeFile]:
    """The files that hold each record once."""
    paths = LakeIndex(store).live()
    known = {it.path: it for it in store.files()}
    return [known.get(it) or LakeFile(it, 0, 0) for it in paths]


def files_with(store: LakeStore, directory: str, wanted: Collection[Span]) -> dict[Span, str]:
    """Find the files of a directory that have single records, each a span of one offset.

    Returns:
        Whole names, as readers want them, by record; those that no file has are not there.
    """
    left, found = set(wanted), dict[Span, str]()
    for file in store.files(directory):
        if not left:
            break
        try:
            held = _held(store, file, left)
        except FileNotFoundError:  # it was merged with others in this moment
            continue
        found |= dict.fromkeys(held, store.locate(file.path))
        left -= held
    return found


def _held(store: LakeStore, file: LakeFile, wanted: Collection[Span]) -> set[Span]:
    """The wanted records that a file has."""
    may_have = set(wanted)
    if not file.is_compacted:
        may_have = _within(source_of(file.path, has_owner=store.has_owner), wanted)
    if not may_have:
        return set()
    with naming_damage(store.locate(file.path)), store.open(file.path) as opened:
        if file.is_compacted:
            may_have = _within(decode_source(pq.read_schema(opened).metadata), wanted)
        found = set[Span]()
        for stream, partition in {(it.stream, it.partition) for it in may_have}:
            of_partition = [("stream", "=", stream), ("partition", "=", partition)]
            opened.seek(0)
            offsets = pq.read_table(opened, columns=["offset"], filters=of_partition)
            there = set(offsets.column("offset").to_pylist())
            mine = (it for it in may_have if (it.stream, it.partition) == (stream, partition))
            found |= {it for it in mine if it.first in there}
        return found


def _within(source: Source | None, wanted: Iterable[Span]) -> set[Span]:
    """The wanted records that lie within the spans of a file."""
    if source is None:
        return set()
    spans = defaultdict[tuple[str, str, int], list[Span]](list)
    for it in source.spans:
        spans[it.stream, it.stream_id, it.partition].append(it)
    return {
        record
        for record in wanted
        if any(
            it.first <= record.first <= it.last
            for it in spans.get((record.stream, record.stream_id, record.partition), ())
        )
    }


def partition_of(path: str) -> str:
    """The partition of the lake that a file is of, hidden or not."""
    return path.removeprefix(f"{HIDDEN}/").rpartition("/")[0]


def partitions(store: LakeStore) -> dict[str, PartitionTotal]:
    """Files, rows and bytes of each partition of the lake.

    Raises:
        DamagedDataError: A file is damaged.
    """
    found: dict[str, PartitionTotal] = defaultdict(PartitionTotal)
    for file in live_files(store):
        with _opened(store, file.path) as parquet:
            total = found[partition_of(file.path)]
            total.files += 1
            total.compacted += file.is_compacted or file.path.startswith(HIDDEN)
            total.rows += parquet.metadata.num_rows
            total.bytes += file.size
    return dict(sorted(found.items()))


def streams(store: LakeStore) -> dict[StreamKey, StreamTotal]:
    """Rows and offset ranges by generation of a partition of the log.

    Raises:
        DamagedDataError: A file is damaged.
    """
    found: dict[StreamKey, StreamTotal] = {}
    for file in live_files(store):
        with _opened(store, file.path) as parquet:
            source = _source_of(store, file.path, parquet)
            if source is None:
                continue
            for key, offsets in _offsets(parquet, source):
                total = found.setdefault(key, StreamTotal(first=2**63))
                ends = pc.min_max(offsets).as_py()
                total.rows += len(offsets)
                total.first = min(total.first, ends["min"])
                total.last = max(total.last, ends["max"])
                total.files += 1
    return dict(sorted(found.items()))


def verify(store: LakeStore) -> Verified:
    """Read the position of every row, and see which are missing or there twice.

    A gap is no fault by itself: routes and transforms leave records out.
    """
    result = Verified()
    ranges: dict[StreamKey, list[tuple[int, int]]] = defaultdict(list)
    for path in LakeIndex(store).live():
        try:
            with store.open(path) as opened, pq.ParquetFile(opened) as parquet:
                source = _source_of(store, path, parquet)
                if source is None:
                    result.foreign.append(path)
                    continue
                for key, offsets in _offsets(parquet, source):
                    ranges[key] += _ranges(offsets)
        except (pa.ArrowException, OSError, KeyError) as error:
            result.damaged.append((path, str(error).partition("\n")[0]))
    result.streams = {key: _checked(found) for key, found in sorted(ranges.items())}
    return result


@contextmanager
def _opened(store: LakeStore, path: str) -> Iterator[pq.ParquetFile]:
    """Open a file within the block, in which only it is read.

    Raises:
        DamagedDataError: It is damaged.
    """
    with naming_damage(store.locate(path)), store.open(path) as opened:
        yield pq.ParquetFile(opened)


def _source_of(store: LakeStore, path: str, parquet: pq.ParquetFile) -> Source | None:
    merged = decode_source(parquet.schema_arrow.metadata)
    return merged or source_of(path, has_owner=store.has_owner)


def _offsets(parquet: pq.ParquetFile, source: Source) -> Iterator[tuple[StreamKey, pa.Array]]:
    """The offsets of a file by whose they are, sorted."""
    ids = {it.stream: it.stream_id for it in source.spans}
    rows = parquet.read(["stream", "partition", "offset"])
    grouped = rows.group_by(["stream", "partition"]).aggregate([("offset", "list")])
    for it in range(grouped.num_rows):
        stream = grouped["stream"][it].as_py()
        key = StreamKey(source.owner, stream, ids.get(stream, ""), grouped["partition"][it].as_py())
        offsets = grouped["offset_list"][it].values
        yield key, offsets.take(pc.sort_indices(offsets))


def _ranges(offsets: pa.Array) -> list[tuple[int, int]]:
    """Sorted offsets as ranges, both ends included; of one that is there twice there are two."""
    steps = pc.pairwise_diff(offsets)
    breaks = pc.indices_nonzero(pc.fill_null(pc.not_equal(steps, 1), fill_value=True)).to_pylist()
    ends = [*(it - 1 for it in breaks[1:]), len(offsets) - 1]
    firsts, lasts = offsets.take(pa.array(breaks)), offsets.take(pa.array(ends))
    return list(zip(firsts.to_pylist(), lasts.to_pylist(), strict=True))


def _checked(ranges: Iterable[tuple[int, int]]) -> Checked:
    found = Checked()
    for first, last in sorted(ranges):
        found.rows += last - first + 1
        if found.last < 0:
            found.first, found.last = first, last
            continue
        if first > found.last + 1:
            found.gap_offsets += first - found.last - 1
            _note(found.gaps, (found.last + 1, first - 1))
        elif first <= found.last:
            end = min(last, found.last)
            found.double_rows += end - first + 1
            _note(found.doubles, (first, end))
        found.last = max(found.last, last)
    return found


def _note(examples: list[tuple[int, int]], found: tuple[int, int]) -> None:
    if len(examples) < EXAMPLES_MAX:
        examples.append(found)
