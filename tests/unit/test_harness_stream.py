"""The soak's checkers see each broken promise, and none where all were kept."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from penstock.logd.client.results import OffsetRange
from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.format.rows import slice_rows
from tests.harness.checkers.stream import CompactedChecker, Deletes, StreamChecker
from tests.harness.ledger import (
    Acked,
    Item,
    Keys,
    Rule,
    headers_of,
    is_tombstone,
    key_of,
    value_of,
)
from tests.harness.plan import BrokenPromiseError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.logd.client import LogClient
    from penstock.logd.format.frame import FrameHeader

SECOND = 1_000_000_000


@dataclass
class FakeLog:
    """A stream as a client shows it: a frame of each record, or of none where it was taken out."""

    keys: Keys = Keys.NONE
    items: list[Item] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    start: int = 0
    epoch: int = 1
    now_ns: int = 1_000 * SECOND

    def add(self, item: Item) -> Acked:
        self.items.append(item)
        self.epoch += 1
        return Acked("s", item, len(self.items) - 1, self.now_ns)

    def stream(self, _: str) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(epoch=self.epoch)])

    def offsets(self, _: str) -> OffsetRange:
        return OffsetRange(self.start, len(self.items))

    def batches(
        self, _: str, start: int, end: int
    ) -> "Iterator[tuple[FrameHeader, pa.RecordBatch]]":
        for offset in set(range(start, end)) - self.skipped:
            item = self.items[offset]
            key, value = key_of(item, self.keys), value_of(item, self.keys)
            headers = tuple((k, v.encode()) for k, v in headers_of(item, self.keys).items())
            record = Record("s", value, self.now_ns, key, headers)
            batch = build_batch([record])
            header = describe_body(encode_body(batch), batch).at(base_offset=offset, leader_epoch=1)
            if offset in self.gone:
                batch, header = batch.slice(0, 0), replace(header, record_count=0, compacted=True)
            yield header, slice_rows(header, batch, start)

    def records(self, _: str, start: int, end: int) -> Iterator[tuple[int, None]]:
        yield from ((offset, None) for offset in range(start, end) if offset not in self.gone)


class FakeClock:
    """The same time as the log's."""

    def __init__(self, log: FakeLog) -> None:
        self._log = log

    def unix_ns(self) -> int:
        return self._log.now_ns


def make_checker(log: FakeLog, deletes: Deletes | None = None, **options: Any) -> StreamChecker:
    kind = CompactedChecker if options else StreamChecker
    rules, keys = {"p": Rule.ONCE_IN_ORDER}, {"p": log.keys}
    return kind("s", rules, keys, deletes, clock=cast("Any", FakeClock(log)), **options)


def look(checker: StreamChecker, log: FakeLog, *acked: Acked) -> None:
    log.epoch += 1
    checker.look(cast("LogClient", log), acked)


@dataclass
class Compacted:
    """A compacted stream in which one key has two values, another a value and its tombstone."""

    log: FakeLog
    checker: StreamChecker
    values: list[Acked]
    deleted: Acked
    tombstone: Acked


@pytest.fixture
def compacted() -> Compacted:
    log = FakeLog(Keys.CHANGING)
    checker = make_checker(log, tombstone_retention_s=2)
    items = [Item("p", number) for number in range(3000)]
    by_key: dict[bytes | None, list[Item]] = {}
    for item in items:
        by_key.setdefault(key_of(item, Keys.CHANGING), []).append(item)

    def pair(*, dead: bool, after: int) -> tuple[Item, Item]:
        """A value and what follows it, of a key that the items before do not have."""
        used = {key_of(item, Keys.CHANGING) for item in log.items}
        for key, found in by_key.items():
            for first, second in pairwise(found if key not in used else ()):
                kinds = [is_tombstone(item, Keys.CHANGING) for item in (first, second)]
                if kinds == [False, dead] and first.number > after:
                    return first, second
        raise AssertionError

    first, second = pair(dead=False, after=0)
    values = [log.add(first), log.add(second)]
    third, fourth = pair(dead=True, after=second.number)
    deleted, tombstone = log.add(third), log.add(fourth)
    look(checker, log, *values, deleted, tombstone)
    return Compacted(log, checker, values, deleted, tombstone)


def test_what_compaction_may_take_out_breaks_no_promise(compacted: Compacted) -> None:
    log, checker = compacted.log, compacted.checker
    log.gone |= {compacted.values[0].offset, compacted.deleted.offset}
    look(checker, log)
    log.now_ns += 2 * SECOND
    log.gone.add(compacted.tombstone.offset)
    look(checker, log)
    assert checker.counts["acked, found"] == 4
    assert checker.counts["keys that went with their tombstones"] == 1


def test_a_record_that_was_superseded_before_it_was_seen_breaks_no_promise() -> None:
    log = FakeLog(Keys.CHANGING)
    checker = make_checker(log, tombstone_retention_s=2)
    item = next(Item("p", n) for n in range(99) if not is_tombstone(Item("p", n), Keys.CHANGING))
    key = key_of(item, Keys.CHANGING)
    later = [Item("p", number) for number in range(item.number + 1, 400)]
    again = next(i for i in later if key_of(i, Keys.CHANGING) == key)
    acked = [log.add(item), log.add(again)]
    log.gone.add(0)
    look(checker, log, *acked)
    assert checker.counts["acked, then compacted away"] == 1


def test_losing_the_last_record_of_a_key_is_seen(compacted: Compacted) -> None:
    compacted.log.gone.add(compacted.values[1].offset)
    with pytest.raises(BrokenPromiseError, match="last record of a key is gone"):
        look(compacted.checker, compacted.log)


def test_a_tombstone_that_goes_early_is_seen(compacted: Compacted) -> None:
    compacted.log.gone |= {compacted.deleted.offset, compacted.tombstone.offset}
    compacted.log.now_ns += SECOND
    with pytest.raises(BrokenPromiseError, match="last record of a key is gone"):
        look(compacted.checker, compacted.log)


def test_a_record_that_outlives_its_tombstone_is_seen(compacted: Compacted) -> None:
    compacted.log.gone.add(compacted.tombstone.offset)
    compacted.log.now_ns += 2 * SECOND
    with pytest.raises(BrokenPromiseError, match="outlives its tombstone"):
        look(compacted.checker, compacted.log)


def test_a_record_that_comes_back_is_seen(compacted: Compacted) -> None:
    compacted.log.gone.add(compacted.values[0].offset)
    look(compacted.checker, compacted.log)
    compacted.log.gone.clear()
    with pytest.raises(BrokenPromiseError, match="was gone and has come back"):
        look(compacted.checker, compacted.log)


def test_a_record_at_another_offset_is_seen(compacted: Compacted) -> None:
    items = compacted.log.items
    items[0], items[1] = items[1], items[0]
    with pytest.raises(BrokenPromiseError, match="has become"):
        look(compacted.checker, compacted.log)


def test_a_lost_record_without_a_key_is_seen_in_a_compacted_stream() -> None:
    log = FakeLog()
    checker = make_checker(log, tombstone_retention_s=2)
    look(checker, log, log.add(Item("p", 1)))
    log.gone.add(0)
    with pytest.raises(BrokenPromiseError, match="has no key, and is gone"):
        look(checker, log)


def test_holes_in_a_stream_that_is_not_compacted_are_seen() -> None:
    log = FakeLog()
    acked = log.add(Item("p", 1))
    log.gone.add(0)
    with pytest.raises(BrokenPromiseError, match="a frame has holes"):
        look(make_checker(log), log, acked)


def test_retention_that_leaves_fewer_messages_than_the_limit_is_seen() -> None:
    log = FakeLog()
    checker = make_checker(log, Deletes(messages=5))
    acked = [log.add(Item("p", number)) for number in range(10)]
    log.start = 5
    look(checker, log, *acked)
    assert checker.counts["acked, deleted by retention"] == 5
    log.start = 6
    with pytest.raises(BrokenPromiseError, match="retention left only"):
        look(checker, log)


def test_an_epoch_that_does_not_rise_over_a_restart_is_seen() -> None:
    log = FakeLog()
    checker = make_checker(log)
    look(checker, log, log.add(Item("p", 1)))
    log.epoch -= 1
    with pytest.raises(BrokenPromiseError, match="epoch 3 follows 3"):
        look(checker, log)


def test_offsets_that_no_frame_has_are_seen() -> None:
    log = FakeLog(skipped={1})
    acked = [log.add(Item("p", number)) for number in range(3)]
    with pytest.raises(BrokenPromiseError, match="a gap before"):
        look(make_checker(log), log, *acked)


@pytest.mark.parametrize("seen", [True, False])
def test_retention_that_deletes_what_is_too_young_is_seen(seen: bool) -> None:
    log = FakeLog()
    checker = make_checker(log, Deletes(age_s=3))
    acked = [log.add(Item("p", number)) for number in range(10)]
    if seen:
        look(checker, log, *acked)
    log.now_ns += 2 * SECOND
    log.start = 5
    with pytest.raises(BrokenPromiseError, match=r"is deleted at 2\.000 s"):
        look(checker, log, *([] if seen else acked))
