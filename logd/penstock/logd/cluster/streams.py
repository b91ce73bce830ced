"""The streams of a cluster, as one of its nodes shows and changes them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

import structlog

from penstock.logd.cluster.controller_client import ControllerClient, make_stream
from penstock.logd.cluster.replica import ReplicaRunner
from penstock.logd.cluster.replica_manager import ReplicaManager
from penstock.logd.errors import (
    LogdError,
    NotOpenError,
    NotReadyError,
    RefusedError,
    UnavailableError,
    not_here,
)
from penstock.logd.metadata.codec import Document, read_document, write_document
from penstock.logd.metadata.commands import (
    AlterStream,
    ChangeObservers,
    Command,
    DeleteStream,
    Drain,
    PurgePartition,
    RemoveNode,
    SetStreamMode,
    SetTarget,
)
from penstock.logd.metadata.records import (
    Node,
    NodeState,
    PartitionKey,
    PartitionRecord,
    ReplicationOptions,
    StreamRecord,
)
from penstock.logd.metadata.state import ClusterState, Refused
from penstock.logd.metadata.streams import Stream, StreamConfig, check_not_internal, is_internal
from penstock.logd.metadata.tables import basis_of
from penstock.logd.nats.protocol import NatsRefusedError
from penstock.logd.partition.partition import Partition
from penstock.logd.partition.purge import check_purge
from penstock.logd.raft import Halt
from penstock.logd.stream_options import ReplicationSettings, altered

_log = structlog.get_logger()

_CHANGE_S: Final = 10.0
"""Seconds a change may take; the client may ask again."""

_OVERTAKEN: Final = frozenset({"STALE_EPOCH", "STALE_VERSION", "DATA_NOT_GONE"})
"""Refusals of a change because of another one, or of data that a node is about to remove: a matter
of moments."""

_OVERTAKEN_S: Final = 5.0
"""Seconds for which such a change is tried again."""

_REMOVED_S: Final = 5.0
"""Seconds for the data of a deleted stream to be gone; it goes without being waited for, too."""

_OF_REPLICAS: Final = frozenset({"replication_factor", "min_isr"})

_LISTENING: Final = "listening"
"""The request of one node to another for what it listens for."""

_ASK_S: Final = 2.0
_LOOK_S: Final = 0.02


class StreamOutline(NamedTuple):
    """The parts of a stream that a publisher needs.

    Attributes:
        partitions: Number of partitions.
        replication: Its modes, as paused and read-only, and its replication.
    """

    stream: Stream
    partitions: int
    replication: ReplicationOptions


class ClusterStreams:
    """Called on the event loop; answers are as `penstock.logd.api.operations` says.

    Changes may be asked of any node. Each raises UnavailableError when it is not known in time
    whether it was made; all of them may be asked for again.

    Args:
        replicas: The node's replicas.
        decisions: The way to the controller.
    """

    def __init__(self, replicas: ReplicaManager, decisions: ControllerClient) -> None:
        self._replicas = replicas
        self._decisions = decisions
        replicas.cluster.handlers[_LISTENING] = self._answer_listening

    @property
    def node(self) -> str:
        return self._replicas.node

    @property
    def _state(self) -> ClusterState:
        """The cluster's state; NotReadyError while this node cannot know it."""
        self._replicas.cluster.check_takes_part()
        if not self._replicas.ready:
            raise NotReadyError("this node does not know yet what the cluster has")
        return self._replicas.cluster.group.state

    def cluster(self) -> Document:
        """The answer to `cluster`, without `node`.

        `live` is as far as this node can tell.

        A node alone names no cluster: a client stays with the address that it reached.
        """
        cluster = self._replicas.cluster
        cluster.check_takes_part()
        state = cluster.group.state
        up = {link.peer for link in cluster.mesh.links() if link.up} | {self.node}
        nodes = [
            _describe_node(node, live=node.id in up, halt=cluster.halt_of(node.id))
            for _, node in sorted(state.nodes.items())
            if node.state is not NodeState.REMOVED
        ]
        name = None if cluster.alone else cluster.cluster
        return {"cluster": name, "controller": cluster.group.leader, "nodes": nodes}

    def describe(self, stream: str | None = None, *, internal: bool = False) -> list[Document]:
        """One stream, or all by name; logd's own only if named or asked for.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        if stream is not None:
            return [self._describe(self._record(stream))]
        found = (record for _, record in sorted(self._state.streams.items()) if record.is_open)
        return [
            self._describe(record)
            for record in found
            if internal or not is_internal(record.config.name)
        ]

    def names(self) -> list[str]:
        """List the names of all streams in order, with logd's own."""
        return sorted(name for name, record in self._state.streams.items() if record.is_open)

    def outline(self, stream: str) -> StreamOutline:
        """One stream, in short.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        record = self._record(stream)
        found = Stream(config=record.config, incarnation=record.incarnation)
        return StreamOutline(found, len(record.partitions), record.options)

    def match(self, subject: str) -> tuple[str, ...]:
        """Names of the streams that store what is published on a subject."""
        return self._state.match(subject)

    def partition(self, stream: str, number: int, *, replica: bool = False) -> Partition:
        """A partition to read; `replica`: one that does not lead will do.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `NOT_HERE` (see `not_here`).
            UnavailableError: It cannot be read now.
        """
        record = self._record(stream)
        found = _part(record, number)
        hosted = self._here(record, number)
        failed_alone = hosted is not None and hosted.partition.publish_queue.refuses
        if hosted is None or not (hosted.leading or replica or failed_alone):
            alone = found.leader is None and tuple(found.replicas) == (self.node,)
            if alone or found.leader == self.node:
                self._check_opened(stream, number)
            raise not_here(stream, number, found.leader, found.replicas)
        return hosted.partition

    async def create(
        self, config: StreamConfig, replication: ReplicationSettings, *, creator: str = ""
    ) -> tuple[Document, bool]:
        """Create a stream, or find it: its description, and whether it is new.

        On return every partition has a leader that publishers reach.

        Args:
            config: Configuration of the stream.
            replication: Replication of the stream.
            creator: Principal to whose quota it counts; empty: none.

        Raises:
            RefusedError: `STREAM_DIFFERS`, `BAD_SUBJECT`, `BAD_OPTIONS`, `QUOTA_EXCEEDED` and
                others.
            NatsRefusedError: The NATS server does not permit its subject.
        """
        if replication.partitions > 1 and config.subject.endswith(">"):
            message = f"{config.subject!r}: partition n is on subject.n, which > would cover"
            raise RefusedError("BAD_SUBJECT", message, subject=config.subject)
        self._replicas.masters.check(config)
        self._replicas.cluster.check_takes_part(change=True)
        done = await make_stream(
            self._replicas.cluster,
            self._decisions,
            config,
            replication,
            timeout_s=_CHANGE_S,
            creator=creator,
        )
        try:
            record = await self._led(config.name, done.incarnation)
        except NatsRefusedError:
            if done.changed:
                await self.delete(config.name)
            raise
        return self._describe(record), done.changed

    async def delete(self, stream: str) -> None:
        """Delete a stream with its data and its cursors.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `RESERVED_NAME`.
        """
        check_not_internal(stream)
        record = self._record(stream)
        await self._change(DeleteStream(stream=stream, incarnation=record.incarnation))
        if all(part.holders == {self.node} for part in record.partitions):
            await self._removed(stream, record.incarnation)

    async def open(self, stream: str) -> Document:
        """Open here what of a stream had failed, or could not be opened.

        Publishers reach what no other node has.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `RESERVED_NAME`.
            UnavailableError: It still cannot be.
        """
        check_not_internal(stream)
        record = self._record(stream)
        leads = False
        for number, partition in enumerate(record.partitions):
            place = PartitionKey(stream, number)
            hosted = self._here(record, number)
            failed = hosted is not None and hosted.partition.failure
            if failed or place in self._replicas.problems:
                await self._replicas.reopen(place)
                leads |= partition.replicas == (self.node,)
        if leads and record.options.listens:
            record = await self._led(stream, record.incarnation)
        return self._describe(self._record(stream))

    async def purge(self, stream: str, partition: int, before: int) -> int:
        """Take what is below an offset from readers, and delete it; the first offset there is then.

        The cluster's metadata says so to every replica, those to come too.

        Of a partition that this node leads. What was purged stays so under every next leader.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `NOT_HERE`, `RESERVED_NAME`,
                `READ_ONLY`; `OUT_OF_RANGE`: not all of it is committed.
            UnavailableError: It cannot be read now, or it is unknown yet whether it is done.
        """

        def command() -> PurgePartition:
            found = self.partition(stream, partition)
            record, end = self._record(stream), found.high_watermark + 1
            read_only = record.options.read_only
            check_purge(stream, before, start=found.start_offset, end=end, read_only=read_only)
            return PurgePartition(
                stream=stream,
                incarnation=record.incarnation,
                partition=partition,
                leader_epoch=found.epoch,
                before=max(before, found.purging.start()),
            )

        await self._change_as_it_is(command)
        return self.partition(stream, partition).start_offset

    async def alter(self, stream: str, options: Mapping[str, Any]) -> Document:
        """Change some options of a stream; `penstock.logd.stream_options.altered` has which.

        Of logd's own streams how many replicas they have, and no more.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `BAD_REQUEST` and others.
        """
        if not options.keys() <= _OF_REPLICAS:
            check_not_internal(stream)
        record = self._record(stream)
        config, replication = altered(record.config, record.options, options)
        incarnation = record.incarnation
        await self._change(AlterStream(incarnation=incarnation, config=config, options=replication))
        return self._describe(self._record(stream))

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
        check_not_internal(stream)
        incarnation = self._record(stream).incarnation
        mode = SetStreamMode(
            stream=stream,
            incarnation=incarnation,
            paused=paused,
            read_only=read_only,
            held=held,
        )
        await self._change(mode)
        record = self._record(stream)
        if paused is False and record.options.listens:
            record = await self._led(stream, incarnation)
        return self._describe(record)

    async def drain(self, node: str, *, undo: bool) -> None:
        """Begin to move everything off a node, or end that.

        Raises:
            RefusedError: `UNKNOWN_NODE` and others.
        """
        await self._change(Drain(node=node, undo=undo))

    async def remove_node(self, node: str) -> None:
        """End a node's membership.

        Raises:
            RefusedError: `UNKNOWN_NODE` and others.
        """
        await self._change(RemoveNode(node=node))

    async def move(self, stream: str, partition: int, replicas: tuple[str, ...] | None) -> None:
        """Begin to move a partition to these nodes, or, with None, give up its move.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `UNKNOWN_NODE` and others.
        """

        def command() -> SetTarget:
            record = self._record(stream)
            basis = basis_of(PartitionKey(stream, partition), record, _part(record, partition))
            return SetTarget(basis=basis, target=replicas)

        await self._change_as_it_is(command)

    async def observe(self, stream: str, partition: int, observers: tuple[str, ...]) -> None:
        """Have just these nodes hold a copy of a partition that never counts.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `UNKNOWN_NODE`, `BAD_REPLICAS`.
        """

        def command() -> ChangeObservers:
            record = self._record(stream)
            basis = basis_of(PartitionKey(stream, partition), record, _part(record, partition))
            return ChangeObservers(basis=basis, observers=observers)

        await self._change_as_it_is(command)

    async def elect(self, stream: str, partition: int) -> Document:
        """Have a replica lead that lacks acked records; the protocol has the answer.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`; `HAS_LEADER`, `IN_SYNC_ALIVE`:
                nothing need be lost; `NO_REPLICA`: none is there.
        """
        record = self._record(stream)
        key, before = PartitionKey(stream, partition), _part(record, partition)
        self._replicas.cluster.check_takes_part(change=True)
        found = await self._decisions.elect(key, timeout_s=_CHANGE_S)
        _log.error("unclean_leader_election", stream=stream, partition=partition, **found)
        await self._replicas.cluster.group.read(timeout_s=_CHANGE_S)
        now = _part(self._record(stream), partition)
        return found | {"unclean_elections": max(now.unclean_elections, before.unclean_elections)}

    async def step_down(self, target: str | None) -> str:
        """Have another node be the controller; which one is then.

        Args:
            target: The new controller; None: any live node.

        Raises:
            RefusedError: `NO_CANDIDATE`: none is there that can.
        """
        self._replicas.cluster.check_takes_part(change=True)
        return await self._decisions.step_down(target, timeout_s=_CHANGE_S)

    async def rebalance(self) -> int:
        """Have leaderships spread evenly now, not when the nodes are calm; how many are to move."""
        self._replicas.cluster.check_takes_part(change=True)
        await self._decisions.rebalance(timeout_s=_CHANGE_S)
        found = (partition for _, _, partition in self._state.partitions())
        return sum(partition.leader != partition.replicas[0] for partition in found)

    # Parts.

    def _record(self, stream: str) -> StreamRecord:
        found = self._state.streams.get(stream)
        if found is None or not found.is_open:
            raise RefusedError("UNKNOWN_STREAM", f"there is no stream {stream!r}", stream=stream)
        return found

    def _check_opened(self, stream: str, number: int) -> None:
        """Look whether a partition could be opened here.

        Raises:
            NotOpenError: It could not.
        """
        problem = self._replicas.problems.get(PartitionKey(stream, number))
        if problem is not None:
            again = f"`penstock logd streams open {stream} --node {self.node}`"
            message = f"partition {number} of stream {stream!r}: not opened: {problem}"
            raise NotOpenError(f"{message}; see to that, then {again}", cause=problem.cause)

    def _check_writable(self, hosted: ReplicaRunner | None) -> None:
        """Look whether what only this node has takes messages, or is about to.

        Raises:
            NotOpenError, NatsRefusedError: Its log has failed; it is not permitted to listen.
        """
        if hosted is None:
            return
        if failure := hosted.partition.failure:
            message = f"stream {hosted.partition.label!r} takes no messages: {failure}"
            raise NotOpenError(message, cause="UNAVAILABLE")
        if denial := self._replicas.subscription_manager.denied().get(hosted.partition.label):
            raise NatsRefusedError(denial)

    def _here(self, record: StreamRecord, number: int) -> ReplicaRunner | None:
        hosted = self._replicas.at(PartitionKey(record.config.name, number))
        if hosted is None or hosted.key.incarnation != record.incarnation:
            return None
        return hosted

    async def _change(self, command: Command) -> None:
        self._replicas.cluster.check_takes_part(change=True)
        group = self._replicas.cluster.group
        result = await group.change(command, timeout_s=_CHANGE_S)
        if isinstance(result, Refused):
            raise RefusedError(result.code, result.message)
        await group.read(timeout_s=_CHANGE_S)  # what this node shows next has it

    async def _change_as_it_is(self, command: Callable[[], Command]) -> None:
        """Change a partition as it is by now, however often it has changed meanwhile.

        Args:
            command: Makes the command from what there is.

        Raises:
            RefusedError: Whatever else than that it was overtaken.
            UnavailableError: It was overtaken again and again.
        """
        until = asyncio.get_running_loop().time() + _OVERTAKEN_S
        while True:
            try:
                await self._change(command())
            except RefusedError as error:
                if error.code not in _OVERTAKEN:
                    raise
                if asyncio.get_running_loop().time() >= until:
                    message = f"not done within {_OVERTAKEN_S:g} s: {error}"
                    raise UnavailableError(message) from None
                await self._replicas.cluster.group.read(timeout_s=_CHANGE_S)
                await asyncio.sleep(_LOOK_S)
            else:
                return

    async def _removed(self, stream: str, incarnation: str) -> None:
        """Wait until data that only this node has is gone, as long as that takes moments."""
        until = asyncio.get_running_loop().time() + _REMOVED_S
        while asyncio.get_running_loop().time() < until:
            found = self._state.streams.get(stream)
            if found is None or found.incarnation != incarnation:
                return
            await asyncio.sleep(_LOOK_S)

    async def _led(self, stream: str, incarnation: str) -> StreamRecord:
        """The stream's record, once each partition's leader is on its subject.

        Raises:
            NotOpenError: It will not be before an operator has seen to this node.
            NatsRefusedError: Nor before the NATS server permits it.
            UnavailableError: Not in time.
        """
        await self._replicas.cluster.group.read(timeout_s=_CHANGE_S)
        until = asyncio.get_running_loop().time() + _CHANGE_S
        while True:
            record = self._record(stream)
            if record.incarnation != incarnation:
                return record
            for number, partition in enumerate(record.partitions):
                if partition.replicas == (self.node,):
                    self._check_opened(stream, number)
                    self._check_writable(self._here(record, number))
            if not (missing := await self._without_subscription(record)):
                return record
            if asyncio.get_running_loop().time() >= until:
                message = f"stream {stream!r} is as asked, and takes no messages yet: {missing}"
                raise UnavailableError(message)
            await asyncio.sleep(_LOOK_S)

    async def _without_subscription(self, record: StreamRecord) -> str:
        """Return which partition has no subscriber, and why; empty: none."""
        wanted: dict[str, set[int]] = {}
        for number, partition in enumerate(record.partitions):
            if partition.leader is None:
                return f"partition {number} has no leader"
            wanted.setdefault(partition.leader, set()).add(number)
        for leader, numbers in sorted(wanted.items()):
            if missing := sorted(numbers - await self._listening_at(leader, record)):
                return f"node {leader} does not listen for partition {missing[0]}"
        return ""

    async def _listening_at(self, node: str, record: StreamRecord) -> set[int]:
        """The partitions that a node leads and is on the subjects of, as far as it can be asked."""
        if node == self.node:
            numbers = range(len(record.partitions))
            found = {number: self._here(record, number) for number in numbers}
            return {
                number for number, hosted in found.items() if hosted and hosted.subscription_manager
            }
        asked = {"stream": record.config.name, "incarnation": record.incarnation}
        body = write_document(asked | {"listens": record.options.listens})
        mesh = self._replicas.cluster.mesh
        try:
            answer = await mesh.ask(node, _LISTENING, body, timeout_s=_ASK_S)
        except LogdError:
            return set()
        return set(read_document(answer, where=_LISTENING)["partitions"])

    async def _answer_listening(self, _node: str, body: bytes) -> bytes:
        """Say which partitions of a stream are led here, and listened for."""
        asked = read_document(body, where=_LISTENING)
        found = self._replicas.cluster.group.state.streams.get(str(asked["stream"]))
        numbers: set[int] = set()
        if (
            found is not None
            and found.incarnation == asked["incarnation"]
            # Else this node does not know yet, or another command has changed it again. Who asks
            # may be of a version that does not say.
            and found.options.listens is asked.get("listens", found.options.listens)
        ):
            numbers = await self._listening_at(self.node, found)
        return write_document({"partitions": sorted(numbers)})

    def _describe(self, record: StreamRecord) -> Document:
        options = asdict(record.config) | asdict(record.options)
        name, subject = options.pop("name"), options.pop("subject")
        options["replication_factor"] = options["replication_factor"] or "all"
        partitions, problems = [], []
        for number, partition in enumerate(record.partitions):
            hosted = self._here(record, number)
            place = PartitionKey(name, number)
            if place in self._replicas.problems:
                problems.append(str(self._replicas.problems[place]))
            elif hosted is not None and hosted.partition.failure:
                problems.append(hosted.partition.failure)
            partitions.append(
                {"partition": number}
                | describe_standing(None if hosted is None else hosted.partition)
                | describe_roles(
                    partition.leader,
                    partition.leader_epoch,
                    partition.replicas,
                    partition.isr,
                    partition.observers,
                    partition.target,
                )
                | {
                    "unclean_elections": partition.unclean_elections,
                    "refusal": _refusal(None if hosted is None else hosted.partition),
                }
            )
        return {
            "name": name,
            "subject": subject,
            "incarnation": record.incarnation,
            "partitions": partitions,
            "options": options,
            "problem": "; ".join(problems),
        }


def _part(record: StreamRecord, number: int) -> PartitionRecord:
    if not 0 <= number < len(record.partitions):
        name = record.config.name
        message = f"stream {name!r} has no partition {number}"
        raise RefusedError("UNKNOWN_PARTITION", message, stream=name, partition=number)
    return record.partitions[number]


def _describe_node(node: Node, *, live: bool, halt: Halt | None) -> Document:
    return {
        "node": node.id,
        "fetch": node.addresses.fetch,
        "admin": node.addresses.admin,
        "grpc": node.addresses.grpc,
        "rack": node.rack,
        "state": str(node.state),
        "live": live and halt is None,
        "problem": "" if halt is None else halt.reason,
        "problem_cause": None if halt is None else str(halt.cause),
    }


def describe_standing(partition: Partition | None) -> dict[str, Any]:
    """Return the offsets of a partition here; -1: it has no replica here."""
    if partition is None:
        return dict.fromkeys(
            (
                "start_offset",
                "high_watermark",
                "end_offset",
                "epoch",
                "size_bytes",
                "damaged_offsets",
            ),
            -1,
        )
    return {
        "start_offset": partition.start_offset,
        "high_watermark": partition.high_watermark,
        "end_offset": partition.log.end_offset,
        "epoch": partition.epoch,
        "size_bytes": partition.log.size_bytes,
        "damaged_offsets": sum(upto - first for first, upto in damaged_ranges(partition)),
    }


def _refusal(partition: Partition | None) -> str:
    """Return why a partition that is led here refuses all publishers; empty: it does not."""
    found = None if partition is None else partition.publish_queue.refusal
    return "" if found is None else found.description


def damaged_ranges(partition: Partition) -> list[tuple[int, int]]:
    """Ranges [first, upto) of a partition's offsets that are known to be damaged here."""
    start = partition.start_offset
    return [(max(a, start), upto) for a, upto in partition.log.damaged() if upto > start]


def describe_roles(
    leader: str | None,
    leader_epoch: int,
    replicas: Sequence[str],
    isr: Sequence[str],
    observers: Sequence[str] = (),
    target: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the leader, replicas and target of a partition."""
    return {
        "leader": leader,
        "leader_epoch": leader_epoch,
        "replicas": list(replicas),
        "isr": list(isr),
        "observers": list(observers),
        "target": None if target is None else list(target),
    }
