"""Calls to the controller, which alone knows the live nodes.

Any node may be asked; it hands the question to the one that leads the metadata group.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from penstock.logd.cluster.import_standalone import check_imported
from penstock.logd.cluster.node import ClusterNode
from penstock.logd.controller.group_messages import MemberAnswer, MemberBeat
from penstock.logd.controller.placement import place_stream
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.metadata.codec import Document, read_as, read_document, write_document
from penstock.logd.metadata.records import PartitionKey, ReplicationOptions
from penstock.logd.metadata.state import ClusterState, Refused
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import Done
from penstock.logd.net.peer_link import UnreachableError
from penstock.logd.stream_options import ReplicationSettings

_AGAIN: Final = ("NOT_CONTROLLER", "NOT_YET")
"""Refusals after which it is asked again."""

_AGAIN_S: Final = 0.05
_APPLY_S: Final = 10.0
_ELECT_S: Final = 2.0
"""Seconds until an election that was proposed is asked for again."""

_Decide = Callable[[Document], Awaitable[Document]]


class ControllerClient:
    """Asks the controller, and answers where this node is it. Used on the event loop.

    Args:
        node: This node's part in the cluster.
        check_files: Raises `TOO_MANY_STREAMS` where this node has too few open files for so many
            further replicas.
    """

    def __init__(self, node: ClusterNode, check_files: Callable[[int], None]) -> None:
        self._node = node
        self._check_files = check_files
        self._decide: dict[str, _Decide] = {
            "create_stream": self._create,
            "rebalance": self._rebalance,
            "elect_unclean": self._elect,
            "step_down": self._step_down,
            "group_beat": self._beat,
            "group_leave": self._leave,
        }
        for api in self._decide:
            node.handlers[api] = self._handler(api)

    async def create(
        self,
        config: StreamConfig,
        options: ReplicationOptions,
        *,
        partitions: int,
        timeout_s: float,
        creator: str = "",
    ) -> Done:
        """Create a stream, or find it.

        Raises:
            RefusedError: The state's rules do not allow it, `NOT_ENOUGH_NODES`, or
                `TOO_MANY_STREAMS`: the controller itself has too few open files.
            UnavailableError: Not in time; it may still be done.
        """
        request = {
            "config": config,
            "options": options,
            "partitions": partitions,
            "nonce": secrets.token_hex(8),
            "creator": creator,
        }
        answer = await self._ask("create_stream", request, timeout_s)
        done: Done = read_as(Done, answer, where="answer of the controller")
        return done

    async def rebalance(self, *, timeout_s: float) -> None:
        """Have leaderships and replicas evened out now.

        Raises:
            UnavailableError: Not in time.
        """
        await self._ask("rebalance", {}, timeout_s)

    async def step_down(self, target: str | None, *, timeout_s: float) -> str:
        """Have another node lead the metadata group; which one.

        Raises:
            RefusedError: `NO_CANDIDATE`.
            UnavailableError: Not in time.
        """
        answer = await self._ask("step_down", {"target": target}, timeout_s)
        return str(answer["controller"])

    async def elect(self, key: PartitionKey, *, timeout_s: float) -> Document:
        """Elect the best replica that is there, though it lacks acked records.

        Returns:
            `leader`; `end_offset`, where its log ended; `known_end`, where those in sync before it
            ended at their last heartbeat. The latter two are None if unknown.

        Raises:
            RefusedError: `HAS_LEADER`, `IN_SYNC_ALIVE`, `NO_REPLICA`.
            UnavailableError: Not in time; it may still be done.
        """
        request = {"stream": key.stream, "partition": key.partition}
        return await self._ask("elect_unclean", request, timeout_s)

    async def beat(self, beat: MemberBeat, *, timeout_s: float) -> MemberAnswer:
        """Tell the coordinator of groups that a member is there.

        Raises:
            RefusedError: `UNAVAILABLE`: it gives no answer now.
            UnavailableError: Not in time.
        """
        answer = await self._ask("group_beat", {"beat": beat}, timeout_s)
        found: MemberAnswer = read_as(MemberAnswer, answer["answer"], where="answer to a member")
        return found

    async def leave(self, group: str, member: str, *, timeout_s: float) -> None:
        """Tell the coordinator of groups that a member wants to be none.

        Raises:
            UnavailableError: Not in time.
        """
        await self._ask("group_leave", {"group": group, "member": member}, timeout_s)

    async def _ask(self, api: str, request: Document, timeout_s: float) -> Document:
        body = write_document(request)
        problem: Exception = UnavailableError("no node leads")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return read_document(await self._once(api, body, timeout_s), where=api)
                    except UnreachableError as error:
                        problem = error
                    except RefusedError as error:
                        if error.code not in _AGAIN:
                            raise
                        problem = error
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            message = f"the controller has not answered within {timeout_s:g} s: {problem}"
            raise UnavailableError(message) from None

    async def _once(self, api: str, body: bytes, timeout_s: float) -> bytes:
        leader = self._node.group.leader
        if leader is None:
            raise UnreachableError("no node leads the metadata group")
        if leader == self._node.name:
            return await self._node.handlers[api](self._node.name, body)
        return await self._node.mesh.ask(leader, api, body, timeout_s=timeout_s)

    def _handler(self, api: str) -> Callable[[str, bytes], Awaitable[bytes]]:
        async def answer(_node: str, body: bytes) -> bytes:
            if not self._node.controlling.controller.decides:
                message = f"node {self._node.name} is not the controller"
                raise RefusedError("NOT_CONTROLLER", message)
            return write_document(await self._decide[api](read_document(body, where=api)))

        return answer

    async def _create(self, request: Document) -> Document:
        where = "create_stream"
        controller = self._node.controlling.controller
        if not controller.knows_nodes():
            message = f"node {self._node.name} does not know yet which nodes are there"
            raise RefusedError("NOT_CONTROLLER", message)
        command = place_stream(
            self._node.group.state,
            controller.live(),
            read_as(StreamConfig, request.get("config"), where=where),
            read_as(ReplicationOptions, request.get("options"), where=where),
            partitions=read_as(int, request.get("partitions"), where=where),
            nonce=read_as(str, request.get("nonce"), where=where),
        )
        if command.config.name not in self._node.group.state.streams:
            here = [one for one in command.placements if self._node.name in one.replicas]
            self._check_files(len(here))
        command = replace(command, creator=read_as(str, request.get("creator", ""), where=where))
        result = await self._node.group.change(command, timeout_s=_APPLY_S)
        if isinstance(result, Refused):
            raise RefusedError(result.code, result.message)
        assert isinstance(result, Done), result
        return {"changed": result.changed, "incarnation": result.incarnation}

    async def _rebalance(self, request: Document) -> Document:
        del request
        self._node.controlling.rebalance()
        return {}

    async def _step_down(self, request: Document) -> Document:
        target = request.get("target")
        if target == self._node.name:  # it is the controller already
            return {"controller": target}
        candidates = self._node.candidates()
        if (target is not None and target not in candidates) or not candidates:
            message = f"node {target or 'other than ' + self._node.name} is not there to decide"
            raise RefusedError(
                "NO_CANDIDATE", f"{message}; those that are: {', '.join(candidates) or 'none'}"
            )
        await self._node.hand_over(_ELECT_S, target=target)
        leader = self._node.group.leader
        if leader in (None, self._node.name):
            raise RefusedError("NOT_YET", f"node {target or candidates[0]} has not taken over yet")
        return {"controller": leader}

    async def _elect(self, request: Document) -> Document:
        key = PartitionKey(str(request["stream"]), int(request["partition"]))
        controller, state = self._node.controlling.controller, self._node.group.state
        before = state.partition(key)
        refused = self._node.controlling.force(key)
        if refused is not None or before is None:
            assert refused is not None, key
            raise RefusedError(refused.code, refused.message)
        known_end = controller.known_end(key, before[1].isr)
        until = asyncio.get_running_loop().time() + _ELECT_S
        while asyncio.get_running_loop().time() < until:
            now = state.partition(key)
            if now is not None and now[1].unclean_elections > before[1].unclean_elections:
                leader = now[1].last_leader or ""
                end = controller.known_end(key, [leader])
                return {"leader": leader, "end_offset": end, "known_end": known_end}
            await asyncio.sleep(_AGAIN_S / 5)
        raise RefusedError("NOT_YET", f"{key.stream}/{key.partition}: nothing was decided")

    async def _beat(self, request: Document) -> Document:
        beat = read_as(MemberBeat, request.get("beat"), where="group_beat")
        return {"answer": self._node.controlling.coordinating.hear(beat)}

    async def _leave(self, request: Document) -> Document:
        self._node.controlling.coordinating.leave(str(request["group"]), str(request["member"]))
        return {}


_REPLICAS: Final = 3
"""Default number of replicas; a smaller cluster has fewer."""

_GONE_S: Final = 5.0
"""Seconds for nodes to remove the data of a stream that was deleted, before its name is free. Those
that are there need less than one."""


_INITIAL_MEMBERS_S: Final = 30.0
"""Seconds of a node for which it waits for initial members that have never come."""


async def make_stream(
    cluster: ClusterNode,
    decisions: ControllerClient,
    config: StreamConfig,
    replication: ReplicationSettings,
    *,
    timeout_s: float,
    creator: str = "",
) -> Done:
    """Create a stream, or find it.

    Where nobody says how many replicas, one that is there has as many as it was made with: there
    may have been fewer nodes then, or it is made on two nodes at once that know of different ones.
    Where one of that name was deleted just now, its data is waited for to be gone.

    Raises:
        RefusedError: As `ControllerClient.create`; `STREAM_DELETING` if nodes still have such data
        then. UnavailableError: Not in time; it may still be done.
    """
    until = asyncio.get_running_loop().time() + min(_GONE_S, timeout_s)
    while True:
        factor = _factor(await cluster.group.read(timeout_s=timeout_s), config.name)
        try:
            return await decisions.create(
                config,
                replication.options(factor=factor),
                partitions=replication.partitions,
                timeout_s=timeout_s,
                creator=creator,
            )
        except RefusedError as error:
            if error.code == "STREAM_DELETING" and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(_AGAIN_S)
                continue
            said = replication.replication_factor is not None
            if error.code != "STREAM_DIFFERS" or said:
                raise
            now = await cluster.group.read(timeout_s=timeout_s)
            if _factor(now, config.name) == factor:  # it differs in something else
                raise


async def make_internal(
    cluster: ClusterNode, decisions: ControllerClient, config: StreamConfig, *, timeout_s: float
) -> None:
    """Create a stream of logd's own, as whichever node is first to need it would have it.

    Raises:
        RefusedError: As `ControllerClient.create`.
        UnavailableError: Not in time, or not yet: how many replicas it gets is seen only when every
            initial member has come once, or does not come; and a node may bring one of its name.
    """
    state = await cluster.group.read(timeout_s=timeout_s)
    absent = sorted(cluster.initial_members - state.nodes.keys())
    if absent and cluster.age_s < _INITIAL_MEMBERS_S:
        raise UnavailableError(f"stream {config.name} is not made yet: no word of {absent[0]}")
    check_imported(state)
    try:
        await make_stream(cluster, decisions, config, ReplicationSettings(), timeout_s=timeout_s)
    except RefusedError as error:
        if error.code != "STREAM_DIFFERS":  # another node made it, by its own configuration
            raise
    await cluster.group.read(timeout_s=timeout_s)


def _factor(state: ClusterState, name: str) -> int:
    found = state.streams.get(name)
    if found is not None and found.is_open:
        return found.options.replication_factor
    return min(_REPLICAS, len(state.active()) or 1)
