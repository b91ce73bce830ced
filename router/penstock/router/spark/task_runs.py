"""Runs a function over a frame's rows in Spark's tasks, and brings back what each run returned.

It is a sink of Spark's own, `format("penstock-task")`, written in Python: Spark gives each task the
rows that it has as Arrow batches, takes the result of one run of each task, and hands all of them
to the process that commits. Between that process and the driver's there is a file, so is there
between the driver's and the one that plans: options of a sink are shown on Spark's page.

    DIRECTORY/task       0600: the function, pickled
    DIRECTORY/results    0600: what each run returned, pickled

`run_for_each` needs neither Spark SQL nor these processes: its tasks get no rows.
"""

import gc
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from typing_extensions import override

from penstock.base.files import atomic_write

NAME: Final = "penstock-task"
_MODE: Final = 0o600

_T = TypeVar("_T")
_Part = TypeVar("_Part")


def run_in_tasks(
    frame: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], _T], directory: Path
) -> list[_T]:
    """Run `task` once for each task of a frame, with the rows that Spark has there.

    A run may fail, and another one take its place; results are those of one run of each task.

    Args:
        frame: Its rows come in the order that it gives them.
        task: Can be pickled, as what it returns can.
        directory: Private directory of the files; two calls at a time need two.

    Raises:
        pyspark.errors.PySparkException: A task failed.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    planned, results = directory / "task", directory / "results"
    atomic_write(planned, pickle.dumps(task), mode=_MODE, durable=False)
    try:
        frame.write.format(NAME).option("directory", str(directory)).mode("append").save()
        returned: list[_T] = [pickle.loads(it) for it in pickle.loads(results.read_bytes())]  # noqa: S301 - our own
    finally:
        planned.unlink()
        results.unlink(missing_ok=True)
    return returned


def run_for_each(
    context: SparkContext, parts: Sequence[_Part], task: Callable[[_Part], _T]
) -> list[_T]:
    """Run `task` in a task of Spark for each of the parts; results come in the parts' order.

    A run may fail, and another one take its place; the result is that of one run.

    Args:
        context: Spark's.
        parts: Can be pickled.
        task: As in `run_in_tasks`.

    Raises:
        py4j.protocol.Py4JJavaError: A task failed.
    """
    returned: list[_T] = context.parallelize(parts, len(parts)).map(task).collect()
    return returned


def tasks_at_once(context: SparkContext) -> int:
    """Return how many tasks of a job may run at the same time.

    Of a cluster these are those of the executors that it has, or will have as its settings say.
    """
    conf = context.getConf()
    jvm: Any = context._jsc.sc()  # noqa: SLF001 - Spark says it nowhere else
    profile = jvm.resourceProfileManager().defaultResourceProfile()
    executors = int(conf.get("spark.executor.instances", "0") or 0)
    cores = max(
        int(conf.get("spark.cores.max", "0") or 0),
        executors * int(conf.get("spark.executor.cores", "1") or 1),
    )
    each = int(conf.get("spark.task.cpus", "1") or 1)
    return max(int(jvm.maxNumConcurrentTasks(profile)), cores // each, 1)


def register(spark: SparkSession) -> None:
    """Make it known to a session, once."""
    spark.dataSource.register(TaskRuns)


class TaskRuns(DataSource):  # type: ignore[misc] # pyspark is untyped here
    """Data source whose writer passes the rows of a frame to a function."""

    @classmethod
    @override
    def name(cls) -> str:
        return NAME

    @override
    def writer(self, schema: StructType, overwrite: bool) -> "TaskWriter":
        spare_what_stays(gc)
        directory = Path(self.options["directory"])
        return TaskWriter((directory / "task").read_bytes(), directory / "results")


class Returned(WriterCommitMessage):  # type: ignore[misc] # as above
    """Result of a run, pickled, so that `commit` need not import its type."""

    def __init__(self, result: bytes) -> None:
        self.result = result


class TaskWriter(DataSourceArrowWriter):  # type: ignore[misc] # as above
    """Runs the function in a task; commits by writing down what the runs returned."""

    def __init__(self, task: bytes, results: Path) -> None:
        self._task = task
        self._results = results

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Returned:
        returned = Returned(pickle.dumps(pickle.loads(self._task)(iterator)))  # noqa: S301 - our own
        spare_what_stays(gc)
        return returned

    @override
    def commit(self, messages: Sequence[Any]) -> None:
        returned = [message.result for message in messages if message is not None]
        atomic_write(self._results, pickle.dumps(returned), mode=_MODE, durable=False)
        spare_what_stays(gc)


@cache
def spare_what_stays(collector: Any) -> None:
    """Exempt what this worker has loaded from the collections of garbage to come, once.

    Spark's workers collect all garbage after each task, and those that plan and commit after each
    batch. That goes through every object of every module: 30 ms of CPU time.

    Args:
        collector: The module `gc`.
    """
    collector.freeze()
