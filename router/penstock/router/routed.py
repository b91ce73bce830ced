"""What a job's routes lead to one sink: Spark judges each record, its columns are carried."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.router.carried import lost_of, unpack
from penstock.router.config import JobConfig
from penstock.router.feed import ROUTE_COLUMN
from penstock.router.frames import read_carried
from penstock.router.routes import judge_for, steps_to
from penstock.router.shaping import arrow_schema
from penstock.router.views import view


class Routed:
    """The rows for one sink.

    Args:
        job: The job.
        sink: The sink's name.
        columns: Of the view `records`, and `ROUTE_COLUMN` where that is wanted.
    """

    def __init__(self, job: JobConfig, sink: str, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._carried = [name for name in columns if name != ROUTE_COLUMN]
        known = {column.name: column for column in view("records").columns}
        self._schema = arrow_schema(known[name] for name in self._carried)
        self._steps = steps_to(sink, job, self._columns)
        self._judge = judge_for(sink, job)

    def frame(
        self, spark: SparkSession, options: Mapping[str, str], *, streaming: bool
    ) -> DataFrame:
        """What Spark makes of the log.

        Args:
            spark: The session.
            options: Of the data source.
            streaming: Whether for a stream or a batch.
        """
        return read_carried(
            spark, options, self._steps, self._judge, self._carried, streaming=streaming
        )

    def rows(self, table: pa.Table) -> pa.Table:
        """The rows, of what that or a part of it was collected to."""
        return unpack(table, ROUTE_COLUMN, self._schema).select(self._columns)

    @staticmethod
    def lost(table: pa.Table) -> int:
        """How many offsets were passed over, for they are gone or damaged."""
        return lost_of(table)
