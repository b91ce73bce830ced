"""The leader's end of a fetch session: one follower's node is sent what it wants.

Responses are made on the event loop of what is ready, and sent one after another. A follower that
takes its responses slowly holds up nobody else: what it waits for is in its own queue, and of what
was read for it there are a few responses at most.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from penstock.base.clock import Clock
from penstock.logd.cluster.replication.cold_reads import ColdReads
from penstock.logd.cluster.replication.frames import Found, read_frames
from penstock.logd.cluster.replication.hosted import FeedCounts, FeedSettings, Find, Hosted
from penstock.logd.cluster.replication.wire import (
    REQUEST_HEAD,
    Response,
    ResponsePart,
    check_request_head,
    decode_request,
    encode_response,
)
from penstock.logd.core.node import NodeId
from penstock.logd.core.replication.events import FetchCame, RangeCorrupt
from penstock.logd.core.replication.messages import (
    Answer,
    Fetch,
    Frames,
    OutOfRange,
    Refusal,
    Refused,
)
from penstock.logd.core.replication.pacing import CatchUpPace
from penstock.logd.core.replication.session import Part, PartitionKey, Request, Serving
from penstock.logd.limits import REPLICATION_PARTS_MAX, REPLICATION_REQUEST_SIZE_MAX
from penstock.logd.store import CommitLog
from penstock.logd.tcp.channel import Channel

_STALL_S: Final = 10.0
"""Seconds a follower's node may take nothing before its connection is closed."""

_HOT_BYTES_MAX: Final = 1024 * 1024
"""Bytes that are read from the page cache at a time without leaving the event loop."""

_SHARED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of frames that were read for one follower and are kept for the others."""

_COPIED_BYTES_MAX: Final = 64 * 1024
"""A response up to this is sent in one piece; the copy costs less than another packet."""

_AHEAD_MAX: Final = REPLICATION_REQUEST_SIZE_MAX + 64 * 1024
"""Bytes of requests that may have come and not be whole: the greatest one, and more."""

_log = structlog.get_logger()


class SharedReads:
    """What was just read of partitions' ends: their other followers want the same."""

    def __init__(self) -> None:
        self._found: dict[PartitionKey, tuple[tuple[int, ...], Found]] = {}
        self._size = 0

    def get(self, key: PartitionKey, wanted: tuple[int, ...]) -> Found | None:
        """What was read if the same was wanted: epoch, offset, upto, bytes."""
        kept = self._found.get(key)
        return kept[1] if kept is not None and kept[0] == wanted else None

    def keep(self, key: PartitionKey, wanted: tuple[int, ...], found: Found) -> None:
        """Keep it in the place of what was read of that partition before."""
        self._drop(key)
        self._found[key] = wanted, found
        self._size += len(found.data)
        while self._size > _SHARED_BYTES_MAX:
            self._drop(next(iter(self._found)))

    def _drop(self, key: PartitionKey) -> None:
        kept = self._found.pop(key, None)
        if kept is not None:
            self._size -= len(kept[1].data)


@dataclass(slots=True, kw_only=True)
class Feeding:
    """What the feeders of one node share.

    Attributes:
        find: The replicas.
        clock: The node's monotonic time.
        pace: For replicas outside the ISR.
        executor: For reads that may wait for the disk.
    """

    find: Find
    clock: Clock
    settings: FeedSettings
    pace: CatchUpPace
    executor: Executor
    shared: SharedReads = field(default_factory=SharedReads)


@dataclass(slots=True)
class _Draft:
    """A response in the making."""

    parts: list[ResponsePart] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    count: int = 0


class Feeder:
    """Serves one connection. Used on the event loop.

    Args:
        node: The follower's.
        channel: To it.
        feeding: What all feeders have.
        counts: Of that node.
    """

    def __init__(
        self, node: NodeId, channel: Channel, feeding: Feeding, counts: FeedCounts
    ) -> None:
        self._node = node
        self._channel = channel
        self._feeding = feeding
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._serving: Serving | None = None
        self._stirred = False
        self._unsent: deque[memoryview] = deque()
        self._problem: Exception | None = None
        self._blocked = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = 0
        self._cold = ColdReads(feeding.executor, self.touch, self._failed)
        self._held: dict[PartitionKey, asyncio.TimerHandle] = {}
        self._damage: dict[PartitionKey, tuple[int, int]] = {}

    def answer(self, key: PartitionKey, answer: Answer) -> None:
        """A core has an answer for the node."""
        if self._serving is not None:
            self._serving.answer(key, answer)
            self._stir()

    def touch(self, key: PartitionKey) -> None:
        """There may be news of a partition; the response leaves at the end of this turn."""
        if self._serving is not None:
            self._serving.touch(key)
            self._stir()

    async def run(self) -> None:
        """Serve until the connection ends.

        Raises:
            OSError, EOFError: It has ended.
            CorruptError, RefusedError: The other node does not keep to the protocol.
        """
        hearing = asyncio.create_task(self._channel.consume(self._hear, ahead_max=_AHEAD_MAX))
        sending = asyncio.create_task(self._send())
        try:
            done, _ = await asyncio.wait({hearing, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hearing.cancel()
            sending.cancel()
            self._cold.close()
            for timer in (*self._held.values(), self._timer):
                if timer is not None:
                    timer.cancel()
            self._serving = None
            await asyncio.gather(hearing, sending, return_exceptions=True)
        for task in done:
            task.result()

    # What the follower's node says.

    def _hear(self, data: bytearray) -> int:
        position = 0
        while (begin := position + REQUEST_HEAD.size) <= len(data):
            end = begin + check_request_head(bytes(data[position:begin]))
            if end > len(data):
                break
            if end > begin:
                self._take(decode_request(self._node, bytes(data[begin:end])))
            position = end
        return position

    def _take(self, request: Request) -> None:
        settings = self._feeding.settings
        if self._serving is None:
            self._serving = Serving(
                request.session,
                response_bytes_max=settings.response_bytes_max,
                pace=self._feeding.pace,
            )
        self._counts.requests += 1
        for key in request.forgotten:
            self._cold.forget(key)
            self._damage.pop(key, None)
            self._release(key)
        for key, fetch in self._serving.took(request):
            self._release(key)
            hosted = self._feeding.find(key)
            if hosted is None:
                self._serving.answer(key, _not_here(fetch))
            else:
                hosted.handle(FetchCame(fetch))
        self._stir()

    def _stir(self) -> None:
        """There may be something to say: at the end of this turn, so that it is said together."""
        if not self._stirred:
            self._stirred = True
            self._loop.call_soon(self._say)

    def _say(self) -> None:
        """Send what there is to say, as far as the connection takes it at once."""
        self._stirred = False
        if self._unsent or self._serving is None:  # what is being sent goes on from here
            return
        try:
            while not self._unsent and (pieces := self._respond()) is not None:
                self._offer(pieces)
        except Exception as error:  # noqa: BLE001 - raised where the connection is served
            self._problem = error
        if self._unsent or self._problem is not None:
            self._blocked.set()
        else:
            self._arm(self._serving)

    def _offer(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            count = 0 if self._unsent else self._channel.offer(piece)
            if count < len(piece):
                self._unsent.append(memoryview(piece)[count:])

    async def _send(self) -> None:
        """Send what the connection did not take at once."""
        while True:
            await self._blocked.wait()
            self._blocked.clear()
            if self._problem is not None:
                raise self._problem
            while self._unsent:
                await self._channel.send(self._unsent[0], stall_s=_STALL_S)
                self._unsent.popleft()
            self._say()

    def _arm(self, serving: Serving) -> None:
        """Wake when what waits for a time is due; a timer that would come earlier stays."""
        now_ns = self._feeding.clock.monotonic_ns()
        due_ns = serving.next_deadline_ns(now_ns)
        if due_ns is None or (self._timer is not None and self._armed_ns <= due_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ns = due_ns
        self._timer = self._loop.call_later(max(due_ns - now_ns, 0) / 1e9, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._say()

    def _respond(self) -> Sequence[bytes] | None:
        """The next response, ready to be sent; None: there is none now."""
        serving = self._serving
        now_ns = self._feeding.clock.monotonic_ns()
        if serving is None or not serving.begin(now_ns):
            return None
        draft = _Draft()
        while len(draft.parts) < REPLICATION_PARTS_MAX:
            part = serving.next_part(self._look, now_ns)
            if part is None:
                break
            self._fill(serving, part, draft, now_ns)
        if not draft.parts:
            return None
        response = Response(*serving.end(), tuple(draft.parts))
        self._counts.responses += 1
        self._counts.frames += draft.count
        self._counts.frames_bytes += response.frames_length
        head = encode_response(response)
        if len(head) + response.frames_length <= _COPIED_BYTES_MAX:
            return [b"".join((head, *draft.frames))]
        return [head, *draft.frames]

    def _look(self, key: PartitionKey) -> Answer | None:
        hosted = self._feeding.find(key)
        return None if hosted is None else hosted.answer_for(self._node)

    def _fill(self, serving: Serving, part: Part, draft: _Draft, now_ns: int) -> None:
        """Put a part and what can be sent of its frames into the response."""
        answer = part.answer
        found = None
        if part.bytes_max and isinstance(answer, Frames) and part.key not in self._held:
            found = self._read(part.key, answer, part.bytes_max)
        data = b"" if found is None else found.data
        serving.filled(part, len(data), now_ns)
        if found is not None and isinstance(answer, Frames):
            if data:
                draft.frames.append(data)
                draft.count += found.count
            elif found.start is not None:  # deleted before the wish could be met
                answer = _out_of_range(answer, found.start)
            else:
                self._hold(part.key)
        draft.parts.append(ResponsePart(part.key, answer, len(data)))

    def _read(self, key: PartitionKey, answer: Frames, bytes_max: int) -> Found | None:
        """The frames of an answer; None: they are not there yet."""
        hosted = self._feeding.find(key)
        assert hosted is not None, key
        found: Found | None
        if answer.catching_up:
            read = partial(read_frames, hosted.log, bytes_max=bytes_max, upto=answer.upto)
            place = (answer.leader_epoch, answer.offset)
            found = self._cold.take(key, place, answer.upto, read)
        else:
            try:
                found = self._read_hot(key, hosted.log, answer, min(bytes_max, _HOT_BYTES_MAX))
            except OSError as error:
                self._failed(key, error)
                return None
        if found is not None and found.damage is not None:
            self._damaged(key, hosted, found.damage)
        return found

    def _read_hot(self, key: PartitionKey, log: CommitLog, answer: Frames, bytes_max: int) -> Found:
        shared = self._feeding.shared
        wanted = (answer.leader_epoch, answer.offset, answer.upto, bytes_max)
        found = shared.get(key, wanted)
        if found is None:
            found = read_frames(log, answer.offset, bytes_max=bytes_max, upto=answer.upto)
            if found.data:
                shared.keep(key, wanted, found)
        return found

    # What cannot be read.

    def _damaged(self, key: PartitionKey, hosted: Hosted, damage: tuple[int, int]) -> None:
        self._counts.damaged += 1
        first, upto = damage
        if self._damage.get(key) != damage:  # said once, though it is found at each try
            self._damage[key] = damage
            where = {"incarnation": key.incarnation, "partition": key.number}
            _log.error("damaged frames not sent", peer=self._node, first=first, upto=upto, **where)
        hosted.handle(RangeCorrupt(first, upto))

    def _failed(self, key: PartitionKey, error: Exception) -> None:
        self._counts.damaged += 1
        where = {"incarnation": key.incarnation, "partition": key.number}
        problem = f"{type(error).__name__}: {error}"
        _log.error("frames not read", peer=self._node, error=problem, **where)
        self._hold(key)

    def _hold(self, key: PartitionKey) -> None:
        """Try again later: nothing can be read there now."""
        self._release(key)
        loop = asyncio.get_running_loop()
        self._held[key] = loop.call_later(self._feeding.settings.held_s, self._retry, key)

    def _release(self, key: PartitionKey) -> None:
        timer = self._held.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _retry(self, key: PartitionKey) -> None:
        self._held.pop(key, None)
        self.touch(key)


def _not_here(fetch: Fetch) -> Refused:
    return Refused(
        boot=fetch.boot,
        number=fetch.number,
        incarnation=fetch.incarnation,
        leader_epoch=0,
        reason=Refusal.NOT_LEADER,
    )


def _out_of_range(answer: Frames, start: int) -> OutOfRange:
    return OutOfRange(
        boot=answer.boot,
        number=answer.number,
        incarnation=answer.incarnation,
        leader_epoch=answer.leader_epoch,
        log_start=start,
    )
