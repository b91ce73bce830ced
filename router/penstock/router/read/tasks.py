"""The tasks that Spark reads a batch in: which there are, and what each does.

What a task finds lost, and passes over because that is accepted, it tells the driver in a row of
its own (`penstock.router.columns.passthrough`): no other way leads there from a worker.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from penstock.base.clock import BlockingClock, SystemClock
from penstock.router.columns.filters import subject_of
from penstock.router.columns.projection import Projection, Projector
from penstock.router.read.batch_sizes import (
    BatchSizes,
    PlannedBytes,
    PlannedTask,
    bytes_allowed,
)
from penstock.router.read.fetch import warn
from penstock.router.read.logd_reader import LogdReader
from penstock.router.read.offsets import (
    Readable,
    Span,
    StreamPartition,
    check_readable,
    clip,
    split,
)
from penstock.router.read.options import SourceOptions
from penstock.router.spark.task_runs import spare_what_stays


class LogPartition(InputPartition):  # type: ignore[misc] # pyspark is untyped here
    """The part of the log that one task reads.

    Attributes:
        span: Records of a partition.
        max_bytes: Maximum bytes of memory that they may take; None: unlimited.
    """

    def __init__(self, span: Span, max_bytes: int | None = None) -> None:
        super().__init__(span)
        self.span = span
        self.max_bytes = max_bytes


class LostPartition(InputPartition):  # type: ignore[misc] # pyspark is untyped here
    """Offsets of a batch that nothing reads, for they are gone."""

    def __init__(self, lost: int) -> None:
        super().__init__(lost)
        self.lost = lost


Task = LogPartition | LostPartition


def plan(
    spans: list[Span],
    readable: Mapping[StreamPartition, Readable],
    options: SourceOptions,
    sizes: BatchSizes,
    log: LogdReader,
    *,
    ends: Mapping[StreamPartition, int],
) -> list[Task]:
    """Divide the spans of a batch into tasks.

    Args:
        spans: One a partition.
        readable: Readable offsets of partitions.
        options: Options of the source; with `planIn` the plan is written there, and a repeated
            batch is divided as it is written, unless its sizes were not measured then and are now,
            or `wholePartitions` was set since.
        sizes: Sizes of the batch.
        log: Log to sample.
        ends: Ends of the batch, by partition.

    Raises:
        DataLossError: Records of it are gone, and that is not accepted.
    """
    noted = None if options.plan_in is None else PlannedBytes.read(options.plan_in)
    if noted is not None and (
        not noted.is_of(spans)
        or sizes.measures > noted.is_measured
        or (options.whole_partitions and noted.cuts())
    ):
        noted = None
    lost: list[Task] = []
    kept = spans
    if options.fail_on_data_loss:
        check_readable(spans, readable)
    elif (kept := clip(spans, readable)) != spans:
        warn(f"going on without lost records: {spans} -> {kept}")
        lost = [LostPartition(_length(spans) - _length(kept))]
    if noted is not None:
        sized = dict(_as_noted(noted, spans, readable))
        return [*lost, *(LogPartition(it, bytes_allowed(size)) for it, size in sized.items())]
    chunks = sizes.divide(log, kept, whole=options.whole_partitions)
    if not options.whole_partitions:
        chunks = split(chunks, options.min_partitions)
    if options.plan_in is None:
        return [*lost, *map(LogPartition, chunks)]
    sized = {chunk: sizes.size_of(chunk) for chunk in chunks}
    tasks = (PlannedTask(*it.where, it.start, it.end, size) for it, size in sized.items())
    planned = PlannedBytes(
        ends, sum(sized.values()), sizes.measures, sizes.largest(kept), tuple(tasks)
    )
    planned.write(options.plan_in)
    return [*lost, *(LogPartition(it, bytes_allowed(size)) for it, size in sized.items())]


def _as_noted(
    noted: PlannedBytes, spans: list[Span], readable: Mapping[StreamPartition, Readable]
) -> Iterator[tuple[Span, int]]:
    """Yield the parts of a plan's tasks that are still in the log, and their bytes."""
    of_partition = {span.where: span for span in spans}
    for task in noted.tasks:
        span = of_partition[StreamPartition(task.stream, task.partition)]
        for chunk in clip([replace(span, start=task.start, end=task.end)], readable):
            yield chunk, task.size


def _length(spans: list[Span]) -> int:
    return sum(span.length for span in spans)


def subject_to_read(options: SourceOptions, shape: Projection) -> str | None:
    """Return the subject whose records are requested; None: all."""
    return options.subject or subject_of(shape.only)


OpenLog = Callable[[SourceOptions, BlockingClock], LogdReader]
"""Opens the log that options name."""


class TaskRows:
    """The rows of a task, to be gone through once.

    Args:
        task: The task.
        options: Options of the source.
        shape: The rows' columns.
        open_log: Opens the log.

    Attributes:
        lost: Offsets of the task that are lost; known when all rows have come.
    """

    def __init__(
        self, task: Task, options: SourceOptions, shape: Projection, open_log: OpenLog
    ) -> None:
        self.lost = 0
        self._task = task
        self._options = options
        self._shape = shape
        self._open_log = open_log

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read them."""
        task, options = self._task, self._options
        if task.value is None:  # Spark's stand-in where there is nothing to read
            return
        if isinstance(task, LostPartition):
            self.lost = task.lost
            return
        with self._open_log(options, SystemClock()) as log:
            for rows in shaped_rows(task.span, log, options, self._shape, task.max_bytes):
                if rows.num_rows:
                    yield rows
            self.lost = log.lost
        if TaskContext.get() is not None:
            spare_what_stays(gc)


def read_task(
    task: Task, options: SourceOptions, shape: Projection, open_log: OpenLog = SourceOptions.reading
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, and last what of it is lost, if the receiver can report that."""
    rows = TaskRows(task, options, shape, open_log)
    yield from rows
    if rows.lost:
        yield from Projector(shape).lost(rows.lost)


def shaped_rows(
    span: Span,
    log: LogdReader,
    options: SourceOptions,
    shape: Projection,
    max_bytes: int | None = None,
) -> Iterable[pa.RecordBatch]:
    """The rows of a span, some of no rows."""
    make = partial(Projector(shape).shape, span)
    how: Any = {
        "fail_on_data_loss": options.fail_on_data_loss,
        "subject": subject_to_read(options, shape),
    }
    if max_bytes is not None:
        how["max_bytes"] = max_bytes
    return map(make, log.rows(span, **how))
