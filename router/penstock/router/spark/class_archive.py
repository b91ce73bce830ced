"""An archive of the classes that Spark loads, with which its JVM starts in half the time (JEP 350).

The JVM maps the archive into memory, where it would else find, read and check ten thousand classes
in jars. The archive lies in the Python environment whose jars it was made of, so that all jobs of
that environment have it. The JVM itself checks that the archive is of the JVM's version and of the
same jars; it passes over any other one, and says so in the job's `spark.out`.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType
from typing_extensions import override

from penstock.base.files import atomic_writer
from penstock.router.job.config import Spark
from penstock.router.replay.progress import Report
from penstock.router.spark.session import ARCHIVE_PATH, Session
from penstock.router.spark.task_runs import run_for_each, run_in_tasks
from penstock.service import UnavailableError

_EXIT_TIMEOUT_S: Final = 300.0
"""Maximum seconds in which the JVM writes the archive on a slow, busy machine; 4 on a quiet one."""


def make_archive(report: Report) -> Path:
    """Run two small queries, and let the JVM write down which classes it has loaded.

    Args:
        report: Takes a line of what is being done.

    Returns:
        The archive's path.

    Raises:
        UnavailableError: There is no Java that can make one, or its directory cannot be written.
    """
    try:
        with (
            atomic_writer(ARCHIVE_PATH, mode=0o644, parents=True) as archive,
            tempfile.TemporaryDirectory(prefix="penstock-") as directory,
        ):
            made = Path(directory) / "classes.jsa"
            _let_spark_write(made, report)
            with made.open("rb") as classes:
                shutil.copyfileobj(classes, archive)
    except OSError as error:
        raise UnavailableError(
            f"{ARCHIVE_PATH} cannot be written: {error.strerror or error}",
            fix="run the command as the user who owns this Python environment, with 400 MB of room"
            " there and for temporary files",
        ) from error
    return ARCHIVE_PATH


def _let_spark_write(archive: Path, report: Report) -> None:
    """Have the JVM write the archive at its end."""
    report("starts Spark …")
    session = Session.start(
        "prepare",
        Spark(),
        archive.parent / "work",
        jvm_options=[f"-XX:ArchiveClassesAtExit={archive}"],
        exit_timeout_s=_EXIT_TIMEOUT_S,
    )
    try:
        report("runs a query of each kind …")
        _run_queries(session, archive.parent)
    finally:
        report("writes the archive …")
        session.close()
    if not archive.is_file():
        raise UnavailableError(
            "this Java wrote no archive of classes, as one without its own archive does",
            fix="install a whole Java 17 or newer and name it in JAVA_HOME, or go on without: Spark"
            " starts, only slower",
        )


def _run_queries(session: Session, directory: Path) -> None:
    """A stream that is read by Python and written in tasks, tasks alone, and a table."""
    session.spark.dataSource.register(Numbers)
    query = (
        session.spark.readStream.format(Numbers.name())
        .load()
        .selectExpr("value", "CASE WHEN text > '' THEN 0 END AS route")
        .writeStream.foreachBatch(
            lambda rows, _: run_in_tasks(rows, count_rows, directory / "tasks")
        )
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(once=True)
        .start()
    )
    query.awaitTermination()
    run_for_each(session.spark.sparkContext, [1], abs)
    session.spark.range(10).groupBy("id").count().toArrow()


def count_rows(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


class Numbers(DataSource):  # type: ignore[misc] # pyspark is untyped here
    """A stream that Spark reads by Python, as it reads a log."""

    @classmethod
    @override
    def name(cls) -> str:
        return "penstock-numbers"

    @override
    def schema(self) -> str:
        return "value binary, text string"

    @override
    def streamReader(self, schema: StructType) -> "NumberReader":
        return NumberReader()


class NumberReader(DataSourceStreamReader):  # type: ignore[misc] # as above
    """One batch of one task and one row."""

    @override
    def initialOffset(self) -> dict[str, Any]:
        return {"next": 0}

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"next": 1}

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": [b"1"], "text": ["one"]})
