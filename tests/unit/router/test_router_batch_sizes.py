"""Batches of bounded bytes while logd answers late, in part or not at all."""

from dataclasses import replace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from typing_extensions import override

from penstock.router.errors import LogUnavailableError
from penstock.router.read.batch_sizes import FURTHER_BYTES, FURTHER_LOOKS, BatchSizes
from penstock.router.read.offsets import Readable, Span
from penstock.router.read.record_sizes import RECORD_BYTES, SAMPLE_BYTES, Look, Sample
from penstock.router.read.tasks import LogPartition
from tests.unit.router.source_log import LOGS, NEEDED, FakeLog, at, source_of, stream_reader

MIB = 1024 * 1024
ROWS = ReadMaxRows(50_000)


def put_off(answers: int, partitions: int = 1) -> FakeLog:
    """Records of 100 bytes; it tells no more than some sizes now."""
    log = FakeLog(Readable(0, 1000))
    log.sizes, log.answers, log.partitions = {"logs": 100}, answers, partitions
    return log


def test_under_a_quota_nothing_is_new_until_it_is_known_how_large_records_are() -> None:
    log = put_off(0)
    reader = stream_reader(log, maxBytesPerTrigger=str(32 * MIB), retryTimeoutSeconds="60")
    assert reader.latestOffset(at(0), ROWS) == at(0)
    log.answers = None
    assert reader.latestOffset(at(0), ROWS) == at(1000)
    log.answers = 0
    log.clock.sleep(100)
    log.readable = Readable(0, 2000)
    assert reader.latestOffset(at(1000), ROWS) == at(1000)
    log.clock.sleep(61)
    with pytest.raises(LogUnavailableError, match="QUOTA_EXCEEDED"):
        reader.latestOffset(at(1000), ROWS)


def test_the_first_partition_that_is_silent_ends_the_question() -> None:
    log = put_off(3, partitions=16)
    reader = stream_reader(log, maxBytesPerTrigger=str(32 * MIB))
    assert reader.latestOffset(at(0), ROWS) == at(0)
    assert log.looked_at == [("logs", number, 0) for number in range(4)]


def test_what_logd_told_of_a_batch_is_not_asked_again() -> None:
    """Else a quota that has room for one answer at a time would never let a batch through."""
    log = put_off(1, partitions=2)
    reader = stream_reader(log, maxBytesPerTrigger=str(32 * MIB))
    for _ in range(3):
        log.answers = 1
        assert reader.latestOffset(at(0), ROWS) == at(0)
    log.answers = 1
    assert reader.latestOffset(at(0), ROWS) != at(0)
    asked = [(number, offset) for _, number, offset in log.looked_at]
    in_vain = [(1, 0), (1, 0), (1, 999)]
    assert asked == [(0, 0), (1, 0), (0, 999), (1, 0), (1, 0), (1, 999), (1, 999)]
    assert sorted(asked) == sorted([(0, 0), (0, 999), (1, 0), (1, 999), *in_vain])


def test_available_now_waits_for_how_large_records_are() -> None:
    log = put_off(0)
    reader = stream_reader(log, maxBytesPerTrigger=str(32 * MIB))
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(at(0), ROWS) == at(1000)
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(1000)


def test_a_batch_of_an_earlier_process_waits_likewise_and_is_not_read_in_crumbs() -> None:
    log = put_off(0)
    reader = stream_reader(log, maxBytesPerTrigger=str(32 * MIB))
    assert len(reader.partitions(at(0), at(1000))) == 1


def test_a_batch_that_was_put_off_does_not_wait_for_more_records() -> None:
    log = put_off(0)
    options = {"maxBytesPerTrigger": str(MIB), "minOffsetsPerTrigger": "2000"}
    reader = stream_reader(log, maxTriggerDelay="5m", **options)
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(at(0), limit) == at(0)
    log.answers = None
    assert reader.latestOffset(at(0), limit) == at(1000)


@pytest.mark.parametrize(("end", "asked"), [(5, 1), (6, 1), (7, 2)])
def test_nobody_is_asked_for_what_was_looked_at(end: int, asked: int) -> None:
    class Six(FakeLog):
        @override
        def size_at(self, look: Look) -> Sample:
            return Sample(MIB, look.offset, look.offset + 6)

    log = Six(None)
    sizes = BatchSizes(MIB, None, None)
    first, last = {LOGS: 0}, {LOGS: end}
    assert sizes.cut(log, first, last, patiently=False) == {LOGS: 1}  # type: ignore[arg-type]
    assert len(log.looked_at) == asked


def test_what_cannot_be_read_is_taken_to_be_large() -> None:
    answers = {0: Sample(None, 0, 1), 99: Sample(100, 99, 100)}

    class Partly(FakeLog):
        @override
        def size_at(self, look: Look) -> Sample:
            return answers[look.offset]

    log = Partly(None)
    first, last = {LOGS: 0}, {LOGS: 100}
    sizes = BatchSizes(4 * RECORD_BYTES, None, None)
    assert sizes.cut(log, first, last, patiently=False) == last  # type: ignore[arg-type]
    answers[99] = Sample(None, 99, 100)
    sizes = BatchSizes(4 * RECORD_BYTES, None, None)
    assert sizes.cut(log, first, last, patiently=False) == {LOGS: 4}  # type: ignore[arg-type]


class Sparse(FakeLog):
    """Who reads it may read records of `size` bytes alone, which lie at some offsets.

    Others have 1 KiB each, of which a look passes as many as it asks bytes for.
    """

    def __init__(self, matching: range, size: int) -> None:
        super().__init__(None)
        self.matching, self.size = matching, size
        self.sizes = {"logs": size}

    @override
    def size_at(self, look: Look) -> Sample:
        seen = min(look.offset + look.max_bytes // 1024, look.span.end)
        found = [at for at in range(look.offset, seen) if at in self.matching]
        if not found:
            return Sample(0, look.offset, seen)
        return Sample(self.size, found[0], found[0] + 1)


def ends_of(log: FakeLog, end: int, max_bytes: int = 8 * MIB) -> list[int]:
    """Where batches end, one after the other."""
    sizes, found = BatchSizes(max_bytes, None, "t.a"), [0]
    while found[-1] < end:
        first, last = {LOGS: found[-1]}, {LOGS: end}
        found.append(sizes.cut(log, first, last, patiently=False)[LOGS])  # type: ignore[arg-type]
    return found[1:]


def test_a_batch_whose_beginning_has_nothing_for_its_reader_ends_where_there_is_something() -> None:
    log = Sparse(range(6000, 6016), MIB)
    assert ends_of(log, 9000)[:3] == [6000, 6008, 6016]
    assert [look for _, _, look in log.looked_at][:3] == [0, 8, 8 + FURTHER_BYTES // 1024]


def test_where_nothing_is_for_its_reader_a_batch_ends_where_nobody_has_looked() -> None:
    far = SAMPLE_BYTES // 1024 + FURTHER_LOOKS * FURTHER_BYTES // 1024
    log = Sparse(range(0), MIB)
    assert ends_of(log, far) == [far]
    assert ends_of(log, far + 7) == [far, far + 7]


def test_a_batch_without_anything_for_its_reader_is_one_task() -> None:
    sizes, span = BatchSizes(None, 8 * MIB, "t.a"), Span("logs", 0, 0, 5000)
    assert sizes.divide(Sparse(range(0), MIB), [span]) == [span]  # type: ignore[arg-type]
    later = sizes.divide(Sparse(range(4500, 4516), MIB), [replace(span, start=4000)])  # type: ignore[arg-type]
    assert len(later) > 1


def read_once(log: FakeLog, **options: str) -> list[LogPartition]:
    source = source_of(log, NEEDED | options)
    return list(source.reader(source.schema()).partitions())


def test_what_is_read_once_is_divided_into_tasks_where_that_is_asked_for() -> None:
    """As a replay does, also of a batch that a job has made."""
    log = FakeLog(Readable(0, 32))
    log.sizes = {"logs": MIB}
    found = [it.span for it in read_once(log, maxBytesPerTask=str(8 * MIB))]
    assert [(it.start, it.end) for it in found] == [(0, 8), (8, 16), (16, 24), (24, 32)]
    log.sizes = {}
    assert len(read_once(log)) == 1
