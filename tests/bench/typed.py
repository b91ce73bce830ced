"""t. Typed columns with a filter, and what a trigger costs.

Four typed columns of the log records of one severity in five: typed and filtered by the source;
by Spark's `from_json`; and from Parquet files that have all typed columns already, which is the
limit. A trigger is timed on a quiet stream into which one record at a time is published.
"""

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame

from penstock.router import logs, raw
from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench
from tests.bench.spark_source import QUIET, QUIET_SUBJECT, RECORD_BYTES, Place, filled
from tests.support.router import publish
from tests.support.waiting import wait_until

TITLE = "typed columns of 300 B records with a filter"
SOURCE = "logd, typed by the source"
ALL = "logd, typed by the source, no filter"
FROM_JSON = "logd, from_json in Spark"
PARQUET = "Parquet, typed before"
PER_CORE_MIN = 150_000
TRIGGER_MS_MAX = 150

_COLUMNS = ("time", "service", "severity_number", "body")
_WHERE = "severity_number >= 17"
_JSON = "time_unix_nano bigint, severity_number int, body string, resource map<string,string>"


def run(bench: Bench) -> Iterator[Case]:
    """Fill a log, read it in turns; then publish into a stream that a query reads."""
    with filled(bench, "t", bench.pick(1_000_000, 200_000, 2_000)) as place:
        ways = _ways(place)
        records = Case(
            "t", "records looked at, of a core", "records/s",
            compare={SOURCE: (FROM_JSON, PARQUET), ALL: (PARQUET,)},
            aims=(Aim(SOURCE, None, PER_CORE_MIN),),
        )  # fmt: skip
        volume = Case("t", "bytes of records looked at, of a core", "MB/s")
        for name, counts in bench.turns("t", tuple(ways)):
            cost = place.cost(ways[name])
            if counts:
                records.add(name, cost.per_core)
                volume.add(name, cost.per_core * RECORD_BYTES / 1e6)
        yield from (records, volume)
        yield _trigger(bench, place)


def _ways(place: Place) -> dict[str, Callable[[], DataFrame]]:
    spark, options = place.spark, place.options()
    files = str(place.directory / "parquet")
    logs(spark, options, streaming=False).write.parquet(files)

    def from_json() -> DataFrame:
        rows = raw(spark, options, columns=["value"], streaming=False)
        parsed = rows.selectExpr(f"from_json(cast(value as string), '{_JSON}') as r")
        return parsed.where("r.severity_number >= 17").selectExpr(
            "timestamp_micros(r.time_unix_nano div 1000)",
            "r.resource['service.name']",
            "r.severity_number",
            "r.body",
        )

    return {
        SOURCE: lambda: logs(spark, options, columns=_COLUMNS, where=_WHERE, streaming=False),
        ALL: lambda: logs(spark, options, columns=_COLUMNS, streaming=False),
        FROM_JSON: from_json,
        PARQUET: lambda: spark.read.parquet(files).where(_WHERE).select(*_COLUMNS),
    }


def _trigger(bench: Bench, place: Place) -> Case:
    """Milliseconds of triggers with one record each, and of which the source has what."""
    case = Case("t", "trigger with one record", "ms", better="lower",
                aims=(Aim("whole", None, TRIGGER_MS_MAX),))  # fmt: skip
    frame = logs(place.spark, place.options(subscribe=QUIET), columns=_COLUMNS)
    seen: dict[int, dict[str, Any]] = {}
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(place.directory / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )

    def batches() -> int:
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                seen[progress["batchId"]] = progress["durationMs"]
        return len(seen)

    try:
        for number in range(bench.pick(60, 30, 2)):
            bench.progress.step(f"t, triggers: {number}")
            publish(place.nats_url, QUIET_SUBJECT, [b'{"kind":"log","body":"one"}'])
            wait_until(lambda at=number: batches() > at, within_s=60, what="a batch")  # type: ignore[misc]
    finally:
        query.stop()
    warm = [seen[batch] for batch in sorted(seen)][len(seen) // 3 :]
    for name, key in (
        ("whole", "triggerExecution"),
        ("reading and writing", "addBatch"),
        ("asking logd", "latestOffset"),
    ):
        for durations in warm:
            case.add(name, float(durations.get(key, 0)))
    return case
