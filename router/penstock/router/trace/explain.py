"""Gathers the answers about records: of each sink of a job, and of conditions that took none.

Where a sink is, its checkpoint says; which batch had an offset, and by which routes, its journal of
deliveries. Conditions are evaluated by Spark, as for a batch.

Nothing is written in the job's directories, and the job may run meanwhile: what it is doing at the
moment of the question may be said as before or as after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.base.clock import BlockingClock
from penstock.logd.client import LogClient
from penstock.router.checkpoint.deliveries import RecordPosition
from penstock.router.columns.json_objects import text_of
from penstock.router.job.config import JobConfig
from penstock.router.read.offsets import StreamPartition
from penstock.router.trace.conditions import (
    Routing,
    columns_of_condition,
    routing_of,
)
from penstock.router.trace.records import read_records, value_digest
from penstock.router.trace.sink_trace import RECORD_BYTES_MAX, SinkTrace
from penstock.router.trace.verdict import ConditionResult, Fate, Verdict, Wanted

_SLICE_BYTES: Final = 1024 * 1024
"""Bytes of records that Spark gets at a time."""

_VALUE_CHARACTERS_MAX: Final = 200
"""Characters of a column's value that are shown."""


class Explainer:
    """Explains records of one job. For one thread at a time.

    Args:
        log: Client of logd with the job's credentials.
    """

    def __init__(
        self,
        config: JobConfig,
        spark: Callable[[], SparkSession],
        log: LogClient,
        clock: BlockingClock,
    ) -> None:
        self._config = config
        self._spark = spark
        self._log = log
        self._clock = clock
        self._columns: dict[str, tuple[str, ...]] = {}

    def explain(self, wanted: Sequence[Wanted]) -> dict[Wanted, list[Verdict]]:
        """Say what became of records, of the streams that the job reads, at each of its sinks.

        Raises:
            LogdError: logd cannot be reached, or refuses the job.
            ServiceError: A file of the job cannot be read.
            PySparkException: Spark fails.
        """
        streams = self._config.streams
        mine = list(dict.fromkeys(it for it in wanted if it.at.stream in streams))
        if not mine:
            return {}
        records = read_records(self._log, mine)
        rows = _rows_by_position(records.rows)
        routing = self._routing(records.rows)
        found: dict[Wanted, list[Verdict]] = {it: [] for it in mine}
        for sink in self._config.sinks:
            with TemporaryDirectory(prefix="penstock-trace-") as scratch:
                look = SinkTrace(
                    self._config,
                    sink,
                    records,
                    wanted=mine,
                    scratch=Path(scratch),
                    clock=self._clock,
                )
                for it, verdict in look.verdicts(routing).items():
                    position = it.at, it.offset
                    if verdict.fate is Fate.NOT_ROUTED and position in rows:
                        row = rows[position]
                        found[it].append(self._with_conditions(verdict, it, row, routing[position]))
                    else:
                        found[it].append(verdict)
        return found

    def _routing(self, rows: pa.Table) -> dict[RecordPosition, Routing]:
        """Evaluate the conditions, of records that are not too large for it."""
        sizes = pc.fill_null(pc.binary_length(rows.column("value")), 0)
        small = rows.filter(pc.less_equal(sizes, RECORD_BYTES_MAX))
        found: dict[RecordPosition, Routing] = {}
        begin = size = 0
        lengths = pc.fill_null(pc.binary_length(small.column("value")), 0).to_pylist()
        for end, length in enumerate(lengths, start=1):
            size += length
            if size >= _SLICE_BYTES or end == small.num_rows:
                part = small.slice(begin, end - begin)
                found |= routing_of(self._config, self._spark(), part)
                begin, size = end, 0
        return found

    def _with_conditions(
        self, verdict: Verdict, wanted: Wanted, row: pa.Table, routing: Routing
    ) -> Verdict:
        """The verdict with the conditions of the routes that decided it."""
        job = self._config
        leading = job.routes_to(verdict.sink)
        decided = {index for index in leading if index < len(job.routes)}
        if job.routing == "first_match" or len(job.routes) in leading:
            decided |= {at for at, result in enumerate(routing.results) if result}
        is_known = wanted.digest == value_digest(row.column("value")[0].as_py())
        results = [
            ConditionResult(
                job.routes[at].name,
                job.routes[at].where,
                routing.results[at],
                self._values(job.routes[at].where, row) if is_known else None,
            )
            for at in sorted(decided)
        ]
        return replace(verdict, conditions=tuple(results))

    def _values(self, where: str | None, row: pa.Table) -> dict[str, str | None]:
        if where is None:
            return {}
        if where not in self._columns:
            self._columns[where] = columns_of_condition(self._spark(), where)
        return {name: _shown(row.column(name)[0].as_py()) for name in self._columns[where]}


def _rows_by_position(rows: pa.Table) -> dict[RecordPosition, pa.Table]:
    keys = rows.select(["stream", "partition", "offset"]).to_pylist()
    return {
        (StreamPartition(it["stream"], it["partition"]), it["offset"]): rows.slice(number, 1)
        for number, it in enumerate(keys)
    }


def _shown(value: Any) -> str | None:
    """A column's value as text, cut where it is long."""
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    elif isinstance(value, list):  # a map, of which Arrow makes pairs
        value = dict(value)
    text = text_of(value) if isinstance(value, str | bool | int | float | dict) else str(value)
    whole = len(text) <= _VALUE_CHARACTERS_MAX
    return text if whole else f"{text[: _VALUE_CHARACTERS_MAX - 1]}…"
