"""Streams and nodes of a logd or a cluster: to see and to change them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from penstock.logd.client import calls, group_calls
from penstock.logd.client.answers import (
    ClusterInfo,
    Described,
    Elected,
    GroupInfo,
    StreamInfo,
    leaders_elsewhere,
    merge,
)
from penstock.logd.client.calls import Call
from penstock.logd.errors import RefusedError, UnavailableError

Answer = TypeVar("Answer")


class Managing(ABC):
    """A part of `LogClient`."""

    @abstractmethod
    def _call(self, call: Call[Answer]) -> Answer: ...

    # Streams.

    def streams(self, *, internal: bool = False) -> list[StreamInfo]:
        """Every stream, by name; `internal` adds logd's own."""
        return self._described(None, internal=internal)

    def stream(self, name: str) -> StreamInfo:
        """One stream.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        return (self._described(name))[0]

    def match(self, subject: str) -> list[str]:
        """Names of the streams that store what is published on a subject."""
        return self._call(calls.match(subject))

    def create_stream(self, name: str, subject: str, **options: Any) -> StreamInfo:
        """Create a stream, or find it as asked for.

        Raises:
            RefusedError: `STREAM_DIFFERS`, `BAD_SUBJECT`, `BAD_REQUEST`; `NOT_CLUSTERED` when a
                lone logd is asked for more than one partition or replica; `NOT_ENOUGH_NODES`;
                `STREAM_DELETING`: nodes still have data of one of that name that was deleted;
                `UNAVAILABLE`: it is made, or not, and publishers do not reach all of it yet.
        """
        return self._call(calls.create_stream(name, subject, options))

    def alter_stream(self, name: str, **options: Any) -> StreamInfo:
        """Change options of a cluster's stream; those not named stay as they are.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `BAD_REQUEST`, `NOT_CLUSTERED`.
        """
        return self._call(calls.alter_stream(name, options))

    def set_stream_mode(
        self,
        name: str,
        *,
        paused: bool | None = None,
        read_only: bool | None = None,
        held: bool = False,
    ) -> StreamInfo:
        """Pause or resume a cluster's stream, make it read-only or writable; None: as it is.

        A message ends a pause; with `held` the stream is off its subject until it is resumed.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `NOT_CLUSTERED`.
        """
        call = calls.set_mode(name, paused=paused, read_only=read_only, held=held)
        return self._call(call)

    def open_stream(self, name: str, *, node: str | None = None) -> StreamInfo:
        """Open a stream that failed, or could not be opened, as a restart would.

        In a cluster: what a node has of it; without a name, the one that is asked.

        Raises:
            RefusedError: `UNKNOWN_STREAM`; `UNAVAILABLE` while it still cannot be opened.
        """
        return self._call(calls.open_stream(name, node))

    def purge(self, stream: str, before: int, partition: int = 0) -> int:
        """Take what is below an offset from readers, and delete it; the first that is left then.

        Whole segment files below it are deleted; what the one that holds the offset has below it
        goes with that file. Cursors stay: readers below are refused as `OUT_OF_RANGE`.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `RESERVED_NAME`, `READ_ONLY`;
                `OUT_OF_RANGE`: not all of it is committed.
        """
        return self._call(calls.purge(stream, partition, before))

    def delete_stream(self, name: str) -> None:
        """Delete a stream with its data.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        self._call(calls.delete_stream(name))

    # Nodes.

    def cluster(self) -> ClusterInfo:
        """Which nodes there are; a lone logd names only itself."""
        return self._call(calls.cluster())

    def drain_node(self, node: str, *, undo: bool = False) -> None:
        """Begin to move every replica and leadership off a node, or end that.

        Raises:
            RefusedError: `UNKNOWN_NODE`, `NOT_CLUSTERED`.
        """
        self._call(calls.drain(node, undo=undo))

    def remove_node(self, node: str) -> None:
        """End a node's membership; drain it first.

        Raises:
            RefusedError: `UNKNOWN_NODE`, `NOT_CLUSTERED`, and why it cannot go yet.
        """
        self._call(calls.remove_node(node))

    def move_partition(self, stream: str, partition: int, replicas: Sequence[str] | None) -> None:
        """Begin to move a partition to these nodes, preferred leader first; None gives it up.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `UNKNOWN_NODE`, `NOT_CLUSTERED`.
        """
        self._call(calls.move(stream, partition, replicas))

    def set_observers(self, stream: str, partition: int, observers: Sequence[str]) -> None:
        """Have just these nodes hold a copy of a partition that never counts, for readers.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `UNKNOWN_NODE`, `NOT_CLUSTERED`;
                `BAD_REPLICAS`: one is a replica.
        """
        self._call(calls.observe(stream, partition, observers))

    def elect_and_lose_records(self, stream: str, partition: int = 0) -> Elected:
        """Have the best replica lead that is there, though it lacks acked records.

        Raises:
            RefusedError: `HAS_LEADER`, `IN_SYNC_ALIVE`: nothing need be lost; `NO_REPLICA`: none is
                there; `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `NOT_CLUSTERED`.
        """
        return self._call(calls.elect(stream, partition))

    def step_down(self, heir: str | None = None) -> str:
        """Have another node be the controller, that one or any; which one is then.

        Raises:
            RefusedError: `NO_HEIR`: it is not there, or none is; `NOT_CLUSTERED`.
        """
        return self._call(calls.step_down(heir))

    def gaps(self, node: str | None = None) -> dict[str, Any]:
        """What a node has missed of its subjects, and what of its logs it cannot read.

        `lasting` and `ended` are lists of gaps, `damaged` one of ranges of offsets, as
        `penstock.logd.fetch.wire` has them.
        """
        return self._call(calls.gaps(node))

    def rebalance(self) -> int:
        """Spread replicas and leaderships evenly; how many moves begin.

        Raises:
            RefusedError: `NOT_CLUSTERED`.
        """
        return self._call(calls.rebalance())

    # Groups.

    def groups(self) -> list[GroupInfo]:
        """The consumer groups with members, by name.

        Raises:
            RefusedError: `NOT_CLUSTERED`.
        """
        return self._call(group_calls.groups())

    def group(self, name: str) -> GroupInfo:
        """One consumer group.

        Raises:
            RefusedError: `UNKNOWN_GROUP`: it has no members; `NOT_CLUSTERED`.
        """
        return (self._call(group_calls.groups(name)))[0]

    def _described(self, name: str | None, *, internal: bool = False) -> list[StreamInfo]:
        """Streams, with where each partition stands at its leader."""
        described = self._call(calls.describe(name, internal=internal))
        others: list[Described] = []
        for node in leaders_elsewhere(described):
            try:
                call = calls.describe(name, internal=internal, node=node)
                others.append(self._call(call))
            except (UnavailableError, RefusedError):
                continue  # what only that node knows stays unknown
        return merge(described, others)
