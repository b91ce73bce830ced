"""A run with an end: who may have one, and what it says when Spark fails under it."""

import os
import pwd
import shutil
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.router import bounded
from penstock.router.bounded import BoundedRun, bounded_run
from penstock.router.core.backfill import Chunk
from penstock.router.errors import StoppedError
from penstock.router.errors import UnavailableError as NotNowError
from penstock.router.options import parse_options
from penstock.router.owners import require_its_user
from penstock.router.reading import LogState
from penstock.router.session import Session, SparkEndedError
from penstock.service import ConfigError, UnavailableError
from tests.unit.router.test_router_config import load


class Owned:
    """A directory of somebody's, as far as root asks."""

    def __init__(self, directory: int, lock: int | None) -> None:
        self._owner = directory
        self._lock = lock

    def __truediv__(self, _: str) -> "Owned":
        return Owned(-1 if self._lock is None else self._lock, None)

    @override
    def __str__(self) -> str:
        return "/var/lib/penstock/router"

    def exists(self) -> bool:
        return self._owner >= 0

    def stat(self) -> Any:
        return SimpleNamespace(st_uid=self._owner)


@pytest.mark.parametrize(
    ("directory", "lock", "named"),
    [
        (65534, None, "sudo -u nobody penstock"),
        (65534, 65534, "sudo -u nobody penstock"),
        (2**31 - 7, None, f"sudo -u '#{2**31 - 7}' penstock"),
    ],
)
def test_root_is_told_whose_the_job_is(
    monkeypatch: pytest.MonkeyPatch, directory: int, lock: int | None, named: str
) -> None:
    of: Any = Owned(directory, lock)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    require_its_user(of)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    user = SimpleNamespace(pw_name="nobody")
    monkeypatch.setattr(pwd, "getpwuid", {65534: user}.__getitem__)
    with pytest.raises(ConfigError, match="stand in the job's way") as told:
        require_its_user(of)
    assert named in told.value.fix


def test_root_may_do_so_where_the_job_is_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose directory may be mounted from somebody's home."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for directory, lock in ((0, None), (0, 0), (1000, 0)):
        of: Any = Owned(directory, lock)
        require_its_user(of)
    require_its_user(tmp_path / "not there yet")


def test_nothing_is_made_for_a_user_that_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise ConfigError("as for root", fix="none")

    monkeypatch.setattr(bounded, "require_its_user", refuse)
    monkeypatch.setattr(Session, "start", lambda *_: pytest.fail("started"))
    config = load(tmp_path, checkpoint_dir=str(tmp_path / "checkpoint"))
    with (
        pytest.raises(ConfigError, match="as for root"),
        bounded_run(config, needs_lock=True, needs_log=False),
    ):
        pytest.fail("it began")
    assert not (tmp_path / "checkpoint").exists()


def run_with(directory: Path, ended: Exception | None) -> BoundedRun:
    """Its JVM is found to have ended, or lives."""

    @contextmanager
    def alive() -> Any:
        try:
            yield
        except (OSError, EOFError, Py4JNetworkError):
            if ended is not None:
                raise ended from None
            raise

    session: Any = SimpleNamespace(alive=alive)
    return BoundedRun(load(directory), session, LogState({}, {}), None, SystemClock())


def test_what_a_run_reads_is_divided_into_tasks(tmp_path: Path) -> None:
    options = run_with(tmp_path, None)._options(Chunk({}, {}))
    assert parse_options(options, streaming=False).task_bytes == 8 * 1024 * 1024


def test_what_is_refused_again_did_not_go_to_the_sink(tmp_path: Path) -> None:
    run = run_with(tmp_path, None)
    run.progress.meter.failed("dead_letters", records=7)  # of a batch before

    def give(*_: Any) -> None:
        run.progress.meter.failed("dead_letters", records=3)
        run.progress.meter.count("left_out_sample", 2)

    feed: Any = SimpleNamespace(columns=["value"], give=give)
    table = pa.table({"value": [b"x"] * 10})
    assert run.deliver(feed, "lake", lambda *_: table, 0) == 10
    assert (run.progress.records, run.progress.refused, run.progress.left_out) == (5, 3, 2)
    assert str(run.progress) == (
        "0 of 0 batches, 5 records, 3 refused again (dead letters), 2 left out by transforms"
    )
    run.progress.begin_anew()
    assert str(run.progress) == "0 of 0 batches, 0 records"


FAILURES = [EOFError(), ConnectionRefusedError("refused"), Py4JNetworkError("reset")]


@pytest.mark.parametrize("error", FAILURES)
def test_a_jvm_that_ends_under_it_is_named(tmp_path: Path, error: Exception) -> None:
    run = run_with(tmp_path, SparkEndedError("Spark's JVM ended with code -9", fix="none"))

    def rows(*_: Any) -> Any:
        raise error

    feed: Any = SimpleNamespace(columns=["value"])
    with pytest.raises(SparkEndedError, match="code -9"):
        run.deliver(feed, "lake", rows, 0)


@pytest.mark.parametrize("error", FAILURES)
@pytest.mark.parametrize("ends", [True, False])
def test_a_jvm_that_the_same_signal_ended_is_no_failure(
    tmp_path: Path, error: Exception, ends: bool
) -> None:
    ended = SparkEndedError("Spark's JVM ended with code 143", fix="none") if ends else None
    run = run_with(tmp_path, ended)

    def rows(*_: Any) -> Any:
        run.stop.set()
        raise error

    feed: Any = SimpleNamespace(columns=["value"])
    with pytest.raises(StoppedError, match="while Spark read"):
        run.deliver(feed, "lake", rows, 0)


def test_who_has_lost_the_jobs_checkpoints_delivers_no_batch_more(tmp_path: Path) -> None:
    def keep(_: str) -> None:
        raise NotNowError("the lease of checkpoint_store was not renewed in time")

    home: Any = SimpleNamespace(keep=keep)
    session: Any = SimpleNamespace(alive=nullcontext)
    run = BoundedRun(load(tmp_path), session, LogState({}, {}), None, SystemClock(), home)
    given: list[int] = []
    feed: Any = SimpleNamespace(columns=["value"], give=lambda _, batch: given.append(batch))
    with pytest.raises(UnavailableError, match="not renewed in time"):
        run.deliver(feed, "lake", lambda *_: pa.table({"value": [b"x"]}), 0)
    assert not given


def test_what_cannot_be_removed_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is not there needs not be removed."""
    run = run_with(tmp_path, None)
    run.context("lake", tmp_path / "replay")

    def fail(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: fail(path))
    with pytest.raises(ConfigError, match="replay: Permission denied"):
        run.context("lake", tmp_path / "replay")
