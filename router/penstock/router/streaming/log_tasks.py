"""Tasks of a streaming query that read the log and write to sinks, past Spark SQL.

Where one route takes every record to a sink, Spark has nothing to decide. The query plans its
batches as ever; but no row of the log goes through the JVM, and what reads it is what writes.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pyspark import SparkContext

from penstock.router.read.offsets import Offsets
from penstock.router.read.source import LogStreamReader
from penstock.router.read.tasks import LostPartition, Task, TaskRows
from penstock.router.spark.task_runs import run_for_each

_T = TypeVar("_T")


class LogTasks:
    """Runs the tasks of the batches of one query.

    Args:
        reader: Reads the log; divides a batch into tasks as the query has.
        context: Spark's.
    """

    def __init__(self, reader: LogStreamReader, context: SparkContext) -> None:
        self._reader = reader
        self._context = context

    def run(self, task: Callable[[TaskRows], _T], start: Offsets, end: Offsets) -> list[_T]:
        """Run `task` once for each task of a batch; results come in the order of the log.

        A run may fail, and another one take its place; results are those of one run of each task.

        Args:
            task: Can be pickled, as what it returns can.
            start: Position before the batch.
            end: Position behind it.

        Raises:
            penstock.router.errors.DataLossError: Records are gone, and that is not accepted.
            penstock.router.errors.LogUnavailableError: logd stayed away.
            py4j.protocol.Py4JJavaError: A task failed.
        """
        parts = self._reader.partitions(start.to_json(), end.to_json())
        run = partial(_run, self._reader, task)
        return run_for_each(self._context, parts or [LostPartition(0)], run)

    def close(self) -> None:
        """Close the connection to logd."""
        self._reader.stop()


def _run(reader: LogStreamReader, task: Callable[[TaskRows], _T], part: Task) -> _T:
    return task(reader.rows(part))
