"""The fetch session of two nodes for all their partitions, and the pace of replicas that catch up.

As in KIP-227 each side says only what has changed. The follower's node tells of a partition when
its `Fetch` is another than before; the leader's node keeps the last one, and answers when there is
news. So a thousand idle partitions cost nothing, however often others talk.

Requests and responses are numbered and go over one ordered connection. They need not alternate: a
follower may report while an answer is under way. A gap, or a request of another session, ends the
session; the next one begins with everything (`FetchSessionClient.restart`).

What bounds it: a partition has one fetch pending, and frames are sent once for each; a response
has a size, and only so many are under way until the follower's node has taken them; what has news
waits in a queue in which each partition stands once, so that each one's turn comes round.

How fast replicas outside the ISR are fed: a returning one must not starve live traffic.

A bucket of bytes that fills with time. A frame is sent whole, so that it may be overdrawn; then
nothing is sent until the debt is paid.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock.logd.errors import RefusedError
from penstock.logd.replication.events import Answer, Fetch, Frames

_NS_PER_S: Final = 1_000_000_000
_BURST_NS: Final = 100_000_000
"""Maximum burst after idle time: a tenth of a second's worth, or a byte."""


class CatchUpPace:
    """Rate limiter of catch-up from one leader's node, for all followers.

    Args:
        bytes_per_s_max: Bytes a second; None: unlimited.
    """

    def __init__(self, bytes_per_s_max: int | None) -> None:
        self._rate = bytes_per_s_max
        self._free_ns = 0
        self._burst_ns = max(_BURST_NS, -(-_NS_PER_S // bytes_per_s_max) if bytes_per_s_max else 0)

    def room(self, now_ns: int) -> int | None:
        """Bytes that may be sent now; 0: none; None: there is no limit."""
        if self._rate is None:
            return None
        saved_ns = min(now_ns - self._free_ns, self._burst_ns)
        return max(saved_ns * self._rate // _NS_PER_S, 0)

    def spend(self, size_bytes: int, now_ns: int) -> None:
        if self._rate is not None:
            begun_ns = max(self._free_ns, now_ns - self._burst_ns)
            self._free_ns = begun_ns + -(-size_bytes * _NS_PER_S // self._rate)

    def free_ns(self, now_ns: int) -> int:
        """Return the latest time with room for a millisecond's worth; `now_ns` if there is room."""
        if self._rate is None or self.room(now_ns):
            return now_ns
        return max(self._free_ns, now_ns) + max(_NS_PER_S // 1000, -(-_NS_PER_S // self._rate))


FETCHES_PER_REQUEST_MAX: Final = 1000
"""A request stays below 256 KiB. As many partitions at most are forgotten in it."""

RESPONSES_UNACKNOWLEDGED_MAX: Final = 2
"""Responses that were taken, for which alone no request is made: the next one says it, too. There
soon is one when frames came."""

RESPONSES_UNDER_WAY_MAX: Final = RESPONSES_UNACKNOWLEDGED_MAX + 2
"""One is being taken while the next one is being sent; the others may have been taken untold."""

MARK_WAIT_NS: Final = 25_000_000
"""Nanoseconds that a high watermark waits for frames to go with. No publisher waits for it, only
readers of a replica; sending it at once would wake both nodes once more for a lone record in
flight."""


class PartitionId(NamedTuple):
    """A partition, by its stream's incarnation."""

    incarnation: str
    number: int


class Request(Struct, frozen=True):
    """Request of the follower's node.

    Attributes:
        session: A number that the follower's node does not use twice.
        number: Number of the request, from 1 on.
        taken: The last response that was processed; 0 before the first.
        fetches: Fetches of partitions that have changed.
        forgotten: Partitions that are no longer followed from there.
    """

    session: int
    number: int
    taken: int
    fetches: tuple[tuple[PartitionId, Fetch], ...]
    forgotten: tuple[PartitionId, ...]


class Part(Struct, frozen=True):
    """An answer that a response is to hold, with frames of at most `bytes_max` bytes.

    The first frame is sent whatever its size. 0: none.
    """

    key: PartitionId
    answer: Answer
    bytes_max: int


class FetchSessionClient:
    """The follower's end of one session."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._states: dict[PartitionId, Fetch] = {}
        self._changed: dict[PartitionId, None] = {}
        self._forgotten: dict[PartitionId, None] = {}
        self._number = 0
        self._taken = 0
        self._acknowledged = 0

    def __bool__(self) -> bool:
        return bool(self._states)

    def update(self, key: PartitionId, fetch: Fetch) -> None:
        """A replica core has said `SendFetch`.

        A report after a fetch that was not sent yet becomes part of it.
        """
        before = self._states.get(key)
        unsent = before is not None and key in self._changed and before.wants
        if before is not None and unsent and not fetch.wants:
            fetch = replace(before, synced=fetch.synced, whole=fetch.whole, dedup=fetch.dedup)
        self._states[key] = fetch
        self._changed[key] = None
        self._forgotten.pop(key, None)

    def forget(self, key: PartitionId) -> None:
        """The partition is followed from there no more."""
        if self._states.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    def request(self) -> Request | None:
        """Return the next request; None if there is nothing to send."""
        unacknowledged = self._taken - self._acknowledged
        if (
            not self._changed
            and not self._forgotten
            and unacknowledged <= RESPONSES_UNACKNOWLEDGED_MAX
        ):
            return None
        keys, forgotten = _some(self._changed), _some(self._forgotten)
        for key in keys:
            del self._changed[key]
        for key in forgotten:
            del self._forgotten[key]
        self._number += 1
        self._acknowledged = self._taken
        fetches = tuple((key, self._states[key]) for key in keys)
        return Request(self._session, self._number, self._taken, fetches, tuple(forgotten))

    def took(self, session: int, number: int) -> None:
        """A response has come, and its frames have been handed on.

        Raises:
            RefusedError: `SESSION_BROKEN`: it is not the next one.
        """
        _check(session == self._session and number == self._taken + 1, session, number)
        self._taken = number

    def restart(self, session: int) -> list[PartitionId]:
        """Begin another session with everything; the fetches of all partitions are lost.

        Returns:
            Which: `AnswerLost` is due for each of them.
        """
        self._session = session
        self._number = self._taken = self._acknowledged = 0
        self._forgotten = {}
        self._changed = dict.fromkeys(self._states)
        return list(self._states)


class _SentState(Struct):
    """State that a follower was sent about one partition.

    Attributes:
        pending: Process and number of the pending fetch; the core may have dropped it.
        framed: Whether frames were sent for it. Until its next fetch the follower ignores more.
        mark_ns: Time until which a high watermark waits; None: none does.
    """

    pending: tuple[str, int] = ("", -1)
    framed: bool = False
    high_watermark: int = -2
    log_start: int = -1
    dedup_differs: bool = False
    mark_ns: int | None = None

    def fetch_came(self, fetch: Fetch) -> None:
        """It wants frames, and says what it knows."""
        self.pending, self.framed = (fetch.boot, fetch.number), False
        if fetch.known is None:
            self.high_watermark, self.log_start, self.dedup_differs = -2, -1, False
        else:
            self.high_watermark = fetch.known

    def is_news(self, answer: Frames) -> bool:
        """Return whether an answer says what the follower neither knows nor will be told soon."""
        return (
            answer.upto > answer.offset
            or (answer.high_watermark != self.high_watermark and self.mark_ns is None)
            or answer.log_start != self.log_start
            or answer.dedup_differs is not self.dedup_differs
        )


class FetchSessionHandler:
    """The leader's end of one session.

    What it sends is made in steps: `begin`, then `next_part` and `filled` in turn until there is no
    more, then `end`, unless there was none.

    Args:
        session: Number of the session in the first request.
        response_bytes_max: Maximum bytes of frames in one response; one frame may exceed it.
        pace: Rate limiter of replicas outside the ISR.
    """

    def __init__(self, session: int, *, response_bytes_max: int, pace: CatchUpPace) -> None:
        self._session = session
        self._bytes_max = response_bytes_max
        self._pace = pace
        self._sent_states: dict[PartitionId, _SentState] = {}
        self._ready: dict[PartitionId, None] = {}
        self._once: dict[PartitionId, Answer] = {}
        self._paced: dict[PartitionId, None] = {}
        self._marks: dict[PartitionId, int] = {}
        self._begun = False
        self._requests = 0
        self._number = 0
        self._taken = 0
        self._left = 0

    @property
    def has_ready(self) -> bool:
        """True if a partition may have news."""
        return bool(self._ready)

    def took(self, request: Request) -> tuple[tuple[PartitionId, Fetch], ...]:
        """Take a request; every fetch in it is to be handed to its core: `FetchCame`.

        Raises:
            RefusedError: `SESSION_BROKEN`: it is not the next one, or says what cannot be.
        """
        expected = request.session == self._session and request.number == self._requests + 1
        _check(
            expected and self._taken <= request.taken <= self._number,
            request.session,
            request.number,
        )
        self._requests, self._taken = request.number, request.taken
        for key in request.forgotten:
            self._sent_states.pop(key, None)
            self._once.pop(key, None)
            self._ready.pop(key, None)
            self._paced.pop(key, None)
            self._marks.pop(key, None)
        for key, fetch in request.fetches:
            sent_state = self._sent_states.setdefault(key, _SentState())
            if fetch.wants:
                sent_state.fetch_came(fetch)
        return request.fetches

    def answer(self, key: PartitionId, answer: Answer) -> None:
        """A core has said `SendAnswer`. `Frames` are made again when their turn comes."""
        sent_state = self._sent_states.get(key)
        if sent_state is None:
            return
        if not isinstance(answer, Frames):
            self._once[key] = answer
        elif not sent_state.is_news(answer):
            return
        self._ready[key] = None

    def touch(self, key: PartitionId) -> None:
        """The partition has grown, or its high watermark has risen: there may be news."""
        if key in self._sent_states:
            self._ready[key] = None

    def high_watermark_risen(self, key: PartitionId, now_ns: int) -> None:
        """A partition's high watermark has risen, and it has not grown: that waits for frames."""
        sent_state = self._sent_states.get(key)
        if sent_state is not None and not sent_state.framed and sent_state.mark_ns is None:
            sent_state.mark_ns = self._marks[key] = now_ns + MARK_WAIT_NS

    def begin(self, now_ns: int) -> bool:
        """Begin a response; return whether one may be sent now."""
        if self._paced and self._pace.free_ns(now_ns) <= now_ns:
            self._ready.update(self._paced)
            self._paced.clear()
        if self._marks and next(iter(self._marks.values())) <= now_ns:
            self._release_marks(now_ns)
        self._left, self._begun = self._bytes_max, False
        return bool(self._ready) and self._number - self._taken < RESPONSES_UNDER_WAY_MAX

    def next_part(self, look: Callable[[PartitionId], Answer | None], now_ns: int) -> Part | None:
        """The next answer that is news; None: the response is full, or there is no more.

        Args:
            look: Asks the core: `Replica.answer_for`.
            now_ns: The node's monotonic clock.
        """
        while self._left > 0:
            if not self._ready and self._begun:  # what waits for others to go with
                self._release_marks(now_ns)
            if not self._ready:
                break
            key = next(iter(self._ready))
            del self._ready[key]
            once = self._once.pop(key, None)
            part = None
            if once is not None:
                part = Part(key, once, 0)
            elif isinstance(answer := look(key), Frames):
                part = self._frames(key, answer, now_ns)
            if part is not None:
                self._begun = True
                return part
        return None

    def filled(self, part: Part, size_bytes: int, now_ns: int) -> None:
        """Count the bytes of frames that were put into the response."""
        self._left -= size_bytes
        if isinstance(part.answer, Frames) and size_bytes:
            self._sent_states[part.key].framed = True
            if part.answer.catching_up:
                self._pace.spend(size_bytes, now_ns)

    def end(self) -> tuple[int, int]:
        """The response is complete; returns its session and number."""
        self._number += 1
        return self._session, self._number

    def next_deadline_ns(self, now_ns: int) -> int | None:
        """Return when `begin` may find what waits for a time; None: nothing does."""
        times = [self._pace.free_ns(now_ns)] if self._paced else []
        if self._marks:
            times.append(next(iter(self._marks.values())))
        return min(times, default=None)

    def _frames(self, key: PartitionId, answer: Frames, now_ns: int) -> Part | None:
        sent_state = self._sent_states[key]
        if sent_state.framed or sent_state.pending != (answer.boot, answer.number):
            self._unmark(key, sent_state)
            return None
        bytes_max = self._left if answer.upto > answer.offset else 0
        if bytes_max and answer.catching_up:
            room = self._pace.room(now_ns)
            if room is not None:
                bytes_max = min(bytes_max, room)
                if not room:
                    self._paced[key] = None
        as_sent = (answer.log_start, answer.dedup_differs) == (
            sent_state.log_start,
            sent_state.dedup_differs,
        )
        if not bytes_max and as_sent:
            risen = answer.high_watermark != sent_state.high_watermark
            if risen and self._is_waiting(key, sent_state, now_ns):
                return None
            if not risen:
                self._unmark(key, sent_state)
                return None
        self._unmark(key, sent_state)
        sent_state.high_watermark, sent_state.log_start = answer.high_watermark, answer.log_start
        sent_state.dedup_differs = answer.dedup_differs
        return Part(key, answer, bytes_max)

    def _is_waiting(self, key: PartitionId, sent_state: _SentState, now_ns: int) -> bool:
        """Return whether a risen high watermark still waits for frames."""
        if sent_state.mark_ns is None:
            sent_state.mark_ns = self._marks[key] = now_ns + MARK_WAIT_NS
        return now_ns < sent_state.mark_ns

    def _unmark(self, key: PartitionId, sent_state: _SentState) -> None:
        sent_state.mark_ns = None
        self._marks.pop(key, None)

    def _release_marks(self, now_ns: int) -> None:
        """All high watermarks that wait go now: one response carries many as easily as one."""
        for key in self._marks:
            self._sent_states[key].mark_ns = now_ns
            self._ready[key] = None
        self._marks.clear()


def _some(keys: dict[PartitionId, None]) -> list[PartitionId]:
    return list(islice(keys, FETCHES_PER_REQUEST_MAX))


def _check(right: bool, session: int, number: int) -> None:
    if not right:
        message = f"session {session}: {number} does not follow; begin another session"
        raise RefusedError("SESSION_BROKEN", message)
