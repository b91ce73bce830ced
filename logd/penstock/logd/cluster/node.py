"""A node of a cluster: its part in the metadata group, its peer endpoint, where the others are.

    <directory>/raft/   its part in the group (`penstock.logd.raft.storage`)
    <directory>/node    who it is (a checkpoint): cluster, node, and the id of this storage
    <directory>/peers   where the others are (a checkpoint)

It founds the group together with the other initial members, or returns to it; any other node
joins. It registers: where it is reached, which storage it has, and that its process is a new one.
The group's leader admits nodes that are registered (`penstock.logd.cluster.node`).

Where the other nodes are, stored over restarts.

A node that starts knows nothing of the state until a leader tells it what is committed. Before that
it must reach a majority to have a leader, and nodes that joined are no initial members.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from penstock.base.clock import Clock
from penstock.logd.cluster.metadata_group import (
    JOIN,
    OTHER_DISK,
    PROPOSE,
    ClusterMachine,
    Mesh,
    MetadataGroup,
)
from penstock.logd.cluster.replication import (
    DEDUP_API,
    RANGE_API,
    Hosted,
    ReplicaFetchSettings,
    Replication,
)
from penstock.logd.controller.liveness import PartitionReport, Timing
from penstock.logd.controller.service import HEARTBEAT, ControllerService, Process
from penstock.logd.errors import (
    NO_SPACE,
    HaltCause,
    LogdError,
    NotReadyError,
    RefusedError,
    UnavailableError,
)
from penstock.logd.metadata.codec import read_document, write_document
from penstock.logd.metadata.commands import Command, Drain, RegisterNode, RemoveNode
from penstock.logd.metadata.node_rules import HandOver, Step, next_step
from penstock.logd.metadata.records import Addresses, Node, NodeState
from penstock.logd.metadata.state import Refused, Result
from penstock.logd.net.channel import Channel
from penstock.logd.net.peer_identity import Identity
from penstock.logd.net.peer_server import PeerServer
from penstock.logd.net.peer_tls import PeerTls
from penstock.logd.partition.acks import LoopDispatcher
from penstock.logd.raft import (
    BusyError,
    Halt,
    Membership,
    Message,
    NotLeaderError,
    Raft,
    RaftConfig,
    membership_of,
)
from penstock.logd.raft.node import Hooks, Member
from penstock.logd.raft.storage import RaftStorage
from penstock.logd.replication.events import NodeId
from penstock.logd.replication.session import PartitionId
from penstock.logd.storage import Checkpoint
from penstock.service import ConfigError

_AGAIN_S: Final = 5.0
_log = structlog.get_logger()


class AddressBook:
    """Used on the event loop.

    Args:
        path: Path of the file.
        initial_members: The nodes that founded the cluster.

    Raises:
        OSError: The disk failed.
    """

    def __init__(self, path: Path, initial_members: Mapping[str, str]) -> None:
        self._checkpoint = Checkpoint(path)
        self._initial_members = initial_members
        self._known: dict[str, str] = self._checkpoint.load() or {}
        self._changed = asyncio.Event()

    def update(self, nodes: Mapping[str, Node], members: Collection[str]) -> dict[str, str]:
        """Take in the nodes of the state, which at first is an old one: it may lack some.

        Returns:
            Whom to reach, where: the initial members and every node, but for those that were
            removed and are no members of the metadata group any more. Initial members are where
            the configuration says: when all of them have moved, no other node could tell.
        """
        gone = {node.id for node in nodes.values() if node.state is NodeState.REMOVED}
        gone -= set(members)
        advertised = {node.id: node.addresses.peer for node in nodes.values()}
        known = {name: at for name, at in (self._known | advertised).items() if name not in gone}
        if known != self._known:
            self._known = known
            self._changed.set()
        initial_members = {
            name: at for name, at in self._initial_members.items() if name not in gone
        }
        return self._known | initial_members

    async def run(self) -> None:
        """Keep it on disk until cancelled; without space there it is tried again.

        Raises:
            OSError: The disk failed.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await asyncio.to_thread(self._checkpoint.save, dict(self._known))
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                _log.warning("node_addresses_write_failed", reason=str(error))
                await asyncio.sleep(_AGAIN_S)
                self._changed.set()


_LOOK_S: Final = 0.5
"""Seconds between two looks: a learner catches up, a node comes to life, without a word."""


class Joining:
    """Used on the event loop.

    Args:
        node: This one.
        group: Its members are changed.
        controlling: Knows whether this node decides, and who lives.
    """

    def __init__(self, node: NodeId, group: MetadataGroup, controlling: ControllerService) -> None:
        self._node = node
        self._group = group
        self._controlling = controlling
        self._wanted = asyncio.Event()

    def look(self) -> None:
        """Nodes or members are other ones."""
        self._wanted.set()

    async def run(self) -> None:
        """Take step after step until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._wanted.wait()
            self._wanted.clear()
            controller = self._controlling.controller
            if not controller.decides:
                continue
            nodes, members = self._group.state.nodes, self._group.member.membership
            step = next_step(members, nodes, controller.live(), self._node)
            if step is not None and await self._take(step):
                self._wanted.set()

    async def _take(self, step: Step) -> bool:
        """Take a membership step; return whether it succeeded, else it is retried later."""
        member = self._group.member
        try:
            if isinstance(step, HandOver):
                await member.transfer(step.to)
                return False  # what comes of it shows
            await member.change(step)
        except (NotLeaderError, BusyError, UnavailableError, RefusedError) as error:
            _log.debug("membership_change_failed", change=str(step), reason=str(error))
            return False
        _log.info("membership_changed", change=str(step))
        return True


_TRY_S: Final = 10.0
"""Seconds one try may take; it is repeated."""
_REGISTER_AGAIN_S: Final = 0.5
"""Seconds until it is tried again."""
_FAREWELL_S: Final = 1.0
"""Seconds in which a node that was removed answers what it was asked, above all to be removed."""


class NotWantedError(ConfigError):
    """The cluster does not let this node take part, or no more."""

    def __init__(self, refused: Refused) -> None:
        fix = "correct node, or the section cluster"
        if refused.code == "NODE_REMOVED":
            fix = "let it join as a new node: another name, and an empty data_dir"
        super().__init__(f"the cluster refuses this node: {refused.message}", fix=fix)


class Registration:
    """Registration of one node. Used on the event loop.

    Args:
        group: The metadata group that stores it.
        command: Returns the node's current registration.
        on_done: Called after each registration.
        on_lost: Called when the cluster knows the node by another disk.
    """

    def __init__(
        self,
        group: MetadataGroup,
        command: Callable[[], RegisterNode],
        on_done: Callable[[], None],
        on_lost: Callable[[Halt], None],
    ) -> None:
        self._group = group
        self._command = command
        self._on_done = on_done
        self._on_lost = on_lost
        self._wanted = asyncio.Event()
        self._wanted.set()

    def again(self) -> None:
        """The cluster does not have it, or what it has is out of date."""
        self._wanted.set()

    async def run(self) -> None:
        """Register whenever that is wanted, at first at once, until cancelled.

        Raises:
            NotWantedError: The cluster refuses.
        """
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                result = await self._group.change(self._command(), timeout_s=_TRY_S, anyone=True)
            except UnavailableError as error:
                _log.warning("node_registration_failed", reason=str(error))
                await asyncio.sleep(_REGISTER_AGAIN_S)
                self._wanted.set()
                continue
            if isinstance(result, Refused) and result.code == OTHER_DISK:
                self._on_lost(Halt(HaltCause.DATA_LOST, result.message))
                continue
            if isinstance(result, Refused):
                await asyncio.sleep(_FAREWELL_S)
                raise NotWantedError(result)
            _log.info("node_registered")
            self._on_done()


_ASIDE_S: Final = 5.0
"""Seconds another node has to lead in place of one without space."""

_APART: Final = "takes_no_part"
"""Name of the request with which a node tells another that it takes no part."""

_APART_S: Final = 1.0
_APART_NS: Final = 5_000_000_000
"""Nanoseconds for which such a request counts."""

_REASON_LENGTH_MAX: Final = 500


Handler = Callable[[str, bytes], Awaitable[bytes]]
"""Answers a request: the asking node and the body; raises LogdError."""


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """Settings of a node and of its way to the others.

    Attributes:
        initial_members: The initial members of the group, with the address of each one's peer
            endpoint; the same on all of them. A node that is not among them joins through them.
            Later the state has the addresses.
        listen: Address of the own peer endpoint; port 0: any; None: there is none, for the node
            is alone.
        advertised: The own addresses for others, as known before it runs; without a peer address
            that of `listen`.
        rack: Failure domain of the node.
        boot: Id of this process.
        tls: TLS of the endpoint, and of the links to others; None: plain.
    """

    cluster: str
    node: NodeId
    directory: Path
    initial_members: Mapping[str, str]
    listen: str | None
    advertised: Addresses
    rack: str = ""
    boot: str
    tls: PeerTls | None = None
    raft: RaftConfig | None = None
    timing: Timing = msgspec.field(default_factory=Timing)


class Replicas(Protocol):
    """The replicas of a node. Called on the event loop."""

    def find(self, key: PartitionId) -> Hosted | None:
        """A replica that is open."""
        ...

    def reports(self, *, full: bool) -> tuple[PartitionReport, ...]:
        """Return the states of replicas: those that changed since the last report, or all."""
        ...

    def unreachable(self) -> bool: ...

    def on_lease(self, *, held: bool) -> None:
        """Start or stop leading the partitions that the state assigns to this node."""
        ...

    def on_applied(self, command: Command, result: Result) -> None:
        """A command was applied to the state."""
        ...

    def on_restored(self) -> None:
        """The whole state is another one."""
        ...


_NOWHERE: Final = "127.0.0.1:0"
"""Registered as the peer address of a node that listens for no others."""


class ClusterNode:
    """One node, running. Used on the event loop.

    Args:
        settings: The node's settings.
        replicas: The node's replicas.
        rng: Election timeouts, and the id of a new storage.
        clock: Its monotonic time goes on while the machine sleeps.
        feeding: Limits of frames sent to replicas on other nodes.
        dispatcher: The daemon's, which its partitions use; None: it has no partitions.

    Attributes:
        member: Its part in the group.
        group: Changes and reads of the state.
        mesh: The links to the others.
        endpoint: Listener for other nodes.
        handlers: Handlers of other nodes' requests, by api.
        advertised: The own addresses as others are told them.
        controlling: Heartbeats, the lease, and the controller where it is.
        replication: Replication between replicas here and on other nodes.
        importing: Whether it has streams from before the cluster that are still to be taken over.
        watch: Told each command that was applied, and what came of it, after everybody else.

    Raises:
        CorruptError: The group's log is damaged: the node must not take part.
        RefusedError: The directory is another node's.
        OSError: The disk failed.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        replicas: Replicas,
        rng: random.Random,
        clock: Clock,
        feeding: ReplicaFetchSettings | None = None,
        dispatcher: LoopDispatcher | None = None,
    ) -> None:
        me = Identity(settings.cluster, settings.node)
        self.mesh = Mesh(me, rng=rng, tls=settings.tls)
        self._settings = settings
        self._clock, self._began_ns = clock, clock.monotonic_ns()
        self.advertised = settings.advertised
        self._storage_id = _identify(settings, rng)
        self._addresses = AddressBook(settings.directory / "peers", settings.initial_members)
        self._storage = _open_storage(settings)
        self._machine = ClusterMachine(self._on_applied, self._on_restored)
        config = settings.raft or RaftConfig(node=settings.node, group=settings.cluster)
        raft = Raft(
            msgspec.structs.replace(config, disk=self._storage_id), self._storage.recovered, rng
        )
        hooks = Hooks(self._send, self._on_leader, self._on_membership, self._on_stalled)
        self.member = Member(raft, self._storage, self._machine, hooks, clock)
        self.group = MetadataGroup(settings.node, self.member, self._machine, self.mesh)
        process = Process(node=settings.node, storage=self._storage_id, boot=settings.boot)
        self.controlling = ControllerService(process, settings.timing, self.group, self, clock)
        self.replication = Replication(
            me,
            replicas.find,
            self.mesh,
            dispatcher or LoopDispatcher(),
            clock=clock,
            settings=feeding or ReplicaFetchSettings(),
            tls=settings.tls,
        )
        self.group.admit = self.controlling.controller.admit
        self._joining = Joining(settings.node, self.group, self.controlling)
        self.handlers: dict[str, Handler] = {
            PROPOSE: self._propose,
            JOIN: self._pass_on,
            RANGE_API: self.replication.answer_range,
            DEDUP_API: self.replication.answer_dedup,
            _APART: self._receive_apart,
        }
        self._replicas = replicas
        self._clock = clock
        self._apart: dict[str, tuple[Halt, int]] = {}
        self.importing = False
        self.watch: Callable[[Command, Result], None] = lambda _command, _result: None
        self._registration = Registration(
            self.group, self._registered, self.controlling.look, self.member.halt
        )
        self._led_elsewhere, self._stalled = asyncio.Event(), asyncio.Event()
        self.endpoint = PeerServer(me, self, settings.tls)
        self._address = ""

    @property
    def name(self) -> NodeId:
        return self._settings.node

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self._settings.cluster

    @property
    def alone(self) -> bool:
        """True if it does not listen for other nodes."""
        return self._settings.listen is None

    @property
    def initial_members(self) -> frozenset[str]:
        """The nodes that founded the cluster."""
        return frozenset(self._settings.initial_members)

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return (self._clock.monotonic_ns() - self._began_ns) / 1e9

    def listen(self) -> str:
        """Begin to listen; returns the address of the peer endpoint.

        Raises:
            UnavailableError: It cannot be listened on.
        """
        listen = self._settings.listen
        self._address = _NOWHERE if listen is None else self.endpoint.listener.listen(listen)
        return self._address

    async def run(self) -> None:
        """Take part until cancelled.

        Raises:
            ExceptionGroup: `NotWantedError`, or what a part of it failed with.
        """
        assert self._address, "listen first"
        self._update_mesh()
        self.controlling.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._settings.listen is not None:
                    tasks.create_task(self.endpoint.listener.run(), name="peer endpoint")
                    tasks.create_task(self._announce_apart(), name="telling that it takes no part")
                tasks.create_task(self.member.run(), name="metadata group")
                tasks.create_task(self._registration.run(), name="registration")
                tasks.create_task(self._joining.run(), name="members")
                tasks.create_task(self._addresses.run(), name="addresses")
                tasks.create_task(self._step_aside(), name="space")
        finally:
            await self.controlling.close()
            await self.replication.close()
            await self.mesh.close()
            self.endpoint.listener.close()
            await asyncio.to_thread(self._storage.close)

    def check_takes_part(self, *, change: bool = False) -> None:
        """Look whether this node may speak for the cluster.

        Args:
            change: Whether something is to be changed; else what the node knows is enough.

        Raises:
            NotReadyError: It may not; other nodes may.
        """
        halted = self.member.halted
        if halted is not None and (change or not self.group.state.nodes):
            raise NotReadyError(f"node {self.name} takes no part: {halted.reason}")
        if not self.group.state.nodes:
            raise NotReadyError("this node does not know yet what the cluster has")

    def halt_of(self, node: str) -> Halt | None:
        """Why a node takes no part, as it has said lately; None: it has not."""
        if node == self.name:
            return self.member.halted
        halt, announced_ns = self._apart.get(node, (None, 0))
        return halt if announced_ns > self._clock.monotonic_ns() - _APART_NS else None

    def candidates(self) -> list[str]:
        """The nodes that can lead the metadata group in this one's place, by name."""
        up = {link.peer for link in self.mesh.links() if link.up}
        return sorted(self.member.membership.voters & up)

    async def hand_over(self, timeout_s: float, *, target: str | None = None) -> None:
        """Have another node lead the metadata group, if this one does: leases then go on."""
        candidates = [target] if target else self.candidates()
        if not self.member.leads or not candidates:
            return
        with suppress(TimeoutError, NotLeaderError, BusyError, RefusedError):
            async with asyncio.timeout(timeout_s):
                self._led_elsewhere.clear()
                await self.member.transfer(NodeId(candidates[0]))
                await self._led_elsewhere.wait()

    def on_raft(self, node: str, message: bytes) -> None:
        self.group.receive(node, message)

    def answer_at_once(self, node: str, api: str, body: bytes) -> bytes | None:
        del node
        return self.controlling.answer(body) if api == HEARTBEAT else None

    async def answer(self, node: str, api: str, body: bytes) -> bytes:
        handler = self.handlers.get(api)
        if handler is None:
            raise RefusedError("UNKNOWN_API", f"node {self._settings.node} knows no {api[:80]!r}")
        return await handler(node, body)

    async def replicate(self, node: str, channel: Channel) -> None:
        await self.replication.serve(node, channel)

    def imported(self) -> None:
        """Note that the import of standalone data is complete, or refused."""
        self.importing = False
        self._registration.again()

    def _registered(self) -> RegisterNode:
        settings, addresses = self._settings, self.advertised
        if not addresses.peer:
            addresses = replace(addresses, peer=self._address)
        return RegisterNode(
            node=settings.node,
            addresses=addresses,
            rack=settings.rack,
            storage=self._storage_id,
            boot=settings.boot,
            adopting=self.importing,
        )

    def reports(self, *, full: bool) -> tuple[PartitionReport, ...]:
        return self._replicas.reports(full=full)

    def unreachable(self) -> bool:
        return self._replicas.unreachable()

    def on_lease(self, *, held: bool) -> None:
        if held:
            _log.info("lease_acquired", node=self._settings.node)
        else:
            _log.info("lease_lost", node=self._settings.node)
        self._replicas.on_lease(held=held)

    def on_unregistered(self) -> None:
        self._registration.again()

    async def _announce_apart(self) -> None:
        """Tell the others, again and again, if this node takes no part although it lives."""
        while True:
            await asyncio.sleep(_APART_S)
            halted = self.member.halted
            if halted is None:
                continue
            body = write_document({"reason": halted.reason, "cause": str(halted.cause)})
            for link in self.mesh.links():
                with suppress(LogdError):
                    await self.mesh.ask(link.peer, _APART, body, timeout_s=_APART_S)

    async def _receive_apart(self, node: str, body: bytes) -> bytes:
        """Take in that another node takes no part."""
        document = read_document(body, where=_APART)
        reason = str(document["reason"])[:_REASON_LENGTH_MAX]
        halt = Halt(HaltCause.of(document.get("cause"), reason), reason)
        if self.halt_of(node) is None:
            _log.error("metadata_member_halted", node=node, cause=str(halt.cause), reason=reason)
        self._apart[node] = halt, self._clock.monotonic_ns()
        return b""

    async def _propose(self, _node: str, body: bytes) -> bytes:
        return await self.group.answer(body)

    async def _pass_on(self, _node: str, body: bytes) -> bytes:
        return await self.group.pass_on(body)

    def _send(self, message: Message) -> None:
        self.group.send(message)

    def _on_applied(self, command: Command, result: Result) -> None:
        if isinstance(command, RegisterNode | RemoveNode | Drain):
            self._update_mesh()
            self._joining.look()
        self.controlling.on_applied(command, result)
        self._replicas.on_applied(command, result)
        self.watch(command, result)

    def _on_restored(self) -> None:
        self._update_mesh()
        self.controlling.on_restored()
        self._replicas.on_restored()

    def _on_leader(self, _term: int, leader: NodeId | None) -> None:
        self.controlling.on_leader(leader)
        self.group.leader_changed()
        if leader not in (None, self.name):
            self._led_elsewhere.set()

    def _on_membership(self, _members: Membership, _committed: bool) -> None:
        self._update_mesh()
        self._joining.look()

    def _on_stalled(self) -> None:
        self._stalled.set()

    async def _step_aside(self) -> None:
        """Leave the metadata to a node whose disk has space, while this one's has none."""
        while True:
            await self._stalled.wait()
            self._stalled.clear()
            await self.hand_over(_ASIDE_S)

    def _update_mesh(self) -> None:
        nodes = self._machine.state.nodes
        self.mesh.update(self._addresses.update(nodes, self.member.membership.members))
        there = (node for node in nodes.values() if node.state is not NodeState.REMOVED)
        self.replication.update({node.id: node.addresses.peer for node in there})


def _identify(settings: ClusterSettings, rng: random.Random) -> str:
    """The id of the storage; a new one when the directory holds no part of the group's log yet.

    Whatever else is left of an earlier disk: votes and acknowledgements were in that log.

    Raises:
        RefusedError: `OTHER_MEMBER`: the directory is another node's.
    """
    settings.directory.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(settings.directory / "node")
    wanted = {"cluster": settings.cluster, "node": settings.node}
    found = checkpoint.load()
    if found is not None and {key: found.get(key) for key in wanted} != wanted:
        message = f"it is node {found.get('node')!r} of cluster {found.get('cluster')!r}"
        raise RefusedError("OTHER_MEMBER", f"{settings.directory}: {message}")
    if found is None or _is_empty(settings.directory / "raft"):
        found = wanted | {"storage": f"{rng.getrandbits(64):016x}"}
        checkpoint.save(found)
    return str(found["storage"])


def _is_empty(directory: Path) -> bool:
    return not directory.is_dir() or not any(directory.iterdir())


def _open_storage(settings: ClusterSettings) -> RaftStorage:
    directory = settings.directory / "raft"
    group, node = settings.cluster, settings.node
    if _is_empty(directory):
        founds = settings.node in settings.initial_members
        first = (
            membership_of([NodeId(name) for name in settings.initial_members]) if founds else None
        )
        RaftStorage.create(directory, group=group, node=node, initial_members=first)
    storage = RaftStorage.open(directory, group=group, node=node)
    for finding in storage.findings:
        _log.warning("metadata_recovered", finding=str(finding))
    return storage
