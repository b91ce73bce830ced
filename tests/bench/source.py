"""s. From the log into Spark, which throws the rows away: 300-byte records, a second of one core.

The same rows are read by Spark from Parquet files in turns: that is the limit. `columns` reads two
of the log's columns without the value; `one subject of five` is a condition that goes on to logd.
"""

from collections.abc import Callable, Iterator

from pyspark.sql import DataFrame

from penstock.router import raw
from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench
from tests.bench.spark_source import RECORD_BYTES, SUBJECTS, Place, filled

TITLE = "300 B records from logd to Spark's noop sink"
WHOLE = "logd"
COLUMNS = "logd, two columns"
SUBJECT = "logd, one subject of five"
PARQUET = "Parquet"
PARQUET_COLUMNS = "Parquet, two columns"
PARQUET_SUBJECT = "Parquet, one subject of five"
PER_CORE_MIN = 400_000
OF_PARQUET_MIN = 0.5

_TWO = ("offset", "timestamp")
_AGAINST = {
    WHOLE: (PARQUET,),
    COLUMNS: (PARQUET_COLUMNS, WHOLE),
    SUBJECT: (PARQUET_SUBJECT, WHOLE),
}


def run(bench: Bench) -> Iterator[Case]:
    """Fill a log, write its rows to Parquet, read both in turns."""
    with filled(bench, "s", bench.pick(1_000_000, 200_000, 2_000)) as place:
        ways = _ways(place)
        records = Case(
            "s", "records of a core", "records/s",
            compare=_AGAINST,
            aims=(Aim(WHOLE, None, PER_CORE_MIN), Aim(WHOLE, PARQUET, OF_PARQUET_MIN)),
        )  # fmt: skip
        volume = Case("s", "bytes of records of a core", "MB/s")
        wall = Case("s", "records, both cores", "records/s", compare=_AGAINST)
        for name, counts in bench.turns("s", tuple(ways)):
            cost = place.cost(ways[name])
            if counts:
                records.add(name, cost.per_core)
                volume.add(name, cost.per_core * RECORD_BYTES / 1e6)
                wall.add(name, cost.records / cost.wall_s)
        yield from (records, volume, wall)


def _ways(place: Place) -> dict[str, Callable[[], DataFrame]]:
    spark, options = place.spark, place.options()
    files = str(place.directory / "parquet")
    raw(spark, options, streaming=False).write.parquet(files)
    one = f"subject = '{SUBJECTS[0]}'"
    return {
        WHOLE: lambda: raw(spark, options, streaming=False),
        PARQUET: lambda: spark.read.parquet(files),
        COLUMNS: lambda: raw(spark, options, columns=_TWO, streaming=False),
        PARQUET_COLUMNS: lambda: spark.read.parquet(files).select(*_TWO),
        SUBJECT: lambda: raw(spark, options, where=one, streaming=False),
        PARQUET_SUBJECT: lambda: spark.read.parquet(files).where(one),
    }
