"""What a job says when Spark's JVM ends under it, or finds a mistake."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger

from penstock.router import session
from penstock.router.config import Spark
from penstock.router.java import Java
from penstock.router.session import Session, SparkEndedError
from penstock.service import UnavailableError


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def session_of(process: "subprocess.Popen[bytes]") -> Session:
    nothing: Any = None
    return Session(nothing, SimpleNamespace(proc=process), Spark(), Path())


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
    process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_JVM_EXIT_TIMEOUT_S", 0.0)
    with pytest.raises(Py4JError, match="o5"), session_of(process).alive():
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
    session._raise_only()
    PySparkLogger.getLogger(kind).exception("no such column", errorClass="UNRESOLVED_COLUMN")
    assert capsys.readouterr().err == ""


def test_what_java_said_is_in_the_message_when_spark_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file may be gone when the message is read, as that of `validate` is."""

    def launch(_: Any, options: dict[str, Any]) -> None:
        options["stdout"].write(
            b"WARNING: Using incubator modules: jdk.incubator.vector\n"
            b"Error occurred during initialization of VM\nToo small maximum heap\n"
            b"\tat org.apache.spark.Main.main(Main.scala:7)\n"
        )
        raise PySparkRuntimeError("Java gateway process exited")

    monkeypatch.setattr(session, "launch_gateway", launch)
    monkeypatch.setattr(session, "find_java", lambda _: Java(tmp_path, 17, "PATH"))
    with pytest.raises(UnavailableError) as caught:
        Session.start("demo", Spark(), tmp_path)
    assert caught.value.reason.endswith(
        ": Java gateway process exited\n"
        "    Error occurred during initialization of VM\n"
        "    Too small maximum heap"
    )
    assert "spark.out" not in str(caught.value)


def test_of_what_spark_itself_refuses_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*_: Any) -> None:
        raise Py4JError(
            "An error occurred while calling None.x.\n: NumberFormatException: 1x\n\tat"
        )

    monkeypatch.setattr(session, "launch_gateway", launch)
    monkeypatch.setattr(session, "find_java", lambda _: Java(tmp_path, 17, "PATH"))
    with pytest.raises(UnavailableError) as caught:
        Session.start("demo", Spark(), tmp_path)
    assert caught.value.reason.endswith("while calling None.x. : NumberFormatException: 1x")
