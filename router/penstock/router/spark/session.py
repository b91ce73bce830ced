"""The Spark session of a job: its JVM and the JVM's options, the Python of its workers, its end.

The Python of Spark's workers: the driver's, with pyspark from where the driver has it.

Spark puts its own copy of pyspark, a zip without compiled code, and a jar in front of PYTHONPATH.
Each of a job's many Python processes then compiles what it imports: more than a second of processor
time before it answers, and Spark gives one 10 s. The driver imports pyspark from a directory, which
workers on the same machine can do as well.
"""

import hashlib
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import structlog
from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.version import __version__ as pyspark_version

from penstock.base.files import atomic_write
from penstock.router.checkpoint.local import BATCHES_KEPT
from penstock.router.job.config import SECRET_SETTING, Spark
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.spark import readers, task_runs, worker_daemon
from penstock.router.spark.java import find_java
from penstock.router.spark.package import package_settings, search_path
from penstock.router.spark.submitted import (
    UNKNOWN_CODE,
    SubmittedJvm,
    for_running_jvm,
    is_submitted,
    submitted_gateway,
)
from penstock.service import ExitCode, ServiceError, UnavailableError

_SOCKET_NAME_BYTES: Final = 48
"""Bytes of the name that Spark gives a Python process's socket: a UUID, and some letters."""

_SOCKET_PATH_BYTES_MAX: Final = 107
"""`sun_path` holds 108 with the zero at its end (unix(7))."""

_log = structlog.get_logger()


class OnlyFrom:
    """Ends each connection to this process but those that a process it started has made.

    The JVM calls functions of this process (`foreachBatch`, listeners) on a port that pyspark gives
    no secret to: a client that reached it could call the sinks. So this checks the other end.
    py4j hands each connection that it accepts to the `ssl_context` of its parameters, and that is
    what this is in place of. Not needed once `launch_gateway` sets `auth_token` for that port and
    the JVM tells it.

    Args:
        pid: Id of the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def wrap_socket(self, connection: socket.socket, *, server_side: bool) -> socket.socket:
        """The connection; in place of another process's, one on which nothing ever comes."""
        assert server_side
        if self._has(connection):
            return connection
        _log.warning("connection_refused", endpoint="spark")
        connection.close()  # to shut it down would leave what has come already to be read
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    def _has(self, connection: socket.socket) -> bool:
        """Return whether the process has the other end of the connection."""
        try:
            ends = (_end(connection.getpeername()), _end(connection.getsockname()))
            found = psutil.Process(self._pid).net_connections("tcp")
        except (OSError, psutil.Error):  # one of them is gone
            return False
        # Whole ends: somebody else could have the same ports at another address of loopback.
        return any((_end(one.laddr), _end(one.raddr)) == ends for one in found)


def _end(address: Sequence[Any]) -> tuple[str, int]:
    """Address and port, as IPv4 where it is that: the JVM's sockets are of both kinds.

    A socket that listens has no other end.
    """
    if not address:
        return "", 0
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def unix_sockets(directory: Path) -> dict[str, str]:
    """Settings by which Spark's Python processes of this machine listen on no port.

    A port would ask for a secret, but start a process for every client that connects.

    Args:
        directory: Directory below which a private one is made; elsewhere, where its name is too
            long.
    """
    place = directory / "python"
    if len(os.fsencode(place)) + _SOCKET_NAME_BYTES > _SOCKET_PATH_BYTES_MAX:
        name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        place = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}-{name}"
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        _log.warning("python_unix_sockets_unavailable", reason=f"{place} is not for us alone")
        return {}
    for left in place.glob(".*.sock"):  # of processes that were killed
        left.unlink(missing_ok=True)
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(place),
    }


_TIMEOUT_S: Final = 30

_SCRIPT: Final = """\
#!/bin/sh
export PYTHONSAFEPATH=1
{path}
exec {python} "$@"
"""


def worker_python(
    work_dir: Path, *, environ: Mapping[str, str] | None = None, python: str = sys.executable
) -> str:
    """A program that is this Python, and leaves Spark's entries of PYTHONPATH out.

    Args:
        work_dir: Directory in which it is written.
        environ: The driver's environment; the process's own by default.
        python: The driver's Python.

    Returns:
        Its path; this Python itself where no program may be run in `work_dir`.
    """
    own = (os.environ if environ is None else environ).get("PYTHONPATH")
    path = "unset PYTHONPATH" if own is None else f"export PYTHONPATH={shlex.quote(own)}"
    script = work_dir.resolve() / "python" / "python3"
    text = _SCRIPT.format(path=path, python=shlex.quote(python))
    atomic_write(script, text, mode=0o755, durable=False, parents=True)
    return str(script) if _runs(script) else python


def _runs(script: Path) -> bool:
    try:
        subprocess.run([script, "-V"], capture_output=True, timeout=_TIMEOUT_S, check=True)  # noqa: S603 - just written
    except (OSError, subprocess.SubprocessError):
        return False
    return True


JVM_EXIT_TIMEOUT_S: Final = 15.0

_HEAP_AT_START: Final = "48m"
"""Java's own choice, a 64th of the machine's memory, stays in use whatever a job does."""

_HEAP_GIVEN_BACK: Final = ("-XX:MaxHeapFreeRatio=50", "-XX:-ShrinkHeapInSteps")
"""A full collection gives back what is beyond twice the old objects. With less room than that a
busy job collects its whole heap four times as often."""

_NO_COUNTERS: Final = "-XX:-UsePerfData"
"""Else Java wakes twenty times a second, for figures in a file that only `jstat` reads."""

_MALLOC_GIVEN_BACK: Final = "-XX:TrimNativeHeapInterval=60000"
"""Each minute Java gives back what malloc keeps of its compiler's memory, 6 MB in a job at rest.
Java before 17.0.9 passes over it, as Spark has it do with options that it does not know."""

_YOUNG: Final = "-XX:NewRatio=4"
"""A fifth of the heap is for new objects: a job at rest keeps 21 MB less than with Java's third."""

ARCHIVE_PATH: Final = Path(sys.prefix) / "share" / "penstock" / f"spark-{pyspark_version}.jsa"
"""The archive of classes that `penstock router prepare` makes."""

_LOG4J: Final = """\
status = warn
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSSXXX}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 16MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""

_IN_UTC: Final = "-Duser.timezone=UTC"
"""JDBC drivers write times without a zone in that of their JVM."""

_ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1"
"""No second compiler. Spark puts these options before the others, which win."""

_OF_EXECUTORS: Final = {
    "spark.executor.defaultJavaOptions": _ONE_COMPILER,
    "spark.executor.extraJavaOptions": _IN_UTC,
}

_NO_WORDS: Final = re.compile(r"\s+(at|\.\.\.) |WARNING: Using incubator modules")
_LINES_SHOWN: Final = 10
_WORDS_MAX: Final = 500
"""Maximum characters of a JVM's output that a message quotes."""

_SMALLER: Final = {"k": "b", "m": "k", "g": "m"}
"""Units of memory, each by the one above it."""

# Why each: see docs/router/cluster.md.
_LOOPBACK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_OWN_DAEMON: Final = {"spark.python.daemon.module": worker_daemon.MODULE}
_SETTINGS: Final = {
    "spark.ui.port": "0",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.ui.retainedProgressUpdates": "20",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": str(BATCHES_KEPT),
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
    # Spark's default starts ten programs (`chmod`, `readlink`) for each of a batch's two files, for
    # want of Hadoop's native library: 893 ms a file on a busy machine, 187 with this one.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    # With Arrow, functions of `udfs` would need pandas, and some would give another result with it.
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    # Without checksums in files beside: for want of its native library Hadoop starts `chmod` for
    # each file. A file takes 8 ms of CPU time so, and 17 with checksums.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stopTimeout": "3000",
    "spark.scheduler.mode": "FAIR",
    "spark.python.authenticate.socketTimeout": "60s",
    # A job at rest makes nothing that would have its heap collected, and so given back.
    "spark.cleaner.periodicGC.interval": "5min",
}


_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's, which write an error with Java's whole stack where it is raised; the code that
catches it reports it."""


EXECUTORS_WAIT_S: Final = 30.0
"""Maximum seconds in which a cluster starts executors, or replaces lost ones."""

_SIZES: Final = ("spark.executor.memory", "spark.executor.cores")
_OUT_OF_MEMORY: Final = 3
"""The exit code of a JVM with -XX:+ExitOnOutOfMemoryError."""

_OF_STARTS: Final = frozenset(
    f"pyspark.sql.worker.{name}"
    for name in ("lookup_data_sources", "create_data_source", "plan_data_source_read")
)
"""What runs in the Python processes that Spark starts queries with, and no batch needs."""

_UNUSED_EVERY_NS: Final = 10 * 10**9
"""Between two looks for processes that are not needed any more."""

_NO_RESOURCES: Final = "Initial job has not accepted any resources"
_LOG_TAIL_BYTES: Final = 65_536


def _said_of_resources(work_dir: Path) -> str:
    """Spark's own reason, out of the end of its log; empty: it has none."""
    try:
        with (work_dir / "spark.log").open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES, 0))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    told = [line for line in lines if _NO_RESOURCES in line]
    return f"Spark says: {_NO_RESOURCES}{told[-1].partition(_NO_RESOURCES)[2]}. " if told else ""


class SparkEndedError(ServiceError):
    """The JVM died under a running job."""

    exit_code = ExitCode.SOFTWARE


class HeapExhaustedError(SparkEndedError):
    """It died for its heap was full."""


class Session:
    """A Spark session and the JVM it lives in."""

    def __init__(
        self,
        spark: SparkSession,
        gateway: Any,
        config: Spark,
        work_dir: Path,
        *,
        exit_timeout_s: float = JVM_EXIT_TIMEOUT_S,
    ) -> None:
        """Take over a running session, whose JVM may take `exit_timeout_s` to end."""
        self.spark = spark
        self._exit_timeout_s = exit_timeout_s
        self._gateway = gateway
        self._config = config
        self._work_dir = work_dir
        self._without_since_ns: int | None = None
        self._unused_at_ns = 0

    @classmethod
    def start(
        cls,
        name: str,
        config: Spark,
        work_dir: Path,
        *,
        lock: int | None = None,
        jvm_options: Sequence[str] | None = None,
        exit_timeout_s: float = JVM_EXIT_TIMEOUT_S,
    ) -> "Session":
        """Start a JVM and a session in it, with the `logd` data source registered.

        Everything Spark writes beside its results goes below `work_dir`. The JVM ends when this
        process does, however that happens: it watches the pipe that is its standard input. Under
        `spark-submit` there is a JVM, which gets the session, and writes its log as it was told to.

        Args:
            name: Shown in Spark's UI.
            config: The job's part about Spark.
            work_dir: Directory of Spark's log and temporary files; it is emptied of the latter.
            lock: A file descriptor that the JVM keeps open as long as it lives.
            jvm_options: Options besides those of every session; by default, that it uses the
                archive of classes where there is one.
            exit_timeout_s: Maximum seconds in which the JVM ends.

        Raises:
            ConfigError: The file of the cluster's secret, or the package, cannot be used.
            UnavailableError: No Java can be found, or Spark does not start.
        """
        raise_only()
        work_dir = work_dir.resolve()
        temporary = work_dir / "spark"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        if config.is_on_this_machine:
            os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        if is_submitted():
            gateway, spark = _in_submitted_jvm(name, config, work_dir)
        else:
            gateway, spark = _in_own_jvm(name, config, work_dir, lock, jvm_options)
        readers.register(spark)
        task_runs.register(spark)
        return cls(spark, gateway, config, work_dir, exit_timeout_s=exit_timeout_s)

    def start_workers(self) -> None:
        """Have the process that forks the workers of tasks started now, without waiting for it.

        Spark itself starts it for the first task, when the query has started.
        """
        if self._config.is_local:
            InheritableThread(target=self._run_a_task, name="first-task", daemon=True).start()

    def _run_a_task(self) -> None:
        # What makes it fail makes the first batch fail, too, which reports it.
        with suppress(Py4JError, PySparkException, OSError):
            task_runs.run_for_each(self.spark.sparkContext, [0], abs)

    @property
    def ui(self) -> str | None:
        """Address of Spark's own user interface."""
        url: str | None = self.spark.sparkContext.uiWebUrl
        return url

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Within the block, what fails because the JVM has ended says so.

        Raises:
            SparkEndedError: The JVM is not there, or ended within the block.
        """
        self._check_alive()
        try:
            yield
        except (Py4JError, OSError, EOFError):
            with suppress(subprocess.TimeoutExpired):  # its sockets close before it has ended
                self._gateway.proc.wait(self._exit_timeout_s)
            self._check_alive()
            raise

    def executors_missing(self, now_ns: int) -> str | None:
        """Why a cluster runs no task of the job, once that has lasted `EXECUTORS_WAIT_S`.

        Args:
            now_ns: Monotonic.
        """
        if self._config.is_local:
            return None
        context: Any = self.spark.sparkContext
        if context._jsc.sc().getExecutorMemoryStatus().size() > 1:  # noqa: SLF001 - the driver is one
            self._without_since_ns = None
            return None
        if self._without_since_ns is None:
            self._without_since_ns = now_ns
        lasts_s = (now_ns - self._without_since_ns) / 1e9
        if lasts_s < EXECUTORS_WAIT_S:
            return None
        conf = context.getConf()
        asked = ", ".join(f"{key} {conf.get(key, 'default')}" for key in _SIZES)
        return (
            f"Spark: {self._config.master} has given the job no executor for {lasts_s:.0f} s"
            f" ({asked}). {_said_of_resources(self._work_dir)}Start workers, or ask for less in"
            " spark.conf"
        )

    def end_unused_processes(self, now_ns: int) -> None:
        """End the processes of Python that queries were started with, a minute after the last one.

        Spark ends what such a process has forked when it was not used for a minute, but keeps the
        process itself, 20 MiB of each kind. It starts another one where it finds it gone.

        Args:
            now_ns: Monotonic; only from time to time something is done.
        """
        if now_ns < self._unused_at_ns:
            return
        self._unused_at_ns = now_ns + _UNUSED_EVERY_NS
        with suppress(psutil.Error):  # one has ended meanwhile
            tree = psutil.Process(self._gateway.proc.pid).children(recursive=True)
            found = [it for it in tree if not _OF_STARTS.isdisjoint(_arguments(it))]
            parents = {it.ppid() for it in found}
            # All or none: who needs one, as a query does that starts, needs the others soon.
            if parents.isdisjoint(it.pid for it in found):
                for process in found:
                    process.terminate()

    def _check_alive(self) -> None:
        code = self._gateway.proc.poll()
        if code == _OUT_OF_MEMORY:
            raise HeapExhaustedError(
                "Spark's JVM ran out of memory"
                f" (spark.driver_memory: {self._config.driver_memory})",
                fix="raise spark.driver_memory and start it again; with as much as now, sinks will"
                " have fewer bytes in work at a time",
            ) from None
        if code is not None:
            told = "" if code == UNKNOWN_CODE else f" with code {code}"
            raise SparkEndedError(
                f"Spark's JVM ended{told}",
                fix="start it again; if it ran out of memory, raise spark.driver_memory: a batch"
                " that was begun stays as it is, only later ones follow trigger.max_bytes",
            ) from None

    def close(self) -> None:
        """End the session and its JVM."""
        process = self._gateway.proc
        with suppress(Py4JError, OSError):
            self.spark.stop()
        with suppress(Py4JError, OSError):
            self._gateway.shutdown()
        if not isinstance(process, SubmittedJvm):  # which ends when this process has
            process.stdin.close()
            try:
                process.wait(self._exit_timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - else reused though dead
        SparkContext._active_spark_context = None  # noqa: SLF001 - stays where the JVM was dead


def _arguments(process: psutil.Process) -> list[str]:
    """A process's command line; nothing of one that has ended, which may stay as a zombie."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _in_own_jvm(
    name: str,
    config: Spark,
    work_dir: Path,
    lock: int | None,
    jvm_options: Sequence[str] | None,
) -> tuple[Any, SparkSession]:
    java = find_java(work_dir)
    os.environ |= {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": _worker_python(config, work_dir),
        "SPARK_LOCAL_DIRS": str(work_dir / "spark"),
    }
    if jvm_options is None:
        jvm_options = _archive_options() if ARCHIVE_PATH.is_file() else ()
    settings = session_settings(name, config, work_dir, jvm_options)
    descriptors = () if lock is None else (lock,)
    output_path = work_dir / "spark.out"
    try:
        with output_path.open("wb") as output, _jvm_environment(config):
            gateway = launch_gateway(
                _conf(at_launch(settings)),
                {"stdout": output, "stderr": output, "pass_fds": descriptors},
            )
        gateway.python_parameters.ssl_context = OnlyFrom(gateway.proc.pid)
        return gateway, SparkSession(SparkContext(conf=_conf(settings), gateway=gateway))
    except (PySparkException, Py4JError) as error:
        raise UnavailableError(
            f"Spark does not start with Java {java.major} from {java.origin}"
            f" ({java.home}): {reason_of(error)}{_last_words(output_path)}",
            fix="check the keys below `spark`, and that Java"
            + (f", and remove {ARCHIVE_PATH}" if ARCHIVE_PATH.is_file() else ""),
        ) from None


def _in_submitted_jvm(name: str, config: Spark, work_dir: Path) -> tuple[Any, SparkSession]:
    gateway = submitted_gateway()
    gateway.proc = SubmittedJvm(gateway)
    gateway.python_parameters.ssl_context = OnlyFrom(gateway.proc.pid)
    os.environ["PYSPARK_PYTHON"] = _worker_python(config, work_dir)
    settings = for_running_jvm(session_settings(name, config, work_dir), config)
    try:
        return gateway, SparkSession(SparkContext(conf=_conf(settings), gateway=gateway))
    except (PySparkException, Py4JError) as error:
        raise UnavailableError(
            f"Spark does not start in the JVM of spark-submit: {reason_of(error)}",
            fix="check the arguments of spark-submit, and the keys below `spark`",
        ) from None


@contextmanager
def _jvm_environment(config: Spark) -> Iterator[None]:
    """Within the block, the environment is what a JVM and its Python processes start with."""
    if config.package is None:
        with _safe_path():
            yield
        return
    before = os.environ.get("PATH")
    os.environ["PATH"] = search_path()
    try:
        with _safe_path():
            yield
    finally:
        if before is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = before


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep the caller's directory out of the imports of processes started within.

    The JVM takes its environment from this process's, and gives it to Spark's Python workers.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def reason_of(error: Exception) -> str:
    """Return Spark's message without Java's stack; its second line has a failed call's reason."""
    lines = str(error).splitlines()
    return " ".join(lines[:2] if lines[1:2] and lines[1].startswith(": ") else lines[:1])


def _last_words(output: Path) -> str:
    """Return the last output of a JVM without stacks: its file may not outlive the command."""
    try:
        lines = output.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    told = [line for line in lines if line.strip() and not _NO_WORDS.match(line)]
    return "".join(f"\n    {line[:_WORDS_MAX]}" for line in told[-_LINES_SHOWN:])


def raise_only() -> None:
    """Keep PySpark from writing an error that it raises to standard error, too."""
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).disabled = True


def _secrets(config: Spark) -> dict[str, str]:
    """Return the settings of the secret that authenticates Spark's processes."""
    if config.is_local:
        return {"spark.authenticate": "true"}  # the secret is Spark's to make
    if config.secret_file is None:
        return {}
    try:
        secret = config.secret_file.read_text().strip()
    except OSError as error:
        raise WrongKeyError(
            f"spark.secret_file: {config.secret_file}: {error.strerror}",
            fix="name a file that this user may read",
        ) from None
    if not secret or not secret.isprintable():
        raise WrongKeyError(
            f"spark.secret_file: {config.secret_file}: one line is expected",
            fix="put the cluster's spark.authenticate.secret there",
        )
    return {"spark.authenticate": "true", "spark.authenticate.secret": secret}


def _worker_python(config: Spark, work_dir: Path) -> str:
    """Return the workers' Python: the job's, else this one, by its path on other machines."""
    if config.package is not None:
        return package_settings(config.package, config.conf)["spark.pyspark.python"]
    if chosen := config.conf.get("spark.pyspark.python"):
        return chosen
    return worker_python(work_dir) if config.is_on_this_machine else sys.executable


def session_settings(
    name: str, config: Spark, work_dir: Path, jvm_options: Sequence[str] = ()
) -> dict[str, str]:
    """Spark's settings for a job.

    Raises:
        ConfigError: The file of the cluster's secret, or the package, cannot be used.
    """
    log4j = work_dir / "log4j2.properties"
    log4j.write_text(_LOG4J.format(log=work_dir / "spark.log"))
    temporary = work_dir / "spark"
    java_options = _option_string(
        [
            f"-Dlog4j2.configurationFile={log4j.as_uri()}",
            f"-Djava.io.tmpdir={temporary}",
            f"-Dderby.system.home={temporary}",
            _IN_UTC,
            "-XX:+UseSerialGC",
            f"-Xms{_HEAP_AT_START}",
            *_HEAP_GIVEN_BACK,
            _YOUNG,
            _MALLOC_GIVEN_BACK,
            _NO_COUNTERS,
            "-XX:+ExitOnOutOfMemoryError",
            *jvm_options,
        ]
    )
    return {
        "spark.app.name": f"penstock {name}",
        "spark.master": config.master,
        "spark.driver.memory": config.driver_memory,
        "spark.driver.maxResultSize": _half(config.driver_memory),
        "spark.driver.defaultJavaOptions": _ONE_COMPILER,
        "spark.driver.extraJavaOptions": java_options,
        **({} if config.is_local else _OF_EXECUTORS),
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(temporary / "warehouse"),
        **_SETTINGS,
        "spark.ui.enabled": "false" if config.ui is False else "true",
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        **_secrets(config),
        **(unix_sockets(temporary) if config.is_local else {}),
        **(_OWN_DAEMON if config.is_local else {}),
        **(_LOOPBACK if config.is_on_this_machine else {}),
        **config.conf,
        **({} if config.package is None else package_settings(config.package, config.conf)),
    }


def _archive_options() -> list[str]:
    """Have the JVM use the archive of classes, and none that has been damaged."""
    return [
        f"-XX:SharedArchiveFile={ARCHIVE_PATH}",
        "-XX:+VerifySharedSpaces",
        # Else Java maps the archive at a random address, and writes to most of its pages for that:
        # 131 MB of memory that the kernel cannot take back, in place of 59 MB.
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:ArchiveRelocationMode=0",
    ]


def _half(memory: str) -> str:
    """Return half of an amount of memory in Spark's notation, in the next smaller unit."""
    return f"{int(memory[:-1]) * 512}{_SMALLER[memory[-1]]}"


def at_launch(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the JVM's command line, which every user of the machine can read.

    The others follow when it runs.
    """
    return {key: value for key, value in settings.items() if not SECRET_SETTING.search(key)}


def _conf(settings: Mapping[str, str]) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(settings.items()))


def _option_string(options: list[str]) -> str:
    """Java options as one string, for Spark's launcher to take apart: paths may hold blanks."""
    escaped = (option.replace("\\", r"\\").replace('"', r"\"") for option in options)
    return " ".join(f'"{option}"' for option in escaped)
