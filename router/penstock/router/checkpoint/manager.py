"""The checkpoints of a job, for one process: locked on this machine, and in a store anywhere.

    checkpoint_store/
      terms/…                 whose it is: `penstock.router.storage.store_lease`
      job/…, sinks/SINK/…     `checkpoint_dir` and what each sink has in it: `…checkpoint.sync`
      letters/…               dead letters: `…checkpoint.sync`

A job works with its directory. Where there is a store, that is brought here when another machine
kept something since, and from then on follows the directory: before a batch is delivered, with what
Spark has planned, before a sink publishes what it has just noted, and between batches. So what the
store has is always a moment after which at most one batch comes again, as after a kill.
"""

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import structlog

from penstock.base.clock import BlockingClock
from penstock.base.files import atomic_write
from penstock.router.checkpoint.local import JobLock
from penstock.router.checkpoint.settings import HdfsStore, S3Store
from penstock.router.checkpoint.sync import CheckpointSync, DeadLetterSync, forget
from penstock.router.errors import UnavailableError as NotNowError
from penstock.router.job.config import JobConfig
from penstock.router.job.config_errors import MissingLibraryError, WrongKeyError
from penstock.router.replay.audit_log import NAME as REPLAY_NOTES
from penstock.router.storage.hdfs import Hdfs, HdfsObjects
from penstock.router.storage.objects import Objects
from penstock.router.storage.s3 import S3Objects
from penstock.router.storage.store_lease import StoreLease
from penstock.service import ServiceError

_HOLDER: Final = ".holder"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_STARTING: Final = Path("starting_offsets.json")


def open_store(config: S3Store | HdfsStore) -> Objects:
    """A connection to a store.

    Raises:
        ConfigError: A library is missing, or the settings cannot be used.
    """
    try:
        if config.type == "s3":
            return S3Objects(config, location="checkpoint_store", answer_s=config.answer_s)
        shortest_s = min(config.hdfs.timeout_s, config.answer_s)
        settings = config.hdfs.model_copy(update={"timeout_s": shortest_s})
        return HdfsObjects(Hdfs(config.url, location="checkpoint_store.url", settings=settings))
    except MissingLibraryError as error:
        raise WrongKeyError(f"checkpoint_store: {error.reason}", fix=error.fix) from error


class CheckpointManager:
    """The directory, locked; and the store, once it is `open`.

    Args:
        boot_id: The file that tells one start of this machine from another.

    Attributes:
        descriptor: File descriptor of the lock, for a JVM that outlives a killed driver.

    Raises:
        ConfigError: The directory cannot be written to, or a library is missing.
        UnavailableError: Another process has the directory.
        DataFormatError: A later version wrote it, or another part of Penstock.
    """

    def __init__(self, config: JobConfig, clock: BlockingClock, *, boot_id: Path = BOOT_ID) -> None:
        directory = config.checkpoint_dir
        with ExitStack() as stack:
            lock = JobLock(directory, wait_s=config.connect_timeout_s, clock=clock)
            stack.callback(lock.release)
            self.descriptor = lock.descriptor
            self._store = _Store(config, clock, boot_id) if config.checkpoint_store else None
            if self._store is None:
                for sink in config.sinks:
                    forget(directory / sink)
                forget(directory)
            self._release = stack.pop_all()

    def open(self, is_stopping: Callable[[], bool] = lambda: False) -> bool:
        """Get the store's lease, and make the directory what the job goes on from.

        Args:
            is_stopping: Asked while somebody else has the lease.

        Returns:
            False: it was to stop before.

        Raises:
            ConfigError: Directory and store do not belong together, or one cannot be used.
            UnavailableError: The store cannot be reached.
        """
        return self._store is None or self._store.open(is_stopping)

    def persist(self, sink: str) -> None:
        """Make what a sink and Spark have noted of it as lasting as checkpoints are to be.

        Raises:
            penstock.router.errors.UnavailableError: That cannot be now; nothing may be published.
        """
        if self._store is not None:
            self._store.persist(sink)

    def persist_between_batches(self, kept: Callable[[], None]) -> None:
        """Have `kept` called now and then, from a thread."""
        if self._store is not None:
            self._store.lease.repeat("checkpoints", kept)

    @property
    def problem(self) -> str | None:
        """Description of what is wrong with the store; None while it works, or without one."""
        return None if self._store is None else self._store.lease.problem

    def info(self) -> Mapping[str, Any] | None:
        """The store's part of a status; None where there is none."""
        return None if self._store is None else self._store.info()

    def require_not_lost(self) -> None:
        """The job ends where another process has its checkpoints.

        Raises:
            UnavailableError: That is so.
        """
        if self._store is not None:
            self._store.lease.require_not_lost()

    def close(self, *, publishes: bool = False) -> None:
        """Let go of both; what there is is kept once more, as far as it can be.

        Args:
            publishes: A batch is in work that could not be ended; the next one waits for the lease.
        """
        try:
            if self._store is not None:
                self._store.close(publishes=publishes)
        finally:
            self._release.close()


class _Store:
    """The store of one job."""

    def __init__(self, config: JobConfig, clock: BlockingClock, boot_id: Path) -> None:
        assert config.checkpoint_store is not None
        self._url = config.checkpoint_store.url
        self._objects = open_store(config.checkpoint_store)
        self._directory = config.checkpoint_dir.resolve()
        boot = _booted(boot_id)
        holder = f"{socket.gethostname()} {boot} {_holder(self._directory)}"
        lease_s = config.checkpoint_store.lease_s
        self.lease = StoreLease(self._objects, holder, lease_s, clock, location="checkpoint_store")
        dead_letters = config.dead_letters.resolve()
        self._job = CheckpointSync(
            self._objects, "job", self._directory,
            job=config.job, boot=boot, is_kept=lambda path: path == _STARTING,
        )  # fmt: skip
        self._notes = DeadLetterSync(
            self._objects, "letters", dead_letters,
            marker=self._directory / ".replays-stored", only=REPLAY_NOTES,
        )  # fmt: skip
        self._sinks = {
            name: _Sink(
                CheckpointSync(
                    self._objects, f"sinks/{name}", self._directory / name,
                    job=config.job, boot=boot, is_kept=lambda _: True,
                ),
                DeadLetterSync(
                    self._objects, f"letters/{name}", dead_letters / name,
                    marker=self._directory / name / ".letters-stored",
                ),
            )
            for name in config.sinks
        }  # fmt: skip
        self._is_open = False

    def open(self, is_stopping: Callable[[], bool]) -> bool:
        if not self.lease.take(is_stopping):
            return False
        self.lease.keep_renewing()  # to bring much, and to start Spark, takes its time
        brought = [name for name, sink in self._sinks.items() if sink.begin()]
        came = self._job.begin()
        self._notes.begin(bring=came)
        self._is_open = True
        self._job.persist(self.lease.term)
        for sink in self._sinks.values():  # so that a store that is new has all from now on
            sink.persist(self.lease.term)
        structlog.get_logger().info(
            "checkpoint_store_opened",
            store=self._url,
            term=self.lease.term,
            restored_sinks=brought,
        )
        return True

    def persist(self, sink: str) -> None:
        try:
            self.lease.require_held()
            self._job.persist(self.lease.term)
            self._notes.persist()
            self._sinks[sink].persist(self.lease.term)
            self.lease.require_newest()  # publishing begins now
        except ServiceError as error:
            raise NotNowError(error.reason) from error

    def info(self) -> Mapping[str, Any]:
        return {
            "url": self._url,
            "term": self.lease.term if self._is_open else None,
            "problem": self.lease.problem,
        }

    def close(self, *, publishes: bool) -> None:
        try:
            if self._is_open and not publishes:
                for sink in self._sinks:
                    self.persist(sink)
        except NotNowError as error:
            structlog.get_logger().warning(
                "checkpoint_sync_failed", store=self._url, reason=str(error)
            )
        self.lease.close(let_go=not publishes)
        self._objects.close()


@dataclass(frozen=True, slots=True)
class _Sink:
    """The parts of the store that belong to one sink."""

    state: CheckpointSync
    dead_letters: DeadLetterSync

    def begin(self) -> bool:
        brought = self.state.begin()
        self.dead_letters.begin(bring=brought)
        return brought

    def persist(self, term: int) -> None:
        self.dead_letters.persist()
        self.state.persist(term)


def _holder(directory: Path) -> str:
    """The directory's own name among those that had the lease."""
    path = directory / _HOLDER
    if not path.exists():
        atomic_write(path, uuid4().hex.encode(), parents=True)
    return path.read_text()


def _booted(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""
