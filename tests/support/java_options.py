"""Options with which a Java that lives for seconds, as a test's Spark does, starts in a third.

A start of Spark and two small queries take 21 s of CPU time as Java comes. With the first
compiler alone they take 13: what the second one makes faster is over before it has paid. With an
archive of the classes that Spark loads (https://openjdk.org/jeps/350) they take 6. The archive is
made once for each Java and each pyspark.
"""

import hashlib
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

from penstock.router.spark.java import find_java
from penstock.service import UnavailableError

_COMPILER: Final = "-XX:TieredStopAtLevel=1"
_MAKING_S: Final = 300

_PROGRAM: Final = """\
import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

work, archive = map(Path, sys.argv[1:])
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", f"-XX:+UseSerialGC -XX:ArchiveClassesAtExit={archive}")
    .config("spark.sql.warehouse.dir", str(work / "warehouse"))
    .getOrCreate()
)
query = (
    spark.readStream.format("rate").load().selectExpr("value", "string(value) text")
    .writeStream.foreachBatch(lambda rows, _: rows.where("text > ''").toArrow())
    .option("checkpointLocation", str(work / "checkpoint"))
    .trigger(once=True).start()
)
query.awaitTermination()
assert spark.range(10).groupBy("id").count().toArrow().num_rows == 10
java = SparkContext._gateway.proc
spark.stop()
SparkContext._gateway.shutdown()
java.stdin.close()
sys.exit(java.wait())
"""


def java_options(directory: Path) -> str:
    """What `JDK_JAVA_OPTIONS` may hold, so that Spark starts fast.

    Args:
        directory: Where the archive of classes is, or is made, which takes half a minute.
    """
    try:
        java = find_java(directory)
    except UnavailableError:  # tests that need one say so
        return _COMPILER
    archive = directory / f"{_key_of(java.home)}.jsa"
    if not archive.exists() and not _make(archive, java.home):
        return _COMPILER
    # An archive that does not fit, as for a program of other classes, is not used; nor is it told.
    return f"{_COMPILER} -XX:SharedArchiveFile={archive} -Xlog:disable"


def _key_of(java_home: Path) -> str:
    """What changes with each Java, each pyspark and each place of its jars."""
    said = subprocess.run(
        [java_home / "bin" / "java", "-version"], capture_output=True, text=True, check=True
    )
    known = f"{said.stderr} {version('pyspark')} {sys.prefix} {Path(__file__).read_text()}"
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def _make(archive: Path, java_home: Path) -> bool:
    """Whether this Java makes one; a Java without an archive of its own does not."""
    work = archive.with_suffix(".making")
    work.mkdir(parents=True, exist_ok=True)
    made = work / archive.name
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, work, made],
        cwd=work, env={"JAVA_HOME": str(java_home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_MAKING_S,
    )  # fmt: skip
    if done.returncode != 0 or not made.exists():
        sys.stdout.write(f"Spark starts without an archive of its classes: {done.stderr[-500:]}\n")
        return False
    made.rename(archive)
    shutil.rmtree(work)
    return True
