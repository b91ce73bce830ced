"""Spark as a sink's query sees it: queries whose progress, end and batches a test says."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from typing_extensions import override

from penstock.router.checkpoint.local import note_done
from penstock.router.columns.passthrough import PASSTHROUGH, pack_lost
from penstock.router.job.route_task import ROUTE_COLUMN
from penstock.router.job.routes import Routed
from penstock.router.read.offsets import Offsets
from penstock.router.spark.task_runs import TaskRuns

ENDED: Final[dict[str, Any]] = {"numInputRows": 0}
"""The progress of a trigger that has ended."""


class ScriptedQuery:
    """A streaming query as Spark shows it.

    Attributes:
        isActive: Whether it runs; a test sets it to False, and it has failed.
        lastProgress: Of the trigger that ended last; None: of this run none has.
        hangs: Whether it does not end when it is told to.
        error: Why it has failed; None: nobody knows.
        give: Gives the sink a batch, by its number, and notes nothing.
    """

    def __init__(self, give: Callable[[Any, int], None], checkpoint: Path) -> None:
        self.isActive = True
        self.lastProgress: dict[str, Any] | None = None
        self.hangs = False
        self.error: Exception | None = None
        self.give = give
        self._checkpoint = checkpoint

    def deliver(self, frame: Any, number: int) -> None:
        """Give the sink a batch, and note that it is done, as Spark does."""
        self.give(frame, number)
        self.note_done(number)

    def note_done(self, number: int) -> None:
        """Note that a batch is done."""
        note_done(self._checkpoint, number)

    def exception(self) -> Any:
        """Why it ended, if that is known."""
        return self.error

    def stop(self) -> None:
        """End it."""
        if self.hangs:
            raise Py4JError("it does not")
        self.isActive = False


class ScriptedSpark:
    """A session, for `SinkQuery.poll`.

    Attributes:
        queries: Those that were started, the last one at the end.
        options: Of the source, those of the query that was started last.
        refuses: Raised where a query is to be started; None: it starts.
    """

    def __init__(self) -> None:
        self.queries: list[ScriptedQuery] = []
        self.options: dict[str, str] = {}
        self.refuses: Exception | None = None

    @property
    def query(self) -> ScriptedQuery:
        """The one that was started last."""
        return self.queries[-1]

    @property
    def sparkContext(self) -> Self:  # noqa: N802 - Spark's name
        """Itself."""
        return self

    def setLocalProperty(self, name: str, value: str) -> None:  # noqa: N802 - Spark's name
        """Not looked at."""


class ScriptedRouted(Routed):
    """What routes lead to a sink, of a log that only the test knows."""

    @override
    def reader(self, options: Mapping[str, str]) -> None:
        """None: the rows are those of the frame that the test gives."""

    @override
    def frame(self, spark: Any, options: Mapping[str, str], *, streaming: bool) -> Any:
        spark.options = dict(options)
        return _Frame(spark)


class _Frame:
    """A frame that is to be written, and whatever is said of how."""

    def __init__(self, spark: ScriptedSpark) -> None:
        self._spark = spark
        self._deliver: Callable[[Any, int], None] = lambda *_: None
        self._checkpoint = Path()

    @property
    def writeStream(self) -> Self:  # noqa: N802 - Spark's name
        return self

    def queryName(self, _: str) -> Self:  # noqa: N802 - Spark's name
        return self

    def option(self, name: str, value: str) -> Self:
        assert name == "checkpointLocation"
        self._checkpoint = Path(value)
        return self

    def trigger(self, **_: str) -> Self:
        return self

    def foreachBatch(self, deliver: Callable[[Any, int], None]) -> Self:  # noqa: N802 - Spark's name
        self._deliver = deliver
        return self

    def start(self) -> ScriptedQuery:
        if self._spark.refuses is not None:
            raise self._spark.refuses
        self._spark.queries.append(ScriptedQuery(self._deliver, self._checkpoint))
        return self._spark.query


class NoRows:
    """A batch of which no row is for the sink, as Spark shows it."""

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        """Nothing."""
        fields = [(PASSTHROUGH, pa.binary()), (ROUTE_COLUMN, pa.int32())]
        return pa.schema(fields).empty_table()


class TaskRows(NoRows):
    """A batch without rows that is written in tasks; its one task runs here."""

    def __init__(self) -> None:
        self._options: dict[str, str] = {}

    @property
    def write(self) -> Self:
        return self

    def format(self, _: str) -> Self:
        return self

    def mode(self, _: str) -> Self:
        return self

    def option(self, name: str, value: str) -> Self:
        self._options[name] = value
        return self

    def save(self) -> None:
        writer = TaskRuns(self._options).writer(StructType(), overwrite=False)
        writer.commit([writer.write(iter([]))])


class NotSaved(TaskRows):
    """A batch whose tasks end in the middle."""

    @override
    def save(self) -> None:
        raise PySparkException("a worker was killed")


class NotMade(NoRows):
    """A batch that Spark cannot make."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @override
    def toArrow(self) -> pa.Table:
        raise self._error


class OnlyLosses(NoRows):
    """A batch of which some offsets are lost, and the rest is for no sink."""

    def __init__(self, count: int) -> None:
        self._count = count

    @override
    def toArrow(self) -> pa.Table:
        packed = pa.Table.from_batches([pack_lost(self._count, pa.schema([]))])
        return packed.append_column(ROUTE_COLUMN, pa.array([None], pa.int32()))


def plan(state_dir: Path, ends: Sequence[Offsets]) -> None:
    """As Spark has planned its batches from the first one on, each up to a position."""
    offsets = state_dir / "spark" / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    for batch, end in enumerate(ends):
        (offsets / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end.to_json())}")
