"""Budget of the heap of Spark's JVM: how many bytes of records may be in work at a time.

All sinks of a job share one JVM, and each has its batches made for itself. One that is collected
takes several times the bytes of its records there: what a task makes of them, Arrow's form of it,
and the result that goes to Python. So a query acquires the bytes that its batch was planned with
before it has Spark make it, and releases them when Python has it: what Python holds is not in the
heap, and a destination that takes long delays no other sink.

A batch that tasks write is counted likewise. Of what goes past Spark to its tasks no more than some
parts of 4 MiB are in the heap at a time (`columns/passthrough.py`), but columns that conditions
look at are in Spark's rows, whole: six bytes of the heap for each byte. One that tasks read and
write past Spark SQL is in Python alone, and is counted all the same.

    bytes of records    0 ... max_bytes     wait until that much is free
                        ... largest         wait until nothing else is in work
                        more                are refused: the heap would run out, again and again
"""

import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.base.files import atomic_write
from penstock.router.errors import StoppedError
from penstock.router.job.config import Spark, Trigger
from penstock.router.read.batch_sizes import PlannedBytes

_MIB: Final = 1024 * 1024

HEAP_OF_SPARK: Final = 160 * _MIB
"""Bytes of the heap for Spark itself and for whatever else a job keeps there."""

HEAP_BYTES_OF_ONE: Final = 11
"""Bytes of the heap for each byte of a record that goes alone. Measured with one record that hardly
compresses and OpenJDK 17's serial collector: 30 MB of it pass a heap of 640 MiB, and not one of 480
MiB. A third of the heap is for young objects, which these are too large for."""

HEAP_BYTES: Final = 12
"""Bytes of the heap for each byte, where several batches are in work at a time."""

_LEAST_PART: Final = 16
"""The budget never falls below its first value divided by this, however often the heap ran out."""

_POLL_S: Final = 0.2
_ROUND_BYTES: Final = 32 * _MIB
_SIZE: Final = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1024, "m": _MIB, "g": 1024 * _MIB, "t": 1024 * 1024 * _MIB}
_EXECUTOR: Final = "spark.executor.memory"
_EXECUTOR_DEFAULT: Final = "1g"


class ByteSemaphore:
    """Lets batches be in work as long as they have no more bytes together; first come, first go.

    One that is larger than the bound goes alone.

    Args:
        max_bytes: The bound.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.in_use = 0
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def acquire(self, size: int, is_stopping: Callable[[], bool]) -> int:
        """Wait until so many bytes are free, and every batch has gone that came before.

        Args:
            size: Bytes of the batch.
            is_stopping: Asked again and again; whether the batch is not wanted any more.

        Returns:
            What is to be released.

        Raises:
            StoppedError: It is not.
        """
        share, turn = min(size, self.max_bytes), object()
        with self._changed:
            self._waiting.append(turn)
            try:
                while self._waiting[0] is not turn or self.in_use + share > self.max_bytes:
                    if is_stopping():
                        raise StoppedError("this batch is given up before it is read")
                    self._changed.wait(_POLL_S)
                self.in_use += share
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
        return share

    def release(self, share: int) -> None:
        """Free what `acquire` returned."""
        with self._changed:
            self.in_use -= share
            self._changed.notify_all()


class HeapBudget:
    """The heap budget of one job.

    Args:
        spark: The job's settings of Spark.
        note: File that records between processes when the heap has run out; None: no record.

    Attributes:
        largest: Maximum bytes of records of a batch that is alone in work.
    """

    def __init__(self, spark: Spark, note: Path | None = None) -> None:
        self._setting, self._memory = _smallest_heap(spark)
        self._note = note
        heap = max(_bytes_of(self._memory) - HEAP_OF_SPARK, _MIB)
        self.largest = heap // HEAP_BYTES_OF_ONE
        max_bytes = heap // HEAP_BYTES
        self._failed_with = 0
        if ran_out_with := self._noted():
            least = max_bytes // _LEAST_PART  # else nothing would go any more
            max_bytes = max(min(max_bytes, ran_out_with // 2), least)
            self.largest = max(min(self.largest, ran_out_with - 1), least)
        self._bytes = ByteSemaphore(max_bytes)

    def batch_bytes(self, trigger: Trigger) -> int:
        """Maximum bytes of a batch: what the job file says, or less where the heap has no room."""
        return min(trigger.max_bytes, self.largest)

    @contextmanager
    def holding(self, size: int | None, is_stopping: Callable[[], bool]) -> Iterator[None]:
        """Within the block, so many bytes of records may be in the heap.

        Args:
            size: Bytes of a batch; None: unknown, and it goes alone.
            is_stopping: The same as in `ByteSemaphore.acquire`.

        Raises:
            StoppedError: Likewise.
        """
        known = self.largest if size is None else size
        share = self._bytes.acquire(known, is_stopping)
        try:
            yield
            self._failed_with = 0
        except BaseException:
            # One that goes alone may have more bytes than the bound.
            self._failed_with = max(self._failed_with, self._bytes.in_use, known)
            raise
        finally:
            self._bytes.release(share)

    @property
    def in_use(self) -> int:
        """Bytes of records that are in the heap now."""
        return self._bytes.in_use

    def ran_out(self) -> None:
        """The heap ran out: the next process has less in work, or refuses what was alone there.

        Else it would begin with the same, and so on for ever.
        """
        in_work = max(self._failed_with, self._bytes.in_use)
        # With few it was not they that filled it.
        if self._note is not None and in_work >= self._bytes.max_bytes // 2:
            told = {"memory": self._memory, "in_work": in_work}
            atomic_write(self._note, json.dumps(told).encode())

    def forget(self) -> None:
        """The process ends as it should."""
        if self._note is not None:
            self._note.unlink(missing_ok=True)

    @property
    def has_run_out(self) -> bool:
        """True if the heap of an earlier process, as large as this one's, ran out."""
        return bool(self._noted())

    def refusal(self, planned: PlannedBytes) -> str | None:
        """Why a batch cannot be delivered, in words for the operator; None: it can."""
        if planned.size <= self.largest:
            return None
        needed = HEAP_OF_SPARK + HEAP_BYTES_OF_ONE * planned.size
        needed = max(needed, _bytes_of(self._memory) + 1)
        least = f"{-(-needed // _ROUND_BYTES) * _ROUND_BYTES // _MIB}m"
        room = f"{self._setting} {self._memory} has room for {self.largest / 1e6:.1f} MB"
        it = planned.largest
        if it is None or it.size < planned.size * 0.9:
            return (
                f"a batch of {planned.size / 1e6:.1f} MB was begun, and {room} at a time: raise it"
                f" to at least {least}, which lets this batch through; nothing is lost meanwhile"
            )
        place = f"{it.stream}/{it.partition} offset {it.start}"
        what = "the record at" if it.end == it.start + 1 else f"{it.end - it.start} records from"
        return (
            f"{what} {place} {'has' if it.end == it.start + 1 else 'have'}"
            f" {it.size / 1e6:.1f} MB, and {room} at a time: raise it to at least {least}; nothing"
            " is lost meanwhile. To keep such records out, lower max_message_bytes of the stream"
            f" {it.stream!r} in logd"
        )

    def _noted(self) -> int:
        """Return the bytes in work when a heap of this size ran out; 0: it has not."""
        if self._note is None:
            return 0
        try:
            told = json.loads(self._note.read_text())
        except (FileNotFoundError, ValueError):
            return 0
        return int(told["in_work"]) if told.get("memory") == self._memory else 0


def _smallest_heap(spark: Spark) -> tuple[str, str]:
    """The setting of the heap with the least memory that a record goes through, and that."""
    heaps = [("spark.driver_memory", spark.driver_memory)]
    executors = spark.conf.get(_EXECUTOR, _EXECUTOR_DEFAULT)
    if not spark.is_local and _SIZE.fullmatch(executors):  # else Spark says that it is no amount
        heaps.append((f"spark.conf's {_EXECUTOR}", executors))
    return min(heaps, key=lambda heap: _bytes_of(heap[1]))


def _bytes_of(memory: str) -> int:
    found = _SIZE.fullmatch(memory)
    assert found is not None, memory
    return int(found[1]) * _UNITS[found[2].lower()]
