"""The leader's end of a fetch session: what one follower's node wants is read on threads and sent.

Responses are made on the event loop of what is ready, and sent one after another. A follower that
takes its responses slowly holds up no other node: what it waits for is in its own queue, and of
what was read for it there are a few responses at most.

Reads of frames that may have to wait for the disk: on threads, a few at a time.

What a follower in sync wants was written a moment ago and lies in the page cache. What one that
catches up wants may not, and a read of megabytes from a disk would hold up the event loop. So it is
begun, and the partition is told to come again when it is done. While a follower writes what it was
sent, what it will want next is read.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog
from msgspec import Struct

from penstock.base.clock import Clock
from penstock.logd.cluster.replication.wire import (
    REQUEST_HEAD,
    Response,
    ResponsePart,
    check_request_head,
    decode_request,
    encode_response,
)
from penstock.logd.errors import CorruptError, CorruptFrameError, RefusedError
from penstock.logd.format.frame import (
    HEADER_SIZE,
    FrameHeader,
    check_body,
    decode_header,
    encode_header,
)
from penstock.logd.limits import (
    REPLICATION_PARTS_MAX,
    REPLICATION_REQUEST_SIZE_MAX,
    REPLICATION_TAKEN_BYTES_MAX,
)
from penstock.logd.net.channel import Channel
from penstock.logd.partition.acks import LoopDispatcher
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.replication.events import (
    Answer,
    Event,
    Fetch,
    FetchCame,
    Frames,
    NodeId,
    OutOfRange,
    RangeCorrupt,
    Refusal,
    Refused,
)
from penstock.logd.replication.session import (
    CatchUpPace,
    FetchSessionHandler,
    Part,
    PartitionId,
    Request,
)
from penstock.logd.storage import CommitLog

Frame = tuple[FrameHeader, bytes]


class Found(Struct, frozen=True):
    """The frames of a log from an offset on.

    Attributes:
        data: Whole, intact frames, end to end.
        count: Number of frames.
        damage: First offset after them that cannot be read, and the first readable one after
            that; None: they end for another reason.
        next_offset: Offset after the last of them; 0 where there are none.
        start: First offset kept, if the log begins above the requested offset.
    """

    data: bytes = b""
    count: int = 0
    next_offset: int = 0
    damage: tuple[int, int] | None = None
    start: int | None = None


def read_frames(log: CommitLog, offset: int, *, bytes_max: int, upto: int) -> Found:
    """Read whole frames that hold records in [offset, upto), and check them.

    They are not taken apart (`CommitLog.read_frames`), for they are sent as they are. Those of an
    encrypted log are decrypted: each node's own keys protect what it has.

    Args:
        log: The leader's.
        offset: First record wanted; the first frame may begin before it.
        bytes_max: The first frame is read whatever its size.
        upto: Exclusive; frames that hold it or more are left out.

    Raises:
        OSError: The disk failed.
    """
    pieces: list[bytes] = []
    count = next_offset = 0
    try:
        if log.cipher is not None:
            return _decrypted(log, offset, bytes_max, upto)
        for part in log.read(offset, bytes_max=bytes_max, upto=upto):
            data = part.file.read(part.position, part.length)
            try:
                count += _count(data)
            except CorruptError:  # rotted since it was checked first, or cut off meanwhile
                return _up_to_damage(log, offset, part.next_offset)
            pieces.append(data)
            next_offset = part.next_offset
    except CorruptFrameError as error:
        return Found(damage=(error.offset, error.next_offset))
    except RefusedError:
        start = log.start_offset
        return Found(start=start if offset < start else None)
    return Found(pieces[0] if len(pieces) == 1 else b"".join(pieces), count, next_offset)


def _decrypted(log: CommitLog, offset: int, bytes_max: int, upto: int) -> Found:
    frames = log.read_frames(offset, bytes_max=bytes_max, upto=upto)
    if not frames:
        return Found()
    data = b"".join([piece for header, body in frames for piece in (encode_header(header), body)])
    return Found(data, len(frames), frames[-1][0].next_offset)


def _count(data: bytes) -> int:
    """Return the number of frames.

    Raises:
        CorruptError: A frame is incomplete or damaged.
    """
    view = memoryview(data)
    position = count = 0
    while position < len(view):
        header = decode_header(view[position : position + HEADER_SIZE])
        end = position + header.frame_length
        check_body(header, view[position + HEADER_SIZE : end])
        position, count = end, count + 1
    return count


def _up_to_damage(log: CommitLog, offset: int, upto: int) -> Found:
    """Frame by frame, as far as they are sound.

    Raises:
        RefusedError: The offset is not in the log any more.
    """
    pieces: list[bytes] = []
    next_offset, damage = 0, None
    try:
        for header, body in log.frames(offset, upto=upto):
            pieces += (encode_header(header), body)
            next_offset = header.next_offset
    except CorruptFrameError as error:
        damage = error.offset, error.next_offset
    return Found(b"".join(pieces), len(pieces) // 2, next_offset, damage)


_SLOTS: Final = 2
"""Reads under way, or read and not yet sent, for one follower's node: one is sent while the next
one is read. Each holds the bytes of one response."""

_KEPT_S: Final = 1.0
"""Seconds that what was read is kept though it is not sent, when another wants its place: the
catch-up pace may hold it back, or its fetch may be gone."""

Place = tuple[int, int]
"""Leader epoch and offset: in one epoch what lies at an offset of its leader's log stays."""

Read = Callable[[int], Found]
"""Reads from an offset on."""


class _Read(Struct):
    place: Place
    found: Found | None = None
    done_at: float = 0.0


class ColdReads:
    """Reads from disk for one follower's node. Used on the event loop.

    Args:
        executor: Reads on its threads.
        on_ready: Called when a partition's frames should be requested again.
        on_failed: Called with the error of a failed read.
        kept_s: Seconds that a result is kept unsent when another read needs its room.
    """

    def __init__(
        self,
        executor: Executor,
        on_ready: Callable[[PartitionId], None],
        on_failed: Callable[[PartitionId, Exception], None],
        *,
        kept_s: float = _KEPT_S,
    ) -> None:
        self._executor = executor
        self._kept_s = kept_s
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._reads: dict[PartitionId, _Read] = {}
        self._waiting: dict[PartitionId, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, key: PartitionId, place: Place, upto: int, read: Read) -> Found | None:
        """Return the result of a read at a position; None: it is in progress, `on_ready` follows.

        Args:
            key: The partition.
            place: Position of the read.
            upto: End of what can be read.
            read: Reads the frames.
        """
        present = self._reads.get(key)
        if present is not None:
            if present.found is None:
                return None
            alone = not self._waiting
            self._drop(key)
            if present.place == place:
                if alone and place[1] < present.found.next_offset < upto:
                    self._begin(key, (place[0], present.found.next_offset), read)
                return present.found
        if len(self._reads) < _SLOTS or self._evict():
            self._waiting.pop(key, None)
            self._begin(key, place, read)
        elif key not in self._waiting:
            self._waiting[key] = None
            asyncio.get_running_loop().call_later(self._kept_s, self._remind, key)
        return None

    def forget(self, key: PartitionId) -> None:
        """The partition is not fetched from there any more."""
        self._waiting.pop(key, None)
        self._drop(key)

    def close(self) -> None:
        """No caller waits for anything any more."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, key: PartitionId, place: Place, read: Read) -> None:
        self._reads[key] = _Read(place)
        task = asyncio.create_task(self._run(key, self._reads[key], read))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: PartitionId, mine: _Read, read: Read) -> None:
        loop = asyncio.get_running_loop()
        try:
            mine.found = await loop.run_in_executor(self._executor, read, mine.place[1])
            mine.done_at = loop.time()
        except Exception as error:  # noqa: BLE001 - one log must not hold up the others
            if self._reads.get(key) is mine:
                self._drop(key)
            self._on_failed(key, error)
            return
        if self._reads.get(key) is mine:
            self._on_ready(key)

    def _evict(self) -> bool:
        """Make room by giving up what was read and is not sent."""
        now = asyncio.get_running_loop().time()
        for key, read in self._reads.items():
            if read.found is not None and now - read.done_at >= self._kept_s:
                del self._reads[key]
                return True
        return False

    def _remind(self, key: PartitionId) -> None:
        """Call `on_ready` for a partition that waits for room."""
        if key in self._waiting:
            del self._waiting[key]
            self._on_ready(key)

    def _drop(self, key: PartitionId) -> None:
        if self._reads.pop(key, None) is not None and self._waiting:
            waiting = next(iter(self._waiting))
            del self._waiting[waiting]
            self._on_ready(waiting)


class Hosted(Protocol):
    """A replica on this node. Called on the event loop."""

    @property
    def log(self) -> CommitLog:
        """Log whose frames are read."""
        ...

    def handle(self, event: Event) -> None:
        """Run the core, and execute its effects."""
        ...

    def answer_for(self, node: str) -> Answer | None: ...

    def take(self, answer: Answer, frames: list[Frame], *, alone: bool) -> None:
        """An answer of the leader has come, with frames that are whole and checked.

        Args:
            answer: The answer.
            frames: Its frames.
            alone: Whether no frames of other partitions came with them.
        """
        ...

    def dedup_snapshot(self, leader_epoch: int) -> ProducerSnapshot | None:
        """Return the dedup state of committed records; None: it does not lead in that epoch."""
        ...

    def take_range(self, node: str, first: int, upto: int, frames: list[Frame]) -> None:
        """Take the frames that a node has sent for a damaged range; empty: it has none."""
        ...


Find = Callable[[PartitionId], Hosted | None]


class ReplicaFetchSettings(Struct, frozen=True, kw_only=True):
    """Limits of the sender of frames and of the follower that receives them.

    Attributes:
        response_bytes_max: Maximum bytes of frames in one response, up to
            `limits.REPLICATION_RESPONSE_BYTES_MAX`; one frame may exceed it. Meanwhile frames of
            other partitions for the same node wait.
        max_catch_up_bytes_per_s: Rate of all replicas outside the ISR together; None: no limit.
        held_s: Seconds after which frames that could not be read are read again.
        taken_bytes_max: Maximum bytes from one leader's node that replicas have not yet written;
            beyond, no more is received.
        room_s: Seconds that replicas have to write those, before more is received all the same.
    """

    response_bytes_max: int = 4 * 1024 * 1024
    max_catch_up_bytes_per_s: int | None = None
    held_s: float = 1.0
    taken_bytes_max: int = REPLICATION_TAKEN_BYTES_MAX
    room_s: float = 5.0


class ReplicaFetchCounts(Struct):
    """Counters of frames sent to one follower's node.

    Attributes:
        sessions: Sessions begun.
        broken: Sessions that the other node did not close: it violated the protocol, received
            nothing, or was cut off.
        damaged: Number of times that frames could not be read.
    """

    sessions: int = 0
    broken: int = 0
    requests: int = 0
    responses: int = 0
    frames: int = 0
    frames_bytes: int = 0
    damaged: int = 0


class FetchCounts(Struct):
    """Counters of frames fetched from one leader's node.

    Attributes:
        sessions: Sessions begun.
        broken: Sessions that ended with more to fetch.
        waits: Number of times that receiving stopped until replicas had written enough.
    """

    sessions: int = 0
    broken: int = 0
    requests: int = 0
    responses: int = 0
    frames: int = 0
    frames_bytes: int = 0
    waits: int = 0


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


class Wanted(NamedTuple):
    """A range of a leader's log. Within one epoch its frames stay the same."""

    leader_epoch: int
    offset: int
    upto: int


class SharedReads:
    """Frames at partitions' ends: the last that were written or read, which followers request."""

    def __init__(self) -> None:
        self._found: dict[PartitionId, tuple[Wanted, Found]] = {}
        self._size = 0

    def get(self, key: PartitionId, wanted: Wanted, bytes_max: int) -> Found | None:
        """Return what is kept if it is the wanted range, and not larger than asked for."""
        kept = self._found.get(key)
        if kept is None or kept[0] != wanted:
            return None
        found = kept[1]
        return found if found.count == 1 or len(found.data) <= bytes_max else None

    def keep(self, key: PartitionId, wanted: Wanted, found: Found) -> None:
        """Keep it in the place of what was kept of that partition before."""
        self._drop(key)
        self._found[key] = wanted, found
        self._size += len(found.data)
        while self._size > _SHARED_BYTES_MAX:
            self._drop(next(iter(self._found)))

    def keep_written(self, key: PartitionId, frames: Sequence[Frame]) -> None:
        """Keep frames that a leader has just written, as they are sent."""
        first, next_offset = frames[0][0], frames[-1][0].next_offset
        data = b"".join(
            [piece for header, body in frames for piece in (encode_header(header), body)]
        )
        wanted = Wanted(first.leader_epoch, first.base_offset, next_offset)
        self.keep(key, wanted, Found(data, len(frames), next_offset))

    def _drop(self, key: PartitionId) -> None:
        kept = self._found.pop(key, None)
        if kept is not None:
            self._size -= len(kept[1].data)


class ReplicaFetchSession(Struct, kw_only=True):
    """The state that all fetch sessions of one node share.

    Attributes:
        find: Returns the replicas.
        clock: The node's monotonic time.
        pace: Rate limiter of replicas outside the ISR.
        executor: Threads for reads that may wait for the disk.
        dispatcher: Knows when the turn of the event loop ends.
    """

    find: Find
    dispatcher: LoopDispatcher
    clock: Clock
    settings: ReplicaFetchSettings
    pace: CatchUpPace
    executor: Executor
    shared: SharedReads = msgspec.field(default_factory=SharedReads)


class _Draft(Struct):
    """A response in the making."""

    parts: list[ResponsePart] = msgspec.field(default_factory=list)
    frames: list[bytes] = msgspec.field(default_factory=list)
    count: int = 0


class ReplicaFetchServer:
    """Serves one connection. Used on the event loop.

    Args:
        node: The follower's.
        channel: Channel to the follower's node.
        feeding: State that all fetch sessions share.
        counts: Counters of that node.
    """

    def __init__(
        self,
        node: NodeId,
        channel: Channel,
        feeding: ReplicaFetchSession,
        counts: ReplicaFetchCounts,
    ) -> None:
        self._node = node
        self._channel = channel
        self._feeding = feeding
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._serving: FetchSessionHandler | None = None
        self._changed_reports = False
        self._unsent: deque[memoryview] = deque()
        self._problem: Exception | None = None
        self._blocked = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = 0
        self._cold = ColdReads(feeding.executor, self.touch, self._failed)
        self._held: dict[PartitionId, asyncio.TimerHandle] = {}
        self._damage: dict[PartitionId, tuple[int, int]] = {}

    def answer(self, key: PartitionId, answer: Answer) -> None:
        """A core has an answer for the node; most only say that there is nothing new."""
        if self._serving is not None:
            self._serving.answer(key, answer)
            if self._serving.has_ready:
                self._plan_send()

    def touch(self, key: PartitionId) -> None:
        """There may be news of a partition; the response leaves at the end of this turn."""
        if self._serving is not None:
            self._serving.touch(key)
            self._plan_send()

    def high_watermark_risen(self, key: PartitionId) -> None:
        """The high watermark of a partition has risen: it is sent with frames, or after a while."""
        if self._serving is not None:
            self._serving.high_watermark_risen(key, self._feeding.clock.monotonic_ns())
            self._arm(self._serving)

    async def run(self) -> None:
        """Serve until the connection ends.

        Raises:
            OSError, EOFError: It has ended.
            CorruptError, RefusedError: The other node does not keep to the protocol.
        """
        reachability = asyncio.create_task(
            self._channel.consume(self._consume, ahead_max=_AHEAD_MAX)
        )
        sending = asyncio.create_task(self._send())
        try:
            done, _ = await asyncio.wait(
                {reachability, sending}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            reachability.cancel()
            sending.cancel()
            self._cold.close()
            for timer in (*self._held.values(), self._timer):
                if timer is not None:
                    timer.cancel()
            self._serving = None
            await asyncio.gather(reachability, sending, return_exceptions=True)
        for task in done:
            task.result()

    # What the follower's node says.

    def _consume(self, data: bytearray) -> int:
        return self._feeding.dispatcher.run(partial(self._take_requests, data))

    def _take_requests(self, data: bytearray) -> int:
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
            self._serving = FetchSessionHandler(
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
        if self._serving.has_ready:  # it may have waited for the follower to take responses
            self._plan_send()

    def _plan_send(self) -> None:
        """There may be something to say: at the end of this turn, so that it is said together."""
        if not self._changed_reports:
            self._changed_reports = True
            self._feeding.dispatcher.at_end(self._send_due)

    def _send_due(self) -> None:
        """Send what there is to say, as far as the connection takes it at once."""
        self._changed_reports = False
        if self._unsent or self._serving is None:  # what is being sent goes on from here
            return
        try:
            while not self._unsent and (pieces := self._respond()) is not None:
                self._offer(pieces)
                if not self._serving.has_ready:
                    break
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
            self._send_due()

    def _arm(self, serving: FetchSessionHandler) -> None:
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
        self._send_due()

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

    def _look(self, key: PartitionId) -> Answer | None:
        hosted = self._feeding.find(key)
        return None if hosted is None else hosted.answer_for(self._node)

    def _fill(self, serving: FetchSessionHandler, part: Part, draft: _Draft, now_ns: int) -> None:
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
            elif found.start is not None:  # deleted before the fetch could be answered
                answer = _out_of_range(answer, found.start)
            else:
                self._hold(part.key)
        draft.parts.append(ResponsePart(part.key, answer, len(data)))

    def _read(self, key: PartitionId, answer: Frames, bytes_max: int) -> Found | None:
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

    def _read_hot(self, key: PartitionId, log: CommitLog, answer: Frames, bytes_max: int) -> Found:
        shared = self._feeding.shared
        wanted = Wanted(answer.leader_epoch, answer.offset, answer.upto)
        found = shared.get(key, wanted, bytes_max)
        if found is None:
            found = read_frames(log, answer.offset, bytes_max=bytes_max, upto=answer.upto)
            if found.data:
                shared.keep(key, wanted, found)
        return found

    # What cannot be read.

    def _damaged(self, key: PartitionId, hosted: Hosted, damage: tuple[int, int]) -> None:
        self._counts.damaged += 1
        first, upto = damage
        if self._damage.get(key) != damage:  # said once, though it is found at each try
            self._damage[key] = damage
            where = {"incarnation": key.incarnation, "partition": key.number}
            _log.error("corrupt_range_found", peer=self._node, first=first, upto=upto, **where)
        hosted.handle(RangeCorrupt(first, upto))

    def _failed(self, key: PartitionId, error: Exception) -> None:
        self._counts.damaged += 1
        where = {"incarnation": key.incarnation, "partition": key.number}
        problem = f"{type(error).__name__}: {error}"
        _log.error("frame_read_failed", peer=self._node, error=problem, **where)
        self._hold(key)

    def _hold(self, key: PartitionId) -> None:
        """Try again later: nothing can be read there now."""
        self._release(key)
        loop = asyncio.get_running_loop()
        self._held[key] = loop.call_later(self._feeding.settings.held_s, self._retry, key)

    def _release(self, key: PartitionId) -> None:
        timer = self._held.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _retry(self, key: PartitionId) -> None:
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
