"""What a job says when Spark's JVM ends under it, or finds a mistake."""

import gc
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.logger import PySparkLogger

from penstock.router.job.config import Spark
from penstock.router.spark.session import Session, SparkEndedError, raise_only, reason_of
from penstock.service import UnavailableError


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def session_of(process: "subprocess.Popen[bytes]", **how: float) -> Session:
    nothing: Any = None
    return Session(nothing, SimpleNamespace(proc=process), Spark(), Path(), **how)


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("while calling o5.isActive"),
        Py4JNetworkError("reset"),
        OSError("reset"),
        EOFError(),
    ],
)
def test_a_call_that_fails_because_the_jvm_was_killed_says_so(
    process: "subprocess.Popen[bytes]", error: Exception
) -> None:
    told = pytest.raises(SparkEndedError, match="JVM ended with code -9")
    with told, session_of(process).alive():
        process.kill()
        raise error


def test_what_fails_while_the_jvm_lives_is_told_as_it_is(
    process: "subprocess.Popen[bytes]",
) -> None:
    its = session_of(process, exit_timeout_s=0.0)
    with pytest.raises(Py4JError, match="o5"), its.alive():
        raise Py4JError("while calling o5.isActive")


def test_nothing_is_asked_of_a_jvm_that_has_ended(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    with pytest.raises(SparkEndedError), session_of(process).alive():
        pytest.fail("asked")


@pytest.mark.parametrize("kind", ["SQLQueryContextLogger", "DataFrameQueryContextLogger"])
def test_what_is_raised_for_a_query_is_not_written_as_well(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some seventy lines of Java's stack would stand before the message."""
    raise_only()
    PySparkLogger.getLogger(kind).exception("no such column", errorClass="UNRESOLVED_COLUMN")
    assert capsys.readouterr().err == ""


def test_what_java_said_is_in_the_message_when_spark_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file may be gone when the message is read, as that of `validate` is."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")  # the session sets them; that is undone then
    reason = why_not_started(tmp_path)
    assert "Spark does not start with Java 17 from JAVA_HOME" in reason
    told = "\n    Error occurred during initialization of VM\n    Too small maximum heap\n"
    assert told in reason
    assert "incubator" not in reason
    assert "Main.scala" not in reason
    assert "spark.out" not in reason


def why_not_started(directory: Path) -> str:
    """PySpark leaves the pipe to a JVM that ended open, of which nobody need hear."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(UnavailableError) as caught:
            Session.start("demo", Spark(), directory)
        said = str(caught.value)
        del caught
        gc.collect()
    return said


JAVA = """\
#!/bin/sh
for argument do
  [ "$argument" = -version ] && { echo 'openjdk version "17.0.1"' >&2; exit 0; }
done
echo 'WARNING: Using incubator modules: jdk.incubator.vector'
echo 'Error occurred during initialization of VM'
echo 'Too small maximum heap'
printf '\\tat org.apache.spark.Main.main(Main.scala:7)\\n'
exit 1
"""
"""A Java that tells its version, and otherwise ends as one that has not memory enough."""


def test_of_what_spark_itself_refuses_the_reason_is_told() -> None:
    error = Py4JError("An error occurred while calling None.x.\n: NumberFormatException: 1x\n\tat")
    assert reason_of(error).endswith("while calling None.x. : NumberFormatException: 1x")
    assert reason_of(Py4JError("reset\n\tat")) == "reset"
