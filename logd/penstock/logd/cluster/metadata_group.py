"""The metadata group: any node changes and reads the cluster's state; the leader decides.

A change is proposed here if this node leads, and is otherwise handed to the node that does. While
no node leads, or a proposal is surely lost, it is tried again until the time is over. When nobody
knows what came of it, the client learns so: the state will show.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias, assert_never

import structlog

from penstock.logd.errors import DATA_LOST, CorruptError, RefusedError, UnavailableError
from penstock.logd.metadata.codec import read_as, read_document, write_document
from penstock.logd.metadata.commands import (
    ChangeIsr,
    Command,
    IsrChange,
    RegisterNode,
    decode_command,
    encode_command,
)
from penstock.logd.metadata.records import NodeState
from penstock.logd.metadata.state import ClusterState, Each, Refused, Result
from penstock.logd.metadata.tables import Done
from penstock.logd.net.peer_identity import Identity
from penstock.logd.net.peer_link import PeerLink, Then, UnreachableError
from penstock.logd.net.peer_tls import PeerTls
from penstock.logd.raft import BusyError, Message, NotLeaderError, Snapshot
from penstock.logd.raft.codec import decode_message, encode_message
from penstock.logd.raft.node import LostError, Member
from penstock.logd.replication.events import NodeId

OnApplied: TypeAlias = Callable[[Command, Result], None]


class ClusterMachine:
    """The cluster's state machine; see `penstock.logd.raft.node.StateMachine`.

    Args:
        on_applied: Called with each command and its result, after the state has changed.
        on_restored: Called when a snapshot has replaced the whole state.

    Attributes:
        state: The state after the last command; only this machine changes it.
    """

    def __init__(
        self,
        on_applied: OnApplied = lambda _command, _result: None,
        on_restored: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = ClusterState()
        self._on_applied = on_applied
        self._on_restored = on_restored

    def apply(self, index: int, command: bytes) -> Result:
        """Apply a committed command; the same on every node.

        Raises:
            CorruptError, LaterVersionError: It is not understood.
        """
        decoded = decode_command(command)
        result = self.state.apply(index, decoded)
        self._on_applied(decoded, result)
        return result

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state.

        Raises:
            CorruptError, LaterVersionError: It is not understood.
        """
        self.state = ClusterState.restore(snapshot.data)
        self._on_restored()

    def snapshot(self) -> bytes:
        """The state as it is."""
        return self.state.snapshot()


class Mesh:
    """Keeps a link to each node that is reported. Used on the event loop.

    Args:
        me: This node.
        rng: Spreads the tries to connect.
        tls: Between nodes.
    """

    def __init__(self, me: Identity, *, rng: random.Random, tls: PeerTls | None = None) -> None:
        self._me = me
        self._rng = rng
        self._tls = tls
        self._links: dict[str, tuple[PeerLink, asyncio.Task[None]]] = {}

    def links(self) -> list[PeerLink]:
        """Every link, by name of the peer."""
        return [link for _, (link, _) in sorted(self._links.items())]

    def update(self, addresses: Mapping[str, str]) -> None:
        """Have a link to each of these nodes, at its address, and to no other; never to oneself."""
        wanted = {node: at for node, at in addresses.items() if node != self._me.node}
        for node, (link, task) in list(self._links.items()):
            if wanted.get(node) != link.address:
                task.cancel()
                del self._links[node]
        for node, address in wanted.items():
            if node not in self._links:
                link = PeerLink(self._me, node, address, rng=self._rng, tls=self._tls)
                self._links[node] = link, asyncio.create_task(link.run(), name=f"link to {node}")

    def post(self, node: str, message: bytes) -> None:
        """Send one of Raft's messages, if there is a link that can take it now."""
        found = self._links.get(node)
        if found is not None:
            found[0].post(message)

    async def ask(self, node: str, api: str, body: bytes, *, timeout_s: float) -> bytes:
        """Ask a node for something and wait for the answer.

        Raises:
            RefusedError, UnreachableError, UnavailableError: As `PeerLink.ask`.
        """
        found = self._links.get(node)
        if found is None:
            raise UnreachableError(f"node {node!r} is not known here")
        return await found[0].ask(api, body, timeout_s=timeout_s)

    def call(self, node: str, api: str, body: bytes, then: Then) -> Callable[[], None]:
        """Ask a node for something, now; as `PeerLink.call`.

        Returns:
            What ends the waiting.

        Raises:
            RefusedError, UnreachableError: As `PeerLink.call`.
        """
        found = self._links.get(node)
        if found is None:
            raise UnreachableError(f"node {node!r} is not known here")
        link = found[0]
        return partial(link.forget, link.call(api, body, then))

    async def close(self) -> None:
        """End every link."""
        tasks = [task for _, task in self._links.values()]
        self._links.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


PROPOSE: Final = "propose"
"""The request with which a node hands a command to the leader."""

JOIN: Final = "join"
"""The request with which a node that knows of no leader hands a command to any other."""

OTHER_DISK: Final = "OTHER_DISK"
"""Refuses to register a node under a name whose disk, by the state, is another one."""

_AGAIN_S: Final = 0.05
"""Seconds until the next try, while no node leads; a new leader is asked at once."""
_INSIST_S: Final = 10.0
"""Seconds one try may take of what is tried until it is done."""
_PAUSE_S: Final = 0.5
"""Seconds between two of those: a node that takes no part is refused at once, and for long."""

_log = structlog.get_logger()

Admit = Callable[[IsrChange], Refused | None]


class MetadataGroup:
    """One node's access to the metadata. Used on the event loop.

    Args:
        node: This one.
        member: This node's member of the group.
        machine: The member's state machine.
        mesh: The way to the other nodes.

    Attributes:
        member, mesh: The arguments.
        admit: Asked on the node that leads before an ISR is proposed; a refusal: it is not.
    """

    def __init__(self, node: NodeId, member: Member, machine: ClusterMachine, mesh: Mesh) -> None:
        self._node = node
        self.member = member
        self._machine = machine
        self.mesh = mesh
        self.admit: Admit = lambda _: None
        self._turned = asyncio.Event()

    @property
    def state(self) -> ClusterState:
        """The cluster's state as far as this node has it."""
        return self._machine.state

    @property
    def leader(self) -> NodeId | None:
        """The controller, as far as known."""
        return self.member.leader

    def leader_changed(self) -> None:
        """Have those that wait for a leader try again at once."""
        self._turned.set()
        self._turned = asyncio.Event()

    async def change(self, command: Command, *, timeout_s: float, anyone: bool = False) -> Result:
        """Have a command applied.

        Args:
            command: The command.
            timeout_s: Seconds to try.
            anyone: Ask other nodes for the leader while this one knows of none: it may not belong
                to the group yet, or no more.

        Returns:
            What became of it; a refusal by the state's rules is a result, too.

        Raises:
            RefusedError: `TOO_LARGE`, or the leader does not take it.
            UnavailableError: Not in time; it may still be done.
        """
        data = encode_command(command)
        problem: Exception = UnavailableError("no node leads")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    turned = self._turned
                    try:
                        return await self._attempt(data, timeout_s, anyone=anyone)
                    except (NotLeaderError, LostError, BusyError, UnreachableError) as error:
                        problem = error
                    await _wait_for_turn(turned)
        except TimeoutError:
            message = f"the metadata was not changed within {timeout_s:g} s: {problem}"
            raise UnavailableError(message) from None

    async def read(self, *, timeout_s: float) -> ClusterState:
        """The state with everything that was committed when this was called.

        Raises:
            UnavailableError: Not in time.
        """
        problem: Exception = UnavailableError("no node leads")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    turned = self._turned
                    try:
                        await self.member.read()
                    except (NotLeaderError, BusyError) as error:
                        problem = error
                    else:
                        return self.state
                    await _wait_for_turn(turned)
        except TimeoutError:
            message = f"the metadata cannot be read within {timeout_s:g} s: {problem}"
            raise UnavailableError(message) from None

    async def insist(self, command: Command) -> Result:
        """Have a command applied, however long that takes."""
        while True:
            with contextlib.suppress(UnavailableError):
                return await self.change(command, timeout_s=_INSIST_S)
            await asyncio.sleep(_PAUSE_S)

    async def catch_up(self) -> None:
        """Wait, however long it takes, until the state has all that was committed when asked."""
        while True:
            try:
                await self.read(timeout_s=_INSIST_S)
            except UnavailableError as error:
                _log.warning("metadata_read_failed", reason=str(error))
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    def send(self, message: Message) -> None:
        """Raft's way to another member."""
        self.mesh.post(message.recipient, encode_message(message))

    def receive(self, node: str, data: bytes) -> None:
        """Take one of Raft's messages that a node sent.

        Raises:
            CorruptError: It is none, or not that node's.
        """
        message = decode_message(data)
        if message.sender != node:
            raise CorruptError(f"node {node} sends a message of {message.sender}")
        self.member.receive(message)

    async def answer(self, body: bytes) -> bytes:
        """Propose what another node hands over, because this one leads.

        Raises:
            RefusedError: `NOT_LEADER`, with the leader as far as known; `LOST`; `BUSY`.
            UnavailableError: It is unknown whether it is done.
        """
        try:
            return _encode_result(await self._propose(body))
        except NotLeaderError as error:
            raise RefusedError("NOT_LEADER", str(error), leader=error.leader or "") from None
        except LostError as error:
            raise RefusedError("LOST", str(error)) from None
        except BusyError as error:
            raise RefusedError("BUSY", str(error)) from None

    async def pass_on(self, body: bytes) -> bytes:
        """Hand what a node asks that knows of no leader to the one that leads.

        Raises:
            RefusedError, UnavailableError: As `answer`, or as the leader says.
        """
        leader = self.member.leader
        if leader is None or leader == self._node:
            return await self.answer(body)
        return await self.mesh.ask(leader, PROPOSE, body, timeout_s=_INSIST_S)

    async def _attempt(self, data: bytes, timeout_s: float, *, anyone: bool) -> Result:
        leader = self.member.leader
        if leader == self._node:
            return await self._propose(data)
        if leader is not None:
            return await self._ask(leader, PROPOSE, data, timeout_s)
        for link in self.mesh.links() if anyone else ():
            if link.up:
                with contextlib.suppress(UnavailableError):  # one that has halted, too
                    return await self._ask(link.peer, JOIN, data, timeout_s)
        raise NotLeaderError(None)

    async def _ask(self, node: str, api: str, data: bytes, timeout_s: float) -> Result:
        try:
            return _decode_result(await self.mesh.ask(node, api, data, timeout_s=timeout_s))
        except RefusedError as error:
            match error.code:
                case "NOT_LEADER":
                    raise NotLeaderError(None) from None
                case "LOST":
                    raise LostError(str(error)) from None
                case "BUSY":
                    raise BusyError(str(error)) from None
                case _:
                    raise

    async def _propose(self, data: bytes) -> Result:
        command = decode_command(data)
        if isinstance(command, ChangeIsr):
            return await self._propose_isr(command)
        if isinstance(command, RegisterNode) and (refusal := self._other_disk(command)):
            return refusal
        result: Result = await self.member.propose(data)
        return result

    def _other_disk(self, command: RegisterNode) -> Refused | None:
        """Why a node is not registered: it has lost the disk that it was registered with.

        The state's own rule stays as it is, for what was committed must mean the same for ever.
        """
        before = self.state.nodes.get(command.node)
        if before is None or before.state is NodeState.REMOVED:
            return None
        noted = self.member.membership.disk_of(NodeId(command.node)) or before.storage
        if command.storage == noted:
            return None
        return Refused(
            code=OTHER_DISK,
            message=f"{DATA_LOST}: the cluster knows it by directory id {noted},"
            f" and its own is {command.storage}",
        )

    async def _propose_isr(self, command: ChangeIsr) -> Result:
        """Propose those changes that are admitted."""
        refusals = [self.admit(change) for change in command.changes]
        admitted = zip(command.changes, refusals, strict=True)
        kept = tuple(change for change, refusal in admitted if refusal is None)
        results: tuple[Done | Refused, ...] = ()
        if kept:
            result = await self.member.propose(encode_command(ChangeIsr(changes=kept)))
            if not isinstance(result, Each):
                raise AssertionError(result)
            results = result.results
        left = iter(results)
        return Each(results=tuple(refusal or next(left) for refusal in refusals))


async def _wait_for_turn(turned: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_AGAIN_S):
            await turned.wait()


def _encode_result(result: Result) -> bytes:
    match result:
        case Done():
            return write_document({"done": result})
        case Refused():
            return write_document({"refused": result})
        case Each():
            return write_document({"each": [_part(part) for part in result.results]})
        case _:
            assert_never(result)


def _part(result: Done | Refused) -> dict[str, Done | Refused]:
    return {"done": result} if isinstance(result, Done) else {"refused": result}


def _decode_result(data: bytes) -> Result:
    document = read_document(data, where="answer of the controller")
    if "each" in document:
        return Each(results=tuple(_read_part(part) for part in document["each"]))
    return _read_part(document)


def _read_part(document: dict[str, object]) -> Done | Refused:
    where = "answer of the controller"
    if "done" in document:
        return read_as(Done, document["done"], where=where)  # type: ignore[no-any-return]
    return read_as(Refused, document.get("refused"), where=where)  # type: ignore[no-any-return]
