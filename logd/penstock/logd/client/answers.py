"""What a logd answers, as the client's callers see it."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from penstock.logd.rows import Frame


class OffsetRange(NamedTuple):
    """Records that can be read: `start` inclusive, `end` exclusive (high watermark plus one)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """Where one partition stands, and who has it.

    Attributes:
        start_offset: The first record that can be read.
        high_watermark: The last record that can be read; -1 when there is none.
        end_offset: The next one to be written.
        epoch: The leader epoch.
        size_bytes: Of its frames on disk.
        leader: The node that orders its records; None: no node may, at present.
        leader_epoch: Rises with each change of the leader.
        replicas: The nodes that have it; the first one leads if it can.
        isr: Those of them that have every record that can be read.
        observers: Further nodes with a copy.
    """

    partition: int
    start_offset: int
    high_watermark: int
    end_offset: int
    epoch: int
    size_bytes: int
    leader: str | None = None
    leader_epoch: int = 0
    replicas: tuple[str, ...] = ()
    isr: tuple[str, ...] = ()
    observers: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether a node that has it was asked; if not, what only that node knows is -1."""
        return self.start_offset >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """One stream.

    Attributes:
        incarnation: Differs between a stream and a later one of the same name.
        partitions: None while its log cannot be opened.
        options: The stream's options by name.
        problem: Why it takes no writes; empty while it does.
    """

    name: str
    subject: str
    incarnation: str
    partitions: tuple[PartitionInfo, ...]
    options: dict[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The answer of one fetch.

    Attributes:
        frames: Whole frames, their CRCs checked; the first may begin before the offset asked for.
        range: What can be read of the partition now.
        high_watermark: The last record that can be read; -1 when there is none.
        next_offset: Where to go on.
        epoch: The leader epoch of the server.
        incarnation: Of the stream.
    """

    frames: list[Frame]
    range: OffsetRange
    high_watermark: int
    next_offset: int
    epoch: int
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a consumer has come in a partition.

    Attributes:
        offset: Of the next record it wants.
        incarnation: Of the stream it was committed for.
        current: Whether that stream still exists; if not, the offset means nothing any more.
    """

    consumer: str
    stream: str
    partition: int
    offset: int
    incarnation: str
    current: bool = True


def stream_info(document: dict[str, Any]) -> StreamInfo:
    """A stream's description as the protocol carries it."""
    return StreamInfo(
        name=document["name"],
        subject=document["subject"],
        incarnation=document["incarnation"],
        partitions=tuple(_partition_info(item) for item in document["partitions"]),
        options=document["options"],
        problem=document.get("problem", ""),
    )


def _partition_info(document: dict[str, Any]) -> PartitionInfo:
    known = {item.name for item in fields(PartitionInfo)}
    found = {key: value for key, value in document.items() if key in known}
    for key in ("start_offset", "high_watermark", "end_offset", "epoch", "size_bytes"):
        found[key] = -1 if found[key] is None else found[key]
    for key in ("replicas", "isr", "observers"):
        found[key] = tuple(found.get(key, ()))
    return PartitionInfo(**found)
