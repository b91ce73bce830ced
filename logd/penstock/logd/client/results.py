"""Results that the client makes of several answers, or of an answer and the bytes that follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from penstock.logd.api.models import HeldRange, PartitionInfo, StreamInfo, StreamList

if TYPE_CHECKING:  # who reads no record does without Arrow
    from penstock.logd.format.record_checksums import RecordChecksum
    from penstock.logd.format.rows import Frame

OFFSETS_HERE: Final = (
    "start_offset",
    "high_watermark",
    "end_offset",
    "epoch",
    "size_bytes",
    "damaged_offsets",
)
"""Facts of a partition that one node states of its replica."""

_STATED_BY_LEADER: Final = (*OFFSETS_HERE, "refusal")


class OffsetRange(NamedTuple):
    """Records that can be read: `start` inclusive, `end` exclusive (high watermark plus one)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The answer of one fetch.

    Attributes:
        frames: Whole frames, their CRCs checked; the first may begin before the offset asked for.
        range: Readable offsets of the partition.
        high_watermark: The last record that can be read; -1 when there is none.
        next_offset: Offset after the last frame.
        epoch: The leader epoch of the server.
        incarnation: Incarnation of the stream.
        log_epoch: The last leader epoch in the log that was read; None: the server does not say.
    """

    frames: "list[Frame]"
    range: OffsetRange
    high_watermark: int
    next_offset: int
    epoch: int
    incarnation: str
    log_epoch: int | None = None


class HeldRecords(NamedTuple):
    """A node's records in a range of offsets, and the checksum of each, if requested."""

    range: HeldRange
    checksums: "list[RecordChecksum]"


def leaders_elsewhere(described: StreamList) -> list[str]:
    """The nodes to ask where the partitions stand that the node which described them leads not."""
    streams = described.streams
    leaders = {part.leader for stream in streams for part in stream.partitions}
    return sorted(leader for leader in leaders if leader not in (None, described.node))


def merge(described: StreamList, others: Sequence[StreamList]) -> list[StreamInfo]:
    """Streams, each partition standing where its leader says, if that was asked; all problems."""
    found = {
        (other.node, stream.name, stream.incarnation, part.partition): part
        for other in others
        for stream in other.streams
        for part in stream.partitions
        if part.is_known
    }

    def standing(stream: StreamInfo, part: PartitionInfo) -> PartitionInfo:
        there = found.get((part.leader or "", stream.name, stream.incarnation, part.partition))
        if there is None:
            return part
        return replace(part, **{name: getattr(there, name) for name in _STATED_BY_LEADER})

    def problem(stream: StreamInfo) -> str:
        problems = [
            f"{other.node}: {found.problem}"
            for other in others
            for found in other.streams
            if found.name == stream.name and found.problem
        ]
        return "; ".join([stream.problem, *problems] if stream.problem else problems)

    return [
        replace(
            stream,
            partitions=tuple(standing(stream, part) for part in stream.partitions),
            problem=problem(stream),
        )
        for stream in described.streams
    ]
