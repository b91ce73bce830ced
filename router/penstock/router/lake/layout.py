"""Layout of a lake of Parquet files: partitions, streams and offsets in paths.

    kind=log/date=2026-11-21/hour=08/logs.5f2c19aa-0-00000000000000000000-00000000000000000339.parquet
    kind=log/date=2026-11-21/hour=08/compacted-9c1f…e2.parquet

A file of the sink `s3` has JOB.SINK. before the stream's name, its *owner*. A file that compaction
has made says in its Parquet metadata, under `penstock.spans`, which records it has:

    {"owner": "", "spans": [["logs", "5f2c19aa", 0, 0, 339], …]}     stream, id, partition, offsets
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name for null."""

PartitionColumn = Literal["kind", "date", "hour", "service"]
PartitionTime = Literal["event", "log"]

PARTITIONED_BY: Final[tuple[PartitionColumn, ...]] = ("kind", "date", "hour")
"""The layout of a new lake."""

FORMER_PARTITIONED_BY: Final[tuple[PartitionColumn, ...]] = ("kind", "service", "date")
"""Partitioning of lakes made by versions without `partition_by`."""

INDEX: Final = "_index"
"""The directory of plans and of the list of live files."""

HIDDEN: Final = "_compaction"
"""The directory of merged files that are not shown yet; tools for lakes pass over such names."""

COMPACTED: Final = "compacted-"
SPANS_KEY: Final = b"penstock.spans"

_NAME: Final = re.compile(
    r"(?P<stream>.+)\.(?P<id>[^./]{8}|0)(?P<generation>\.\d+)?-(?P<partition>\d+)"
    r"-(?P<first>\d{20})-(?P<last>\d{20})(\.[0-9a-f]+)?\.parquet"
)
_COMPACTED_NAME: Final = re.compile(rf"{COMPACTED}[0-9a-f]{{32}}\.parquet")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Records of one generation of a partition of the log, from one offset to another, inclusive.

    Not every offset between them need be there.
    """

    stream: str
    stream_id: str
    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Source:
    """The records that a file holds.

    Attributes:
        owner: JOB.SINK of the sink `s3`, else empty.
        spans: Their offset ranges; a file of a sink has one.
    """

    owner: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file that is there.

    Attributes:
        path: Relative to the lake.
        size: In bytes.
        modified_ns: Unix time of the last write, by the storage.
    """

    path: str
    size: int
    modified_ns: int

    @property
    def directory(self) -> str:
        """Path of the file's partition."""
        return self.path.rpartition("/")[0]

    @property
    def is_compacted(self) -> bool:
        return is_compacted(self.path)


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The directory of each row.

    Attributes:
        by: The columns that directories are named by, from the outermost on.
        time: The source of `date` and `hour`: the record's time, or when the log received it.
    """

    by: tuple[PartitionColumn, ...] = PARTITIONED_BY
    time: PartitionTime = "event"

    @property
    def time_column(self) -> str:
        return "time" if self.time == "event" else "timestamp"

    @property
    def left_out(self) -> list[str]:
        """Columns of rows that their directory tells, and their file has not."""
        return [name for name in self.by if name in ("kind", "service")]


def is_compacted(path: str) -> bool:
    """Return whether the file's name is one that compaction gives."""
    return _COMPACTED_NAME.fullmatch(path.rpartition("/")[2]) is not None


def source_of(path: str, *, has_owner: bool) -> Source | None:
    """Return the records of a sink's file by its name; None: no sink made it.

    `has_owner`: names begin with JOB.SINK, as those of the sink `s3` do.
    """
    found = _NAME.fullmatch(path.rpartition("/")[2])
    if found is None:
        return None
    owner, stream = "", found["stream"]
    if has_owner:
        job, _, rest = stream.partition(".")
        sink, _, stream = rest.partition(".")
        owner = f"{job}.{sink}"
        if not stream:
            return None
    stream_id = found["id"] + (found["generation"] or "")
    offsets = int(found["first"]), int(found["last"])
    return Source(owner, (Span(stream, stream_id, int(found["partition"]), *offsets),))


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the same records in as few spans as possible, sorted."""
    found: list[Span] = []
    for span in sorted(spans):
        last = found[-1] if found else None
        if last is not None and _place(last) == _place(span) and span.first <= last.last + 1:
            end = max(last.last, span.last)
            found[-1] = Span(last.stream, last.stream_id, last.partition, last.first, end)
        else:
            found.append(span)
    return tuple(found)


def _place(span: Span) -> tuple[str, str, int]:
    return span.stream, span.stream_id, span.partition


def values_of(directory: str) -> dict[str, str]:
    """Hive's partition columns of a directory, as its path has them."""
    return dict(part.split("=", 1) for part in directory.split("/") if "=" in part)


def end_of(directory: str) -> datetime | None:
    """Return the end of a partition's hour or day; None: its path has no date."""
    values = values_of(directory)
    try:
        day = datetime.strptime(values["date"], "%Y-%m-%d").replace(tzinfo=UTC)
        if "hour" not in values:
            return day + timedelta(days=1)
        return day + timedelta(hours=int(values["hour"]) + 1)
    except (KeyError, ValueError, OverflowError):
        return None
