"""What the api needs of the streams of a cluster, as a node has them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from penstock.logd.api.operations import Document
from penstock.logd.api.stream_options import ReplicationSettings
from penstock.logd.controller.group_messages import MemberAnswer, MemberBeat
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.streams import Stream, StreamConfig
from penstock.logd.partition.cursors import CursorStore
from penstock.logd.storage import CommitLog, EpochFile


class Ordered(Protocol):
    """What knows which leaders ordered a partition's records."""

    @property
    def epochs(self) -> EpochFile:
        """Of its log."""


class Readable(Protocol):
    """A partition that can be read here; this node leads it, or has a replica."""

    @property
    def name(self) -> str:
        """Of the stream."""

    @property
    def number(self) -> int:
        """Of the partition."""

    @property
    def stream(self) -> Stream:
        """What it belongs to."""

    @property
    def log(self) -> CommitLog:
        """What is read, up to the high watermark."""

    @property
    def start_offset(self) -> int:
        """The first offset that can be read: what is below was deleted, or purged."""

    @property
    def high_watermark(self) -> int:
        """Offset of the last committed record known here; -1 when there is none."""

    @property
    def epoch(self) -> int:
        """The leader epoch."""

    @property
    def role(self) -> Ordered:
        """What it does in it."""

    @property
    def closed(self) -> bool:
        """Whether it serves nobody any more."""

    async def restore(self, data: bytes) -> int:
        """Store a frame of a backup; the offset of the one that is wanted next.

        Raises:
            RefusedError: `NOT_RESTORING`, `WRONG_OFFSET`, `BAD_BACKUP`.
            UnavailableError: It is not stored, or nobody knows.
        """

    async def wait_until(self, offset: int) -> None:
        """Wait until the high watermark is at or above an offset, or the partition is closed."""


class StreamOutline(NamedTuple):
    """What a publisher has to know of a stream.

    Attributes:
        partitions: How many.
        replication: Whether it is paused or read-only, and more.
    """

    stream: Stream
    partitions: int
    replication: ReplicationOptions


class Streams(Protocol):
    """Called on the event loop; answers are as `penstock.logd.api.operations` says.

    Changes of a cluster may be asked of any node. Each raises UnavailableError when it is not known
    in time whether it was made; all of them may be asked for again.
    """

    @property
    def node(self) -> str:
        """Which node this is."""

    def cluster(self) -> Document:
        """The answer to `cluster`, without `node`."""

    def describe(self, stream: str | None = None, *, internal: bool = False) -> list[Document]:
        """One stream, or all by name; logd's own only if named or asked for.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """

    def names(self) -> list[str]:
        """Of all streams, logd's own included, in order."""

    def outline(self, stream: str) -> StreamOutline:
        """One stream, in short.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """

    def match(self, subject: str) -> tuple[str, ...]:
        """Names of the streams that store what is published on a subject."""

    def partition(self, stream: str, number: int, *, replica: bool = False) -> Readable:
        """A partition to read; `replica`: one that does not lead will do.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `NOT_HERE` (see `not_here`).
            UnavailableError: It cannot be read now.
        """

    async def create(
        self, config: StreamConfig, replication: ReplicationSettings, *, creator: str = ""
    ) -> tuple[Document, bool]:
        """Create a stream, or find it: its description, and whether it is new.

        Args:
            config: What it is.
            replication: How it is replicated.
            creator: Whose quota it counts for; empty: nobody's.

        Raises:
            RefusedError: `STREAM_DIFFERS`, `BAD_SUBJECT`, `BAD_OPTIONS`, `QUOTA_EXCEEDED` and
                others.
            NatsRefusedError: The NATS server does not permit its subject.
        """

    async def delete(self, stream: str) -> None:
        """Delete a stream with its data and its cursors.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `RESERVED_NAME`.
        """

    async def open(self, stream: str) -> Document:
        """Open here what of a stream had failed, or could not be opened.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `RESERVED_NAME`.
            UnavailableError: It still cannot be.
        """

    async def purge(self, stream: str, partition: int, before: int) -> int:
        """Take what is below an offset from readers, and delete it; the first offset there is then.

        Of a partition that this node leads. What was purged stays so whoever leads next.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `NOT_HERE`, `RESERVED_NAME`,
                `READ_ONLY`; `OUT_OF_RANGE`: not all of it is committed.
            UnavailableError: It cannot be read now, or nobody knows yet whether it is done.
        """

    async def alter(self, stream: str, options: Mapping[str, Any]) -> Document:
        """Change some options of a stream; `penstock.logd.api.stream_options.altered` has which.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `BAD_REQUEST` and others.
        """

    async def set_mode(
        self,
        stream: str,
        *,
        paused: bool | None,
        read_only: bool | None,
        held: bool | None = None,
    ) -> Document:
        """Pause or resume a stream, make it read-only or writable; None: as it is.

        With a pause `held` takes it off its subject, so that no message ends the pause.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """

    async def drain(self, node: str, *, undo: bool) -> None:
        """Begin to move everything off a node, or end that.

        Raises:
            RefusedError: `UNKNOWN_NODE` and others.
        """

    async def remove_node(self, node: str) -> None:
        """End a node's membership.

        Raises:
            RefusedError: `UNKNOWN_NODE` and others.
        """

    async def move(self, stream: str, partition: int, replicas: tuple[str, ...] | None) -> None:
        """Begin to move a partition to these nodes, or, with None, give up its move.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `UNKNOWN_NODE` and others.
        """

    async def observe(self, stream: str, partition: int, observers: tuple[str, ...]) -> None:
        """Have just these nodes hold a copy of a partition that never counts.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `UNKNOWN_NODE`, `BAD_REPLICAS`.
        """

    async def elect(self, stream: str, partition: int) -> Document:
        """Have a replica lead that lacks acked records; the protocol has the answer.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`; `HAS_LEADER`, `IN_SYNC_ALIVE`:
                nothing need be lost; `NO_REPLICA`: none is there.
        """

    async def step_down(self, heir: str | None) -> str:
        """Have another node be the controller; which one is then.

        Args:
            heir: Who; None: any that is there.

        Raises:
            RefusedError: `NO_HEIR`: none is there that can.
        """

    async def rebalance(self) -> int:
        """Have leaderships spread evenly now, not when the nodes are calm; how many are to move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """For metrics.

    Attributes:
        groups: Those with members, as this node knows them.
        members: Of all of them.
        counts: What this node did as their coordinator.
    """

    groups: int = 0
    members: int = 0
    counts: Mapping[str, int] = field(default_factory=Counter)


class Groups(Protocol):
    """Called on the event loop."""

    async def beat(self, beat: MemberBeat) -> MemberAnswer:
        """Tell the coordinator that a member is there; its answer.

        Raises:
            RefusedError: `UNAVAILABLE`: it gives none now.
            UnavailableError: It cannot be reached in time.
        """

    async def leave(self, group: str, member: str) -> None:
        """Tell the coordinator that a member wants to be none.

        Raises:
            UnavailableError: It cannot be reached in time.
        """

    def describe(self, group: str | None = None) -> list[Document]:
        """One group, or all by name.

        Raises:
            RefusedError: `UNKNOWN_GROUP`.
        """

    def figures(self) -> GroupFigures:
        """How many there are."""


class Cursors(Protocol):
    """Where consumers' cursors are kept."""

    async def ready(self) -> CursorStore:
        """Those that are kept here.

        Raises:
            RefusedError: `NOT_HERE`: another node keeps them.
            UnavailableError: Nobody does now.
        """


def not_here(stream: str, number: int, leader: str | None, replicas: Sequence[str]) -> RefusedError:
    """The refusal of a partition that other nodes have, for a reader to go there."""
    message = f"partition {number} of stream {stream!r} is not here; " + (
        f"its leader is {leader}" if leader else "nobody leads it now"
    )
    return RefusedError("NOT_HERE", message, leader=leader or "", replicas=",".join(replicas))
