"""A run with an end: who may have one, and what it says when Spark fails under it."""

import os
import pwd
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from contextlib import nullcontext as does_not_raise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError

from penstock.base.clock import SystemClock
from penstock.router.deadletters.replayable import DeadLetter
from penstock.router.errors import StoppedError
from penstock.router.errors import UnavailableError as NotNowError
from penstock.router.job.config import Spark as SparkSettings
from penstock.router.job.permissions import require_its_user
from penstock.router.read.logd_reader import LogState
from penstock.router.read.options import parse_options
from penstock.router.replay.backfill_plan import Chunk
from penstock.router.replay.bounded_run import BoundedRun, RunFailedError, bounded_run
from penstock.router.spark.heap_budget import HeapBudget
from penstock.router.spark.session import SparkEndedError
from penstock.service import ConfigError, UnavailableError
from tests.support.permissions import without_privileges
from tests.unit.router.test_router_config import load

STEPS: Any = SimpleNamespace(columns=["value"])


def owned(path: Path, owner: int) -> Path:
    """Another user's where root runs the tests, else the user's own."""
    if os.geteuid() == 0:
        os.chown(path, owner, -1)
    return path


def name_of(owner: int) -> str:
    """As `sudo -u` takes it."""
    try:
        return pwd.getpwuid(owner if os.geteuid() == 0 else os.geteuid()).pw_name
    except KeyError:
        return f"'#{owner}'"


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("owner", [65534, 2**31 - 7])
def test_root_is_told_whose_the_job_is(tmp_path: Path, owner: int, has_run: bool) -> None:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    if has_run:
        (directory / "lock").touch()
        owned(directory / "lock", owner)
    else:
        owned(directory, owner)
    require_its_user(directory, user=65534)
    with pytest.raises(ConfigError, match="stand in the job's way") as told:
        require_its_user(directory, user=0)
    assert f"sudo -u {name_of(owner)} penstock" in told.value.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root's are made by root alone")
def test_root_may_do_so_where_the_job_is_roots(tmp_path: Path) -> None:
    """As in a container, whose directory may be mounted from somebody's home."""
    with does_not_raise():
        require_its_user(tmp_path, user=0)
        (tmp_path / "lock").touch()
        require_its_user(tmp_path, user=0)
        require_its_user(owned(tmp_path, 1000), user=0)
        require_its_user(tmp_path / "not there yet", user=0)


@pytest.mark.skipif(os.geteuid() != 0, reason="what is another user's stands in root's way alone")
def test_nothing_is_made_for_a_user_that_may_not(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    owned(tmp_path / "checkpoint", 65534)
    config = load(tmp_path, checkpoint_dir=str(tmp_path / "checkpoint"))
    with (
        pytest.raises(ConfigError, match="belongs to the user"),
        bounded_run(config, needs_lock=True, needs_log=False),
    ):
        pytest.fail("it began")
    assert list((tmp_path / "checkpoint").iterdir()) == []


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
    options = run_with(tmp_path, None).options(Chunk({}, {}))
    assert parse_options(options, streaming=False).task_bytes == 8 * 1024 * 1024


def test_what_is_refused_again_did_not_go_to_the_sink(tmp_path: Path) -> None:
    run = run_with(tmp_path, None)
    run.progress.meter.failed("dead_letters", records=7)  # of a batch before

    def give(*_: Any) -> None:
        run.progress.meter.failed("dead_letters", records=3)
        run.progress.meter.count("left_out_sample", 2)

    batch_writer: Any = SimpleNamespace(steps=STEPS, give=give)
    table = pa.table({"value": [b"x"] * 10})
    assert run.deliver(batch_writer, "lake", lambda *_: table, 0) == 10
    assert (run.progress.records, run.progress.refused, run.progress.left_out) == (5, 3, 2)
    assert str(run.progress) == (
        "0 of 0 batches, 5 records, 3 refused again (dead letters), 2 left out by transforms"
    )
    run.progress.start_over()
    assert str(run.progress) == "0 of 0 batches, 0 records"


FAILURES = [EOFError(), ConnectionRefusedError("refused"), Py4JNetworkError("reset")]


@pytest.mark.parametrize("error", FAILURES)
def test_a_jvm_that_ends_under_it_is_named(tmp_path: Path, error: Exception) -> None:
    run = run_with(tmp_path, SparkEndedError("Spark's JVM ended with code -9", fix="none"))

    def rows(*_: Any) -> Any:
        raise error

    batch_writer: Any = SimpleNamespace(steps=STEPS)
    with pytest.raises(SparkEndedError, match="code -9"):
        run.deliver(batch_writer, "lake", rows, 0)


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

    batch_writer: Any = SimpleNamespace(steps=STEPS)
    with pytest.raises(StoppedError, match="while Spark read"):
        run.deliver(batch_writer, "lake", rows, 0)


def test_who_has_lost_the_jobs_checkpoints_delivers_no_batch_more(tmp_path: Path) -> None:
    def keep(_: str) -> None:
        raise NotNowError("the lease of checkpoint_store was not renewed in time")

    home: Any = SimpleNamespace(persist=keep)
    session: Any = SimpleNamespace(alive=nullcontext)
    run = BoundedRun(
        load(tmp_path, checkpoint_dir=str(tmp_path / "checkpoint")),
        session,
        LogState({}, {}),
        None,
        SystemClock(),
        home,
    )
    given: list[int] = []
    batch_writer: Any = SimpleNamespace(steps=STEPS, give=lambda _, batch: given.append(batch))
    with pytest.raises(UnavailableError, match="not renewed in time"):
        run.deliver(batch_writer, "lake", lambda *_: pa.table({"value": [b"x"]}), 0)
    assert not given


def a_dead_letter(offset: int, value: str) -> DeadLetter:
    return {
        "time": "2026-01-31T03:00:00+00:00", "stream": "logs", "partition": 0, "offset": offset,
        "subject": "t", "value": value,
    }  # fmt: skip


def beside_queries(tmp_path: Path, made: Callable[[HeapBudget], None]) -> BoundedRun:
    """A run in a job whose queries share the heap; `made` sees it while Spark makes the rows."""
    budget = HeapBudget(SparkSettings())

    def frame(*_: Any) -> Any:
        made(budget)
        raise RunFailedError("that will do", fix="")

    session: Any = SimpleNamespace(alive=nullcontext, spark=SimpleNamespace(createDataFrame=frame))
    run = BoundedRun(load(tmp_path), session, LogState({}, {}), None, SystemClock())
    run.budget = budget
    return run


def test_dead_letters_replayed_in_a_running_job_share_the_heap_with_its_queries(
    tmp_path: Path,
) -> None:
    in_use: list[int] = []
    run = beside_queries(tmp_path, lambda budget: in_use.append(budget.in_use))
    rows = run.dead_letter_rows([a_dead_letter(7, "x" * 1000), a_dead_letter(8, "y" * 500)])
    batch_writer: Any = SimpleNamespace(steps=STEPS)
    with pytest.raises(RunFailedError, match="that will do"):
        run.deliver(batch_writer, "lake", rows, 0)
    assert 1500 <= in_use[0] < 10_000
    assert run.budget is not None
    assert run.budget.in_use == 0


def test_a_replay_waits_for_the_heap_and_gives_up_when_it_is_to_stop(tmp_path: Path) -> None:
    run = beside_queries(tmp_path, lambda _: pytest.fail("the heap had no room"))
    assert run.budget is not None
    with run.budget.holding(None, lambda: False):  # a query's batch of unknown size
        rows = run.dead_letter_rows([a_dead_letter(7, "x")])
        run.stop.set()
        with pytest.raises(StoppedError, match="given up"):
            rows("lake", ["value"])


def test_a_dead_letter_that_would_end_the_jvm_of_a_running_job_is_refused(tmp_path: Path) -> None:
    run = beside_queries(tmp_path, lambda _: None)
    assert run.budget is not None
    run.budget.largest = 1000
    with pytest.raises(RunFailedError, match="the record at logs/0 offset 8 has"):
        run.dead_letter_rows([a_dead_letter(7, "x"), a_dead_letter(8, "y" * 1001)])


def test_what_cannot_be_removed_is_reported(tmp_path: Path) -> None:
    """And what is not there needs not be removed."""
    run, home = run_with(tmp_path, None), tmp_path / "locked"
    run.context("lake", home / "replay")
    home.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="replay: Permission denied"):
            without_privileges(lambda: run.context("lake", home / "replay"))
    finally:
        home.chmod(0o700)
