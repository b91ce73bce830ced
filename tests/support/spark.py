"""One Spark session for all tests of a run that can share it; starting one takes seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.router.job.config import Spark
from penstock.router.spark.session import Session


def gateway_of(spark: SparkSession) -> Any:
    """What leads to the JVM of a session, and to its process."""
    return spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no public door to its JVM


@contextmanager
def running_spark(directory: Path) -> Iterator[Session]:
    """A session as a job has it, until the block ends."""
    session = Session.start("tests", Spark(), directory)
    try:
        yield session
    finally:
        session.close()
