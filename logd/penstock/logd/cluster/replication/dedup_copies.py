"""Copies of a leader's dedup state on their way to a replica that lacks some of it.

The bytes are those of the snapshot's file (`penstock.logd.partition.producer_snapshot`), with
version and CRC, in pieces that one message between nodes holds. The leader's node keeps them until
the last piece was sent. Like frames they are not encrypted with the keys of a log's directory,
which each node has its own of: that is what TLS between nodes is for.
"""

import asyncio
import secrets
from concurrent.futures import Executor
from typing import Final

from msgspec import Struct

from penstock.base.clock import Clock
from penstock.logd.cluster.metadata_group import Mesh
from penstock.logd.cluster.replication.ranges import PIECE_BYTES
from penstock.logd.cluster.replication.sender import Find
from penstock.logd.cluster.replication.wire import (
    DedupRequest,
    decode_dedup_request,
    encode_dedup_request,
)
from penstock.logd.errors import RefusedError
from penstock.logd.limits import DEDUP_COPIES_MAX, DEDUP_COPY_BYTES_MAX
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.replication.session import PartitionId

DEDUP_API: Final = "dedup"
"""Name of the request between nodes."""

_ASK_S: Final = 10.0
"""Seconds an answer may take."""

_KEPT_NS: Final = 30_000_000_000
"""Nanoseconds that chunks are kept for a node that requests no more of them."""


class _Copy(Struct):
    """A snapshot that is being sent.

    Attributes:
        data: Its bytes; a task while they are made.
        asked_ns: Time of the last request for a chunk.
    """

    data: asyncio.Future[bytes]
    asked_ns: int


class DedupCopies:
    """Dedup copies of one node. Used on the event loop.

    Args:
        find: Returns the replicas here.
        mesh: Carries the requests.
        executor: Encodes the copies on its threads.
        clock: The node's monotonic time.
    """

    def __init__(self, find: Find, mesh: Mesh, executor: Executor, clock: Clock) -> None:
        self._find = find
        self._mesh = mesh
        self._executor = executor
        self._clock = clock
        self._copies: dict[tuple[str, int], _Copy] = {}

    async def fetch(self, node: str, key: PartitionId, leader_epoch: int) -> ProducerSnapshot:
        """Fetch a leader's dedup state.

        Raises:
            RefusedError: It does not lead, has too many to send, or sends more than is taken.
            LogdError: The node cannot be asked.
            CorruptError: What came is damaged.
        """
        request = DedupRequest(key, leader_epoch, secrets.randbits(62))
        data = bytearray()
        while True:
            body = encode_dedup_request(request._replace(position=len(data)))
            piece = await self._mesh.ask(node, DEDUP_API, body, timeout_s=_ASK_S)
            data += piece
            if len(data) > DEDUP_COPY_BYTES_MAX:
                message = f"node {node} sends more than {DEDUP_COPY_BYTES_MAX} bytes of dedup state"
                raise RefusedError("TOO_LARGE", message)
            if len(piece) < PIECE_BYTES:
                break
        return await asyncio.to_thread(ProducerSnapshot.decode, bytes(data), f"node {node}")

    async def answer(self, node: str, body: bytes) -> bytes:
        """Answer a node's request `DEDUP_API` with a piece.

        Raises:
            CorruptError: It is none.
            RefusedError: `NOT_LEADER`, `BUSY`, `UNKNOWN_SNAPSHOT`.
        """
        request = decode_dedup_request(body)
        name, now_ns = (node, request.snapshot), self._clock.monotonic_ns()
        self._let_go(now_ns)
        copy = self._copies.get(name)
        if copy is None:
            if request.position:
                raise RefusedError("UNKNOWN_SNAPSHOT", f"snapshot {request.snapshot} is not kept")
            copy = self._copies[name] = _Copy(self._make(request), now_ns)
        copy.asked_ns = now_ns
        try:
            data = await asyncio.shield(copy.data)
        except BaseException:
            self._copies.pop(name, None)
            raise
        piece = data[request.position : request.position + PIECE_BYTES]
        if len(piece) < PIECE_BYTES:
            self._copies.pop(name, None)
        return piece

    def _make(self, request: DedupRequest) -> "asyncio.Future[bytes]":
        if len(self._copies) >= DEDUP_COPIES_MAX:
            raise RefusedError("BUSY", f"{DEDUP_COPIES_MAX} copies of dedup state are under way")
        hosted = self._find(request.key)
        memory = None if hosted is None else hosted.dedup_snapshot(request.leader_epoch)
        if memory is None:
            raise RefusedError("NOT_LEADER", "this node does not lead the partition")
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, lambda: b"".join(memory.encode()))

    def _let_go(self, now_ns: int) -> None:
        """Forget what no request has asked for any more."""
        old = [name for name, copy in self._copies.items() if copy.asked_ns < now_ns - _KEPT_NS]
        for name in old:
            del self._copies[name]
