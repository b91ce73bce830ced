"""A separate JVM for JDBC drivers: a question, an answer, and an end to what takes too long.

JDBC has no limit that every driver keeps. So the drivers are in a process that can be ended at any
moment; nor can what they print, load or leak reach the job. It runs `Jdbc.java`.
"""

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyspark.find_spark_home import _find_spark_home

from penstock.router.spark.java import find_java

_SOURCE: Final = Path(__file__).with_name("Jdbc.java")
_LIBRARIES: Final = (
    "janino-3*.jar", "commons-compiler-3*.jar",
    "jackson-core-2*.jar", "jackson-databind-2*.jar", "jackson-annotations-2*.jar",
)  # fmt: skip
"""Patterns of the libraries that come with Spark."""

_START_S: Final = 60.0
_END_S: Final = 5.0
_SAID_MAX: Final = 300


class ProcessEndedError(Exception):
    """The process has ended, by itself or for taking too long; what was asked may be done."""


class JdbcProcess:
    """The process; to be used by one thread.

    Args:
        jars: Jars of the driver.
        work_dir: Directory for its output.
        heap_bytes: The most memory for objects.

    Raises:
        UnavailableError: There is no Java.
        ProcessEndedError: It does not start.
    """

    def __init__(self, jars: Sequence[Path], work_dir: Path, *, heap_bytes: int) -> None:
        work_dir.mkdir(parents=True, exist_ok=True)
        self._printed = work_dir / "jdbc.out"
        command = [
            str(find_java(work_dir).home / "bin" / "java"),
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:+DisplayVMOutputToStderr",
            f"-Xmx{heap_bytes >> 20}m",
            "-Duser.timezone=UTC",  # a driver writes times without a zone in the JVM's
            "-Dfile.encoding=UTF-8",
            "-Dstdout.encoding=UTF-8",
            "-cp",
            ":".join(map(str, [*spark_libraries(), *jars])),
            "org.codehaus.janino.SimpleCompiler",
            str(_SOURCE),
            "Jdbc",
        ]
        with self._printed.open("wb") as printed:
            self._process = subprocess.Popen(  # noqa: S603 - the operator's Java and jars
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed
            )
        self._exchange(b"", _START_S)

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def ask(self, question: Mapping[str, Any], within_s: float) -> dict[str, Any]:
        """Ask one of the questions of `Jdbc.java`.

        Raises:
            ProcessEndedError: There is no answer, and the process is gone.
        """
        return self._exchange(json.dumps(question).encode(), within_s)

    def close(self) -> None:
        """End the process, whatever it does; its connection is closed if it does nothing."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with suppress(BrokenPipeError):  # of a question that it did not read
            stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        stdout.close()

    def _exchange(self, question: bytes, within_s: float) -> dict[str, Any]:
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(within_s, end)
        timer.daemon = True
        timer.start()
        try:
            said = self._exchanged(question)
        finally:
            timer.cancel()
        if said.endswith(b"\n") and not late.is_set():
            answer: dict[str, Any] = json.loads(said)
            return answer
        self.close()
        if late.is_set():
            raise ProcessEndedError(f"no answer within {within_s:g} s")
        raise ProcessEndedError(f"the driver's process ended: {self._last_words()}")

    def _exchanged(self, question: bytes) -> bytes:
        """The line that is answered; unfinished if the process ends."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(question)
            process.stdin.flush()
        except BrokenPipeError:
            return b""
        return process.stdout.readline()

    def _last_words(self) -> str:
        printed = self._printed.read_bytes().decode(errors="replace").strip()
        reason = next(
            (it for it in printed.splitlines() if "OutOfMemory" in it or "Error" in it), ""
        )
        return (reason or printed[-_SAID_MAX:] or f"code {self._process.returncode}")[:_SAID_MAX]


def spark_libraries() -> list[Path]:
    """The jars that compile and run `Jdbc.java`."""
    jars = Path(_find_spark_home()) / "jars"
    return [found for name in _LIBRARIES for found in sorted(jars.glob(name))]
