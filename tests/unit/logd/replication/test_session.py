"""Fetch sessions against a dumb model: logs that grow, followers that copy them, and lost links."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.logd.errors import RefusedError
from penstock.logd.replication.events import Answer, Fetch, Frames, NodeId, OutOfRange
from penstock.logd.replication.session import (
    FETCHES_PER_REQUEST_MAX,
    MARK_WAIT_NS,
    RESPONSES_UNACKNOWLEDGED_MAX,
    RESPONSES_UNDER_WAY_MAX,
    CatchUpPace,
    FetchSessionClient,
    FetchSessionHandler,
    PartitionId,
    Request,
)

NODE = NodeId("f")
RECORD = 10
"""Bytes of each record; a record is a frame."""


def key(number: int) -> PartitionId:
    return PartitionId("i", number)


def fetch(
    number: int, offset: int, *, synced: int = 0, wants: bool = True, known: int | None = None
) -> Fetch:
    return Fetch(
        node=NODE,
        boot="b",
        number=number,
        incarnation="i",
        leader_epoch=1,
        offset=offset,
        last_epoch=1,
        synced=synced,
        wants=wants,
        known=known,
    )


def frames(number: int, *, offset: int = 0, upto: int = 0, mark: int = -1) -> Frames:
    return Frames(
        boot="b",
        number=number,
        incarnation="i",
        leader_epoch=1,
        offset=offset,
        upto=upto,
        high_watermark=mark,
        log_start=0,
    )


@dataclass
class Pair:
    """Two nodes, the leader's and the follower's, with the partitions that they share.

    Attributes:
        ends: Of the leader's logs.
        copied: Ends of the follower's.
        looked: How often a core was asked for an answer.
        responses: Made.
        sent: Keys in the order in which frames were sent.
    """

    partitions: int
    bytes_max: int = 100
    pace: CatchUpPace = field(default_factory=lambda: CatchUpPace(None))
    catching_up: bool = False

    def __post_init__(self) -> None:
        self.keys = [key(n) for n in range(self.partitions)]
        self.ends = dict.fromkeys(self.keys, 0)
        self.marks = dict.fromkeys(self.keys, -1)
        self.copied = dict.fromkeys(self.keys, 0)
        self.known: dict[PartitionId, int] = {}
        self.wishes: dict[PartitionId, Fetch] = {}
        self.looked = self.responses = 0
        self.sent: list[PartitionId] = []
        self.session, self.numbers, self.now_ns = 1, 0, 0
        self.asking = FetchSessionClient(1)
        self.serving = self.serve()
        for each in self.keys:
            self.wish(each)

    def serve(self) -> FetchSessionHandler:
        return FetchSessionHandler(self.session, response_bytes_max=self.bytes_max, pace=self.pace)

    def wish(self, each: PartitionId) -> None:
        self.numbers += 1
        known = self.known.get(each)
        self.asking.update(each, fetch(self.numbers, self.copied[each], known=known))

    def grow(self, each: PartitionId, count: int) -> None:
        self.ends[each] += count
        self.marks[each] = self.ends[each] - 1
        self.serving.touch(each)

    def answer(self, each: PartitionId) -> Answer | None:
        self.looked += 1
        wish = self.wishes.get(each)
        if wish is None:
            return None
        return Frames(
            boot="b",
            number=wish.number,
            incarnation="i",
            leader_epoch=1,
            offset=wish.offset,
            upto=self.ends[each],
            high_watermark=self.marks[each],
            log_start=0,
            catching_up=self.catching_up,
        )

    def ask(self) -> None:
        request = self.asking.request()
        if request is not None:
            for each, one in self.serving.took(request):
                self.wishes[each] = one
                answer = self.answer(each)
                assert answer is not None
                self.serving.answer(each, answer)

    def respond(self) -> bool:
        """Make a response, and have the follower take it."""
        if not self.serving.begin(self.now_ns):
            return False
        taken, total, parts = [], 0, 0
        while (part := self.serving.next_part(self.answer, self.now_ns)) is not None:
            parts += 1
            assert isinstance(part.answer, Frames)
            room = part.answer.upto - part.answer.offset
            count = min(room, max(part.bytes_max // RECORD, 1)) if part.bytes_max else 0
            self.serving.filled(part, count * RECORD, self.now_ns)
            total += count * RECORD
            taken.append((part.key, part.answer, count))
        assert total <= self.bytes_max + RECORD
        if parts:
            self.responses += 1
            self.asking.took(*self.serving.end())
        for each, answer, count in taken:
            self.known[each] = max(self.known.get(each, -1), answer.high_watermark)
            if count:
                assert answer.offset == self.copied[each], "sent twice"
                self.copied[each] += count
                self.sent.append(each)
                self.wish(each)
        return parts > 0

    def lose_the_link(self) -> None:
        self.session += 1
        self.asking.restart(self.session)
        self.serving = self.serve()
        self.wishes, self.known = {}, {}
        for each in self.keys:
            self.wish(each)

    def settle(self) -> None:
        for _ in range(10_000):
            self.ask()
            if not self.respond() and self.asking.request() is None:
                deadline_ns = self.serving.next_deadline_ns(self.now_ns)
                if deadline_ns is None:
                    return
                self.now_ns = max(deadline_ns, self.now_ns + 1)
        pytest.fail("it does not come to rest")


@given(st.integers(0, 1 << 32), st.booleans())
def test_everything_arrives_once_whatever_happens_to_the_link(seed: int, paced: bool) -> None:
    random = Random(seed)
    pace = CatchUpPace(10_000 if paced else None)
    pair = Pair(random.randint(1, 6), bytes_max=random.choice((5, 25, 100)), pace=pace)
    pair.catching_up = paced
    for _ in range(random.randint(0, 60)):
        match random.randrange(8):
            case 0 | 1 | 2:
                pair.grow(random.choice(pair.keys), random.randint(1, 5))
            case 3 | 4:
                pair.ask()
            case 5 | 6:
                pair.respond()
            case _ if random.random() < 0.2:
                pair.lose_the_link()
            case _:
                pair.now_ns += random.randrange(10_000_000)
    pair.settle()
    assert pair.copied == pair.ends
    assert pair.known == pair.marks


def test_idle_partitions_cost_nothing() -> None:
    pair = Pair(1000)
    pair.settle()
    pair.looked = 0
    for _ in range(50):
        pair.grow(pair.keys[7], 1)
        pair.settle()
    assert pair.looked <= 50 * 4


def commit(pair: Pair, each: PartitionId, count: int) -> None:
    """Records come, are copied, and are committed then."""
    pair.ends[each] += count
    pair.serving.touch(each)
    while pair.copied[each] < pair.ends[each]:
        pair.ask()
        pair.respond()
    pair.ask()
    pair.marks[each] = pair.ends[each] - 1
    pair.serving.high_watermark_risen(each, pair.now_ns)


def test_records_that_come_one_after_another_cost_a_response_each() -> None:
    pair = Pair(1)
    pair.settle()
    pair.responses = 0
    for _ in range(50):
        commit(pair, key(0), 1)
        assert not pair.respond(), "the high watermark goes with the next record"
    assert pair.responses == 50
    assert pair.known == {key(0): 48}
    pair.settle()
    assert pair.known == pair.marks


def test_high_watermarks_go_together_when_the_first_has_waited() -> None:
    pair = Pair(100)
    pair.settle()
    for each in pair.keys[:50]:
        pair.ends[each] += 1
        pair.serving.touch(each)
    while pair.copied != pair.ends:
        pair.ask()
        pair.respond()
    pair.ask()
    looked = pair.looked
    for each in pair.keys[:50]:
        pair.marks[each] = 0
        pair.serving.high_watermark_risen(each, pair.now_ns)
        assert not pair.serving.has_ready
        pair.now_ns += 1
    assert pair.looked == looked
    deadline_ns = pair.serving.next_deadline_ns(pair.now_ns)
    assert deadline_ns is not None
    pair.now_ns = deadline_ns
    assert pair.respond()
    assert pair.known == pair.marks
    assert pair.serving.next_deadline_ns(pair.now_ns) is None


def test_a_follower_that_was_not_answered_yet_is_answered_at_once() -> None:
    serving = FetchSessionHandler(1, response_bytes_max=100, pace=CatchUpPace(None))
    for number, (known, answered) in enumerate([(None, True), (5, False), (None, True)], 1):
        wish = fetch(number, 6, synced=6, known=known)
        serving.took(Request(1, number, 0, ((key(1), wish),), ()))
        answer = frames(number, offset=6, upto=6, mark=5)
        serving.answer(key(1), answer)
        assert serving.begin(0) is answered
        assert (serving.next_part(lambda _: answer, 0) is not None) is answered  # noqa: B023


def test_what_the_follower_would_pass_over_is_told_after_its_next_wish() -> None:
    serving = FetchSessionHandler(1, response_bytes_max=100, pace=CatchUpPace(None))
    serving.took(Request(1, 1, 0, ((key(1), fetch(1, 0)),), ()))
    serving.touch(key(1))
    assert serving.begin(0)
    part = serving.next_part(lambda _: frames(1, upto=2), 0)
    assert part is not None
    serving.filled(part, 2 * RECORD, 0)
    serving.end()
    serving.touch(key(1))
    assert serving.begin(0)
    assert serving.next_part(lambda _: frames(1, upto=2, mark=1), 0) is None
    assert serving.next_deadline_ns(0) is None
    serving.took(Request(1, 2, 1, ((key(1), fetch(2, 2, synced=2, known=-1)),), ()))
    serving.touch(key(1))
    assert serving.begin(0)
    assert serving.next_part(lambda _: frames(2, offset=2, upto=2, mark=1), 0) is None
    assert serving.begin(MARK_WAIT_NS)
    assert serving.next_part(lambda _: frames(2, offset=2, upto=2, mark=1), MARK_WAIT_NS)


def test_each_partition_with_news_has_its_turn_before_any_has_its_next() -> None:
    pair = Pair(5, bytes_max=20)
    for each in pair.keys:
        pair.grow(each, 40)
    pair.settle()
    for first in range(0, len(pair.sent) - 5, 5):
        assert set(pair.sent[first : first + 5]) == set(pair.keys)


def test_responses_wait_until_those_before_are_taken() -> None:
    serving = FetchSessionHandler(1, response_bytes_max=100, pace=CatchUpPace(None))
    wishes = tuple((key(n), fetch(n, 0)) for n in range(4))
    serving.took(Request(1, 1, 0, wishes, ()))
    for count in range(RESPONSES_UNDER_WAY_MAX):
        serving.touch(key(count))
        assert serving.begin(0)
        serving.end()
    assert not serving.begin(0)
    serving.took(Request(1, 2, 1, (), ()))
    assert serving.begin(0)


def test_what_was_taken_is_told_before_the_leader_has_to_wait_for_it() -> None:
    asking = FetchSessionClient(1)
    for number in range(1, RESPONSES_UNDER_WAY_MAX):
        assert asking.request() is None, "one request for each response would be wasted"
        asking.took(1, number)
        if number > RESPONSES_UNACKNOWLEDGED_MAX:
            break
    request = asking.request()
    assert request == Request(1, 1, RESPONSES_UNACKNOWLEDGED_MAX + 1, (), ())
    assert asking.request() is None


@pytest.mark.parametrize(("session", "number", "taken"), [(2, 1, 0), (1, 2, 0), (1, 1, 1)])
def test_a_request_that_does_not_follow_ends_the_session(
    session: int, number: int, taken: int
) -> None:
    serving = FetchSessionHandler(1, response_bytes_max=100, pace=CatchUpPace(None))
    with pytest.raises(RefusedError, match="begin another session"):
        serving.took(Request(session, number, taken, (), ()))
    with pytest.raises(RefusedError, match="does not follow"):
        FetchSessionClient(1).took(1, 2)


def test_a_report_behind_a_wish_that_was_not_sent_becomes_part_of_it() -> None:
    asking = FetchSessionClient(1)
    asking.update(key(1), fetch(5, 10, synced=8))
    asking.update(key(1), fetch(6, 10, synced=10, wants=False))
    request = asking.request()
    assert request is not None
    assert request.fetches == ((key(1), fetch(5, 10, synced=10)),)
    asking.update(key(1), fetch(7, 10, synced=10, wants=False))
    request = asking.request()
    assert request is not None
    assert request.fetches == ((key(1), fetch(7, 10, synced=10, wants=False)),)
    assert asking.request() is None


def test_a_request_is_bounded() -> None:
    asking = FetchSessionClient(1)
    for number in range(FETCHES_PER_REQUEST_MAX + 1):
        asking.update(key(number), fetch(1, 0))
    sizes = []
    while (request := asking.request()) is not None:
        sizes.append(len(request.fetches))
    assert sizes == [FETCHES_PER_REQUEST_MAX, 1]


def test_what_is_forgotten_is_not_served_any_more() -> None:
    asking = FetchSessionClient(1)
    serving = FetchSessionHandler(1, response_bytes_max=100, pace=CatchUpPace(None))
    asking.update(key(1), fetch(1, 0))
    request = asking.request()
    assert request is not None
    serving.took(request)
    asking.forget(key(1))
    request = asking.request()
    assert request is not None
    assert request.forgotten == (key(1),)
    serving.took(request)
    serving.touch(key(1))
    assert not serving.begin(0)


def test_an_answer_that_is_not_frames_is_sent_once() -> None:
    serving = FetchSessionHandler(1, response_bytes_max=100, pace=CatchUpPace(None))
    serving.took(Request(1, 1, 0, ((key(1), fetch(1, 0)),), ()))
    gone = OutOfRange(boot="b", number=1, incarnation="i", leader_epoch=1, log_start=5)
    serving.answer(key(1), gone)
    assert serving.begin(0)
    part = serving.next_part(lambda _: None, 0)
    assert part is not None
    assert (part.answer, part.bytes_max) == (gone, 0)
    assert serving.next_part(lambda _: None, 0) is None


@given(st.integers(100, 10_000_000), st.lists(st.integers(1, 100_000), min_size=1, max_size=20))
def test_the_pace_is_kept_over_any_time(rate: int, frames: list[int]) -> None:
    pace, now_ns, sent = CatchUpPace(rate), 1_000_000_000, 0
    for size in frames:
        while not pace.room(now_ns):
            assert pace.free_ns(now_ns) > now_ns
            now_ns = pace.free_ns(now_ns)
        pace.spend(size, now_ns)
        sent += size
    allowed = (now_ns - 1_000_000_000 + 100_000_000) * rate / 1e9
    assert sent - frames[-1] <= allowed + 1


def test_a_difference_is_told_though_there_is_nothing_else() -> None:
    """And that it has ended."""
    serving = FetchSessionHandler(1, response_bytes_max=100, pace=CatchUpPace(None))
    serving.took(Request(1, 1, 0, ((key(0), fetch(1, 5, known=-1)),), ()))

    def told(*, dedup_differs: bool = False) -> list[bool]:
        answer = replace(frames(1, offset=5, upto=5), dedup_differs=dedup_differs)
        serving.answer(key(0), answer)
        part = serving.next_part(lambda _: answer, 0) if serving.begin(0) else None
        if part is None:
            return []
        assert isinstance(part.answer, Frames)
        return [part.answer.dedup_differs]

    assert told() == [False], "where its log begins"
    assert told() == []
    assert told(dedup_differs=True) == [True]
    assert told(dedup_differs=True) == []
    assert told() == [False]
