"""How many bytes of records the heap has room for, and who goes when."""

import threading
from pathlib import Path

import pytest

from penstock.router.errors import StoppedError
from penstock.router.job.config import Spark
from penstock.router.read.batch_sizes import LargestFrame, PlannedBytes
from penstock.router.spark.heap_budget import ByteSemaphore, HeapBudget
from tests.support.waiting import wait_until

MIB = 1024 * 1024


def never() -> bool:
    return False


def in_background(semaphore: ByteSemaphore, size: int, told: list[int]) -> threading.Thread:
    def work() -> None:
        semaphore.acquire(size, never)
        told.append(size)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_batches_are_in_work_together_up_to_the_bound_and_the_next_one_waits() -> None:
    semaphore, told = ByteSemaphore(100), list[int]()
    first, second = semaphore.acquire(60, never), semaphore.acquire(40, never)
    waiting = in_background(semaphore, 50, told)
    wait_until(lambda: semaphore.waiting == 1, what="a batch waits")
    semaphore.release(second)
    waiting.join(0.5)
    assert told == []
    semaphore.release(first)
    waiting.join(60)
    assert told == [50]
    assert semaphore.in_use == 50


def test_a_batch_above_the_bound_goes_alone() -> None:
    semaphore, told = ByteSemaphore(100), list[int]()
    small = semaphore.acquire(1, never)
    large = in_background(semaphore, 500, told)
    wait_until(lambda: semaphore.waiting == 1, what="the large one waits")
    semaphore.release(small)
    large.join(60)
    assert told == [500]
    behind = in_background(semaphore, 1, told)
    wait_until(lambda: semaphore.waiting == 1, what="a small one waits")
    semaphore.release(100)
    behind.join(60)
    assert told == [500, 1]


def test_small_batches_do_not_pass_a_large_one_that_waits() -> None:
    """Else there would always be one in work, and the large one would never go."""
    semaphore, told = ByteSemaphore(100), list[int]()
    share = semaphore.acquire(60, never)
    large = in_background(semaphore, 90, told)
    wait_until(lambda: semaphore.waiting == 1, what="the large one waits")
    small = in_background(semaphore, 10, told)
    wait_until(lambda: semaphore.waiting == 2, what="the small one waits behind it")
    semaphore.release(share)
    large.join(60)
    small.join(60)
    assert told == [90, 10]


def test_a_batch_that_is_not_wanted_any_more_leaves_the_queue() -> None:
    semaphore = ByteSemaphore(100)
    share = semaphore.acquire(100, never)
    with pytest.raises(StoppedError):
        semaphore.acquire(1, lambda: True)
    semaphore.release(share)
    assert semaphore.acquire(100, never) == 100


def planned(size: int, largest: int | None = None, records: int = 1) -> PlannedBytes:
    frame = None if largest is None else LargestFrame("logs", 2, 7, 7 + records, largest)
    return PlannedBytes({}, size, frame is not None, frame)


def test_a_record_that_the_heap_has_no_room_for_is_refused_with_what_helps() -> None:
    budget = HeapBudget(Spark(driver_memory="480m"))
    assert budget.refusal(planned(20 * MIB)) is None
    said = budget.refusal(planned(31_457_433, 31_457_300))
    assert said == (
        "the record at logs/2 offset 7 has 31.5 MB, and spark.driver_memory 480m has room for"
        " 30.5 MB at a time: raise it to at least 512m; nothing is lost meanwhile. To keep such"
        " records out, lower max_message_bytes of the stream 'logs' in logd"
    )
    assert HeapBudget(Spark(driver_memory="512m")).refusal(planned(31_457_433)) is None


def test_a_batch_that_was_begun_and_is_too_large_is_told_of_as_one() -> None:
    said = HeapBudget(Spark(driver_memory="480m")).refusal(planned(60 * MIB, 30 * MIB))
    assert said is not None
    assert said.startswith("a batch of 62.9 MB was begun")
    assert "at least 832m" in said


def test_executors_elsewhere_with_a_smaller_heap_are_what_counts() -> None:
    spark = Spark(
        master="spark://10.0.0.5:7077",
        driver_memory="4g",
        conf={"spark.executor.memory": "512m"},
    )
    said = HeapBudget(spark).refusal(planned(60 * MIB, 60 * MIB))
    assert said is not None
    assert "spark.conf's spark.executor.memory 512m" in said
    local = spark.model_copy(update={"master": "local[2]"})
    assert HeapBudget(local).refusal(planned(60 * MIB, 60 * MIB)) is None


def ran_out(note: Path, size: int, memory: str = "640m") -> HeapBudget:
    """The next process's, after one that died with so much in work."""
    before = HeapBudget(Spark(driver_memory=memory), note)
    with pytest.raises(OSError, match="the JVM is gone"), before.holding(size, never):
        raise OSError("the JVM is gone")
    before.ran_out()
    return HeapBudget(Spark(driver_memory=memory), note)


def test_after_the_heap_ran_out_less_is_in_work_and_what_was_alone_is_refused(
    tmp_path: Path,
) -> None:
    """Else the job would begin with the same and die of it, again and again."""
    note = tmp_path / "note"
    alone = planned(30 * MIB, 30 * MIB)
    assert HeapBudget(Spark(), note).refusal(alone) is None
    again = ran_out(note, 30 * MIB)
    assert again.has_run_out
    said = again.refusal(alone)
    assert said is not None
    assert "raise it to at least 672m" in said
    assert again.refusal(planned(20 * MIB)) is None
    more = HeapBudget(Spark(driver_memory="800m"), note)
    assert not more.has_run_out
    assert more.refusal(alone) is None
    again.forget()
    assert HeapBudget(Spark(), note).refusal(alone) is None


def test_a_heap_that_something_else_filled_says_nothing_of_batches(tmp_path: Path) -> None:
    assert not ran_out(tmp_path / "note", MIB).has_run_out


def test_what_went_well_is_not_what_filled_the_heap(tmp_path: Path) -> None:
    budget = HeapBudget(Spark(), tmp_path / "note")
    with budget.holding(30 * MIB, never):
        pass
    budget.ran_out()
    assert not HeapBudget(Spark(), tmp_path / "note").has_run_out
