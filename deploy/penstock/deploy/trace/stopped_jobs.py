"""Jobs that do not answer, asked by their job file and what they left on this machine's disk.

The tracer then answers as the job would (`penstock.router.trace.service`), with the job's code and
credentials and a Spark session without executors. It writes nothing in the job's directories. A job
whose checkpoints are kept in a store is not asked so, for another machine may have gone on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.base.clock import SystemClock
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.trace.parts import JobUnavailableError, Parts
from penstock.logd.errors import LogdError
from penstock.router.checkpoint.local import DATA_FORMAT, StartingOffsets, lock_holder
from penstock.router.cli.job import load_job
from penstock.router.job.config import JobConfig
from penstock.router.job.routes import check_routes
from penstock.router.spark.session import Session
from penstock.router.trace.service import TraceService
from penstock.service import ConfigError, ServiceError

_MASTER: Final = "local[1]"


class StoppedJob:
    """One job that does not answer. For one thread at a time.

    Args:
        config: The job.

    Attributes:
        name: Name of the job.
        state: What is known of it, for people.

    Raises:
        JobUnavailableError: Its files do not tell what became of records, or cannot be read.
    """

    def __init__(self, config: JobConfig) -> None:
        self.name = config.job
        self._config = config
        self._session: Session | None = None
        self._service: TraceService | None = None
        if config.checkpoint_store is not None:
            raise JobUnavailableError(
                f"it does not answer, and its checkpoints are in {config.checkpoint_store.url},"
                " from which another machine may have gone on"
            )
        checkpoint = config.checkpoint_dir
        try:
            DATA_FORMAT.check(checkpoint)
            holder = lock_holder(checkpoint)
            has_run = bool(StartingOffsets(checkpoint).load().next)
        except (ServiceError, OSError) as error:
            raise JobUnavailableError(_reason(error)) from None
        if holder is not None:
            known = f"it does not answer, and {holder} has locked its checkpoint"
        else:
            known = "it does not run" if has_run else "it does not run and never has"
        self._directory = TemporaryDirectory(prefix="penstock-trace-")
        self.state = f"{known}; {checkpoint.absolute()} says what became of records"

    def ask(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a question to the job.

        Raises:
            JobUnavailableError: That cannot be.
        """
        try:
            if self._service is None:
                self._service = self._started()
            return self._service.ask(document)
        except (ServiceError, LogdError, PySparkException, Py4JError, OSError) as error:
            raise JobUnavailableError(_reason(error)) from None

    def close(self) -> None:
        """End Spark and close the connection to logd."""
        if self._service is not None:
            self._service.close()
        if self._session is not None:
            self._session.close()
        self._directory.cleanup()

    def _started(self) -> TraceService:
        settings = self._config.session.model_copy(
            update={"master": _MASTER, "package": None, "ui": False}
        )
        session = Session.start(self.name, settings, Path(self._directory.name))
        self._session = session
        check_routes(self._config, session.spark)
        return TraceService(self._config, lambda: session.spark, SystemClock())


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, ServiceError) else f"{type(error).__name__}: {error}"


def find_stopped_jobs(
    files: Iterable[Path], parts: Parts, config: ConsoleConfig
) -> tuple[Parts, list[StoppedJob]]:
    """Find the jobs that do not answer, by their files.

    Args:
        files: Job files.
        parts: The parts, as `PartsClient.statuses` found them.
        config: Addresses of the parts.

    Returns:
        The parts with these jobs, and the jobs, which the caller closes.
    """
    silent, stopped, found = dict(parts.silent), dict(parts.stopped), list[StoppedJob]()
    answering = {str(status.get("name")) for status in parts.jobs.values()}
    for path in files:
        try:
            job = load_job(path)
        except ConfigError as error:
            silent[str(path)] = error.reason
            continue
        if job.job in answering:
            continue
        names = [it for it in silent if urlsplit(config.parts.get(it, "")).netloc == job.admin]
        for name in names:
            del silent[name]
        try:
            found.append(StoppedJob(job))
        except JobUnavailableError as error:
            silent[names[0] if names else job.job] = str(error)
            continue
        stopped[job.job] = found[-1].state
    jobs = {**parts.jobs, **{it.name: {} for it in found}}
    return replace(parts, jobs=jobs, silent=silent, stopped=stopped), found
