"""The files that a job keeps on disk between runs, its own and Spark's for each sink, checked.

    CHECKPOINT_DIR/
      format                  which format it has: `penstock.service.data_format`
      lock                    held while the job runs, so that it does not run twice
      starting_offsets.json   where each stream was begun; written before it is first read
      SINK/spark/             Spark's checkpoint of the sink's query
      SINK/                   the sink's own state
      SINK/deliveries.ndjson  which batch had which offsets, and when: `…checkpoint.deliveries`
      SINK/plan.json          the tasks of the batch that was planned last: `PlannedBytes`
      SINK/replay.json        how far a replay of a range is, while it is not at its end
      SINK/replay/            the sink's own state of it
      SINK/replay-letters/    that of the last replay of dead letters
      endpoints.json          addresses in use, while the job runs

Spark asks a source again for its first offset until a first batch has ended, so "latest" could mean
something else after a crash. The job therefore decides once and writes it down.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from penstock.base.clock import BlockingClock
from penstock.base.files import atomic_write, atomic_writer
from penstock.router.errors import BadOptionError
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.read.offsets import Offsets, offsets_from_json
from penstock.service import ExitCode, ServiceError, UnavailableError
from penstock.service.data_format import DataFormat

DATA_FORMAT: Final = DataFormat("router")
_LOCK_POLL_S: Final = 0.1
_LOG_VERSION: Final = "v1"
"""That of Spark's logs of offsets and of commits."""
_COMMIT: Final = 'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark notes of a batch that has ended, without watermarks."""

BATCHES_KEPT: Final = 20
"""Batches that Spark and `note_done` keep of a sink's checkpoint."""

_UNFINISHED: Final = re.compile(r"\.+\d+\.[0-9a-f-]{36}\.tmp(\.crc)?")


class CheckpointVersionError(ServiceError):
    """A checkpoint is there, and another version's."""

    exit_code = ExitCode.CONFIG


class CheckpointDamagedError(ServiceError):
    """A file of a checkpoint is not what it should be."""

    exit_code = ExitCode.CONFIG


_FOR_THE_OPERATOR: Final = (
    FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError,
)  # fmt: skip
"""Errors of a file that last until the operator acts."""


class JobLock:
    """An exclusive lock on a checkpoint directory.

    The JVM inherits the descriptor, so the lock outlives a killed job until its JVM is gone too.
    """

    def __init__(self, directory: Path, *, wait_s: float, clock: BlockingClock) -> None:
        """Take the lock; wait for it as long as a killed job's JVM may need to notice.

        Raises:
            ConfigError: The directory cannot be written to.
            UnavailableError: Another job holds it still after `wait_s` seconds.
            DataFormatError: A later version wrote it, or another part of Penstock.
        """
        DATA_FORMAT.check(directory)
        path = directory / "lock"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise WrongKeyError(
                f"checkpoint_dir: cannot write to {directory}: {error.strerror}",
                fix="name a directory that this user may write to",
            ) from None
        deadline_ns = clock.monotonic_ns() + round(wait_s * 1e9)
        while not self._try():
            if clock.monotonic_ns() < deadline_ns:
                clock.sleep(_LOCK_POLL_S)
                continue
            holder = path.read_text(errors="replace").strip() or "another process"
            os.close(self.descriptor)
            raise UnavailableError(
                f"checkpoint_dir: {directory} is in use by {holder}",
                fix="stop that job, or give this one its own checkpoint_dir",
            )
        os.ftruncate(self.descriptor, 0)
        os.write(self.descriptor, f"process {os.getpid()}\n".encode())
        DATA_FORMAT.open(directory)

    def _try(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        os.close(self.descriptor)


def lock_holder(directory: Path) -> str | None:
    """Return the process that has a checkpoint directory's lock; None: none has.

    Raises:
        OSError: The lock cannot be read.
    """
    try:
        with (directory / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read().strip() or "another process"
    except (FileNotFoundError, NotADirectoryError):
        pass
    return None


class StartingOffsets:
    def __init__(self, checkpoint_dir: Path) -> None:
        self._path = checkpoint_dir / "starting_offsets.json"

    def load(self) -> Offsets:
        if not self._path.exists():
            return Offsets({})
        with _readable(self._path):
            return offsets_from_json(json.loads(self._path.read_text()))

    def extend(self, resolved: Offsets) -> Offsets:
        """Write down the streams that are new; the others stay as they are."""
        known = self.load()
        merged = Offsets(
            {**resolved.next, **known.next}, {**resolved.stream_ids, **known.stream_ids}
        )
        if merged != known:
            atomic_write(self._path, json.dumps(merged.to_json(), indent=1).encode(), parents=True)
        return merged


def committed_offsets(spark_checkpoint: Path) -> Offsets | None:
    """The position behind the last batch that Spark has noted as done; None before the first."""
    batch = _newest_of(spark_checkpoint, "commits")
    return None if batch is None else planned_offsets(spark_checkpoint, batch)


def offsets_in_work(spark_checkpoint: Path) -> tuple[int, Offsets] | None:
    """The batch that Spark has planned and not noted as done, and its end; None: there is none."""
    done = _newest_of(spark_checkpoint, "commits")
    batch = _newest_of(spark_checkpoint, "offsets")
    if batch is None or (done is not None and batch <= done):
        return None
    return batch, planned_offsets(spark_checkpoint, batch)


def is_done(spark_checkpoint: Path, batch: int) -> bool:
    """Return whether a batch is noted as done."""
    return (spark_checkpoint / "commits" / str(batch)).exists()


def next_batch(spark_checkpoint: Path) -> int:
    """The number of the batch after those that were planned."""
    return max(_batches_in(spark_checkpoint / "offsets"), default=-1) + 1


def _newest_of(spark_checkpoint: Path, name: str) -> int | None:
    with _readable(spark_checkpoint / name):
        return max(_batches_in(spark_checkpoint / name), default=None)


def check_spark_files(spark_checkpoint: Path) -> None:
    """Check that Spark's checkpoint of a sink is of the form that is read and written here.

    Raises:
        CheckpointVersionError: Another version of Spark wrote it.
        CheckpointDamagedError: A file is not what it should be.
        UnavailableError: It cannot be read now.
    """
    for name in ("offsets", "commits"):
        batch = _newest_of(spark_checkpoint, name)
        if batch is not None:
            _lines_of(spark_checkpoint / name / str(batch))
    about = spark_checkpoint / "metadata"
    with _readable(about):
        if about.exists() and not isinstance(json.loads(about.read_text())["id"], str):
            raise ValueError("its id is no text")


def clear_unfinished(spark_checkpoint: Path) -> None:
    """Remove what a killed driver left of files that Spark had not finished.

    Spark refuses a first batch for ever while its directory of offsets is not empty
    (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY), be it with such a file. No query may run meanwhile.
    """
    for name in ("offsets", "commits"):
        for path in (spark_checkpoint / name).glob(".*"):
            if _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)


def discard_planned(spark_checkpoint: Path, batch: int) -> None:
    """Have Spark plan a batch again that has not ended. No query may run meanwhile."""
    if not is_done(spark_checkpoint, batch):
        _remove_of_batch(spark_checkpoint / "offsets", batch)


def copy_planned(read_by: Path, batch: int, spark_checkpoint: Path, number: int) -> None:
    """Note in a sink's checkpoint a batch that another sink's query has planned.

    The sink's own query, if the batch does not end, repeats it as if it had planned it. Like Spark,
    this does not sync files.

    Args:
        read_by: Checkpoint of the query that has planned the batch.
        batch: Its number there.
        spark_checkpoint: The sink's checkpoint.
        number: Its number here: the one behind the last.
    """
    about = spark_checkpoint / "metadata"
    if not about.exists():
        atomic_write(about, json.dumps({"id": str(uuid4())}), durable=False, parents=True)
    planned = (read_by / "offsets" / str(batch)).read_bytes()
    _write_of_batch(spark_checkpoint / "offsets", number, planned)


def note_done(spark_checkpoint: Path, number: int) -> None:
    """Note in a sink's checkpoint that a batch of `copy_planned` has ended, as Spark does."""
    _write_of_batch(spark_checkpoint / "commits", number, _COMMIT.encode())
    for name in ("offsets", "commits"):
        directory = spark_checkpoint / name
        for batch in _batches_in(directory):
            if batch <= number - BATCHES_KEPT:
                _remove_of_batch(directory, batch)


def _write_of_batch(directory: Path, batch: int, content: bytes) -> None:
    (directory / f".{batch}.crc").unlink(missing_ok=True)  # of an earlier file of that name
    unfinished = directory / f".{batch}.{uuid4()}.tmp"  # a name that `clear_unfinished` knows
    with atomic_writer(
        directory / str(batch), temporary=unfinished, durable=False, parents=True
    ) as file:
        file.write(content)


def _remove_of_batch(directory: Path, batch: int) -> None:
    for name in (str(batch), f".{batch}.crc"):
        (directory / name).unlink(missing_ok=True)


def planned_offsets(spark_checkpoint: Path, batch: int) -> Offsets:
    """The position behind a batch, which Spark notes before it begins with it."""
    path = spark_checkpoint / "offsets" / str(batch)
    lines = _lines_of(path)
    with _readable(path):
        return offsets_from_json(json.loads(lines[2]))


def _lines_of(path: Path) -> list[str]:
    """Return the lines of a file of Spark's logs; the first one is the log's version."""
    with _readable(path):
        lines = path.read_text().splitlines()
        version = lines[0]
    if version != _LOG_VERSION:
        raise CheckpointVersionError(
            f"{path}: a log of {path.parent.name} of version {version!r}; this router reads"
            f" {_LOG_VERSION!r}: another version of Spark wrote it, or another setting of"
            " spark.conf",
            fix="run the job with the pyspark and the spark.conf that wrote it until it has caught"
            " up, then begin again with an empty checkpoint_dir and starting_offsets as"
            " `committed` in the status",
        )
    return lines


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Within it, a file that does not hold what it should is the operator's matter.

    What a disk or a share cannot give now is not: the operator starts the job again.
    """
    try:
        yield
    except OSError as error:
        if not isinstance(error, _FOR_THE_OPERATOR):
            raise UnavailableError(
                f"{path} cannot be read now: {error.strerror or error}",
                fix="look at the disk or share that checkpoint_dir is on; it may pass",
            ) from None
        raise _damaged(path, error) from None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, BadOptionError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> CheckpointDamagedError:
    why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return CheckpointDamagedError(
        f"{path} cannot be read: {why}",
        fix="let this user read it; if it is damaged, restore checkpoint_dir from a backup, or"
        " begin again with an empty one and starting_offsets as the job's cursors in logd say",
    )


def _batches_in(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(entry.name) for entry in directory.iterdir() if entry.name.isdigit()]
