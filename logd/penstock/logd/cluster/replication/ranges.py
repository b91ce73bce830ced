"""Damaged ranges: another node is asked for their frames, and asked by others.

An answer is as many of the frames as one message between nodes holds; the rest is asked for when
these are in place. One frame that is larger comes in pieces. Nothing is kept for that between two
requests: if the other log has changed meanwhile, the pieces do not fit, and all is asked for again.
"""

import asyncio
from concurrent.futures import Executor
from typing import Final

import structlog

from penstock.logd.cluster.metadata_group import Mesh
from penstock.logd.cluster.replication.sender import Find
from penstock.logd.cluster.replication.wire import (
    RangeRequest,
    decode_range_request,
    encode_range_request,
)
from penstock.logd.errors import CorruptFrameError, LogdError, RefusedError
from penstock.logd.format.frame import BODY_SIZE_MAX, HEADER_SIZE, encode_header, parse_frames
from penstock.logd.limits import PEER_FRAME_SIZE_MAX, RANGES_ASKED_MAX
from penstock.logd.replication.events import NodeId, RangeAsked, RangeCorrupt
from penstock.logd.replication.session import PartitionId
from penstock.logd.storage import CommitLog

RANGE_API: Final = "range"
"""Name of the request between nodes."""

PIECE_BYTES: Final = PEER_FRAME_SIZE_MAX - 1024
"""Bytes in one answer; a shorter one is the last."""

_ASK_S: Final = 10.0
"""Seconds an answer may take."""

_TELL_S: Final = 1.0
"""Seconds the own core has to say whether it can help: it does so at once."""

_log = structlog.get_logger()

_Awaited = tuple[str, PartitionId, int]


class Ranges:
    """Repair ranges of one node. Used on the event loop.

    Args:
        find: Returns the replicas here.
        mesh: Carries the requests.
        executor: Reads frames on its threads.
    """

    def __init__(self, find: Find, mesh: Mesh, executor: Executor) -> None:
        self._find = find
        self._mesh = mesh
        self._executor = executor
        self._asking: dict[tuple[str, PartitionId], asyncio.Task[None]] = {}
        self._awaited: dict[_Awaited, asyncio.Future[int]] = {}

    def ask(self, node: str, key: PartitionId, first: int, upto: int) -> None:
        """Ask a node; nothing is done while it is being asked for that partition already."""
        if (node, key) in self._asking or len(self._asking) >= RANGES_ASKED_MAX:
            return
        task = asyncio.create_task(self._ask(node, key, first, upto))
        self._asking[node, key] = task
        task.add_done_callback(lambda _: self._asked(node, key, task))

    def tell(self, node: str, key: PartitionId, first: int, upto: int) -> None:
        """The own core says what it can send of a range that begins at `first`."""
        waiting = self._awaited.get((node, key, first))
        if waiting is not None and not waiting.done():
            waiting.set_result(upto)

    async def answer(self, node: str, body: bytes) -> bytes:
        """Answer a request: frames from the beginning of the range, or nothing.

        Raises:
            CorruptError: It is none.
        """
        key, first, upto, position = decode_range_request(body)
        hosted = self._find(key)
        if hosted is None:
            return b""
        awaited: _Awaited = (node, key, first)
        waiting = self._awaited.setdefault(awaited, asyncio.get_running_loop().create_future())
        try:
            hosted.handle(RangeAsked(NodeId(node), first, upto))
            async with asyncio.timeout(_TELL_S):
                sent = await asyncio.shield(waiting)
        except TimeoutError:
            return b""
        finally:
            self._awaited.pop(awaited, None)
        if sent <= first:
            return b""
        loop = asyncio.get_running_loop()
        try:
            data = await loop.run_in_executor(self._executor, read_range, hosted.log, first, sent)
            return data[position : position + PIECE_BYTES]
        except CorruptFrameError as error:
            hosted.handle(RangeCorrupt(error.offset, error.next_offset))
            return b""

    async def close(self) -> None:
        """Ask no node any more."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _asked(self, node: str, key: PartitionId, task: asyncio.Task[None]) -> None:
        if self._asking.get((node, key)) is task:
            del self._asking[node, key]

    async def _ask(self, node: str, key: PartitionId, first: int, upto: int) -> None:
        try:
            data = await self._collect(node, RangeRequest(key, first, upto))
            frames = parse_frames(data, where=f"node {node}")
        except LogdError as error:
            frames = []
            _log.info("range_fetch_failed", peer=node, first=first, upto=upto, reason=str(error))
        task = asyncio.current_task()
        assert task is not None
        self._asked(node, key, task)  # the replica may want the next one at once
        hosted = self._find(key)
        if hosted is not None:
            had = min(upto, frames[-1][0].next_offset) if frames else upto
            hosted.take_range(node, first, had, frames)

    async def _collect(self, node: str, request: RangeRequest) -> bytes:
        """Ask for one piece after the other.

        Raises:
            RefusedError: `TOO_LARGE`: more comes than one frame has at most.
            LogdError: The node cannot be asked, or refuses.
        """
        data = b""
        while len(data) <= HEADER_SIZE + BODY_SIZE_MAX:
            body = encode_range_request(request._replace(position=len(data)))
            piece = await self._mesh.ask(node, RANGE_API, body, timeout_s=_ASK_S)
            data += piece
            if len(piece) < PIECE_BYTES:
                return data
        raise RefusedError("TOO_LARGE", f"node {node} sends {len(data)} bytes for a range")


def read_range(log: CommitLog, first: int, upto: int) -> bytes:
    """The first of the frames that hold [first, upto), checked: one, and what goes with it.

    Raises:
        CorruptFrameError: The first one is damaged.
        OSError: The disk failed.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        for header, body in log.frames(first, upto=upto):
            size += header.frame_length
            if pieces and size > PIECE_BYTES:
                break
            pieces += (encode_header(header), body)
    except RefusedError:  # deleted meanwhile
        return b""
    except CorruptFrameError:
        if not pieces:
            raise
    return b"".join(pieces)
