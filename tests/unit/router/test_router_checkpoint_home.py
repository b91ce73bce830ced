"""A job and its checkpoints, in a directory and in a store."""

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.router.checkpoint.manager import CheckpointManager
from penstock.router.errors import UnavailableError as NotNowError
from penstock.router.job.config import JobConfig
from penstock.router.replay.bounded_run import bounded_run
from penstock.service import UnavailableError
from tests.support.fault_door import Answered, FaultDoor
from tests.support.memory_objects import MemoryObjects, S3OfObjects
from tests.support.waiting import wait_until


def job(directory: Path, door: FaultDoor | None = None, **keys: object) -> JobConfig:
    """One whose checkpoints are in the store behind a door."""
    store = {
        "type": "s3", "url": S3OfObjects.URL, "lease_s": 3,
        "endpoint": door.url if door else "http://127.0.0.1:1",
        "access_key_id": "id", "secret_access_key": "secret",
    }  # fmt: skip
    return JobConfig.model_validate(
        {
            "job": "archive",
            "logd": "127.0.0.1:7070",
            "streams": ["logs"],
            "checkpoint_dir": str(directory),
            "checkpoint_store": store,
            "connect_timeout_s": 0.1,
            "routes": [{"name": "all", "sinks": ["lake"]}],
            "sinks": {"lake": {"type": "console"}},
        }
        | keys
    )


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def door(objects: MemoryObjects) -> Iterator[FaultDoor]:
    made = FaultDoor(S3OfObjects(objects))
    yield made
    made.close()


@pytest.fixture
def home(door: FaultDoor) -> Callable[..., CheckpointManager]:
    def opened(directory: Path, by: FaultDoor = door) -> CheckpointManager:
        made = CheckpointManager(job(directory, by), SystemClock())
        assert made.open()
        return made

    return opened


def test_a_job_goes_on_where_another_machine_left_off(
    tmp_path: Path, home: Callable[..., CheckpointManager]
) -> None:
    first = home(tmp_path / "first")
    (tmp_path / "first" / "starting_offsets.json").write_text('{"logs": {"0": 7}}')
    commits = tmp_path / "first" / "lake" / "spark" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").write_text("v1\n{}")
    dead_letters = tmp_path / "first" / "dead_letters" / "lake"
    dead_letters.mkdir(parents=True)
    (dead_letters / "a.ndjson").write_text("{}")
    (dead_letters.parent / "replays.ndjson").write_text("asked")
    first.persist("lake")
    (commits / "1").write_text("v1\n{}")
    first.close()  # which keeps what came last

    home(tmp_path / "second").close()
    second = tmp_path / "second"
    assert (second / "starting_offsets.json").read_text() == '{"logs": {"0": 7}}'
    assert sorted(it.name for it in (second / "lake" / "spark" / "commits").iterdir()) == ["0", "1"]
    assert (second / "dead_letters" / "lake" / "a.ndjson").exists()
    assert (second / "dead_letters" / "replays.ndjson").read_text() == "asked"


def test_a_store_has_all_sinks_from_the_start_on(
    tmp_path: Path, objects: MemoryObjects, home: Callable[..., CheckpointManager]
) -> None:
    """One that is added to a job: no batch needs to come before its machine may go."""
    (tmp_path / "lake" / "spark" / "commits").mkdir(parents=True)
    (tmp_path / "lake" / "spark" / "commits" / "41").write_text("v1")
    home(tmp_path)
    assert [it for it in objects.held if it.startswith("sinks/lake/manifests/")]


def test_nothing_is_published_while_the_store_is_away(
    tmp_path: Path, objects: MemoryObjects, home: Callable[..., CheckpointManager]
) -> None:
    it = home(tmp_path)
    it.persist("lake")
    objects.fail_after(0)
    (tmp_path / "lake" / "batch.json").write_text("{}")
    with pytest.raises(NotNowError, match="the store is away"):
        it.persist("lake")
    objects.fail_after(10_000)
    wait_until(lambda: persists(it))  # a lease that ran out meanwhile is renewed
    it.close()


def persists(it: CheckpointManager) -> bool:
    try:
        it.persist("lake")
    except NotNowError:
        return False
    return True


def test_the_lease_is_renewed_and_what_keeps_it_from_that_is_told(
    tmp_path: Path, objects: MemoryObjects, home: Callable[..., CheckpointManager]
) -> None:
    it, kept = home(tmp_path), threading.Event()

    def rests() -> None:
        kept.set()

    it.persist_between_batches(rests)
    assert kept.wait(10)
    assert it.problem is None
    objects.fail_after(0)
    wait_until(lambda: it.problem is not None, what="a problem")
    assert "the store is away" in str(it.problem)
    objects.fail_after(100_000)
    wait_until(lambda: it.problem is None, what="none")
    it.persist("lake")
    it.close()


def test_the_lease_is_renewed_while_spark_starts_and_while_much_is_kept(
    tmp_path: Path, objects: MemoryObjects, home: Callable[..., CheckpointManager]
) -> None:
    it, goes_on = home(tmp_path), threading.Event()

    def beats() -> int:
        """As the store has the last one."""
        names = (name.partition(".")[2] for name in [*objects.held] if name.startswith("terms/"))
        return max((int(it) for it in names if it.isdigit()), default=0)

    wait_until(lambda: beats() >= 2, what="a beat, though no query runs")

    def kept() -> None:
        goes_on.wait(60)

    it.persist_between_batches(kept)
    wait_until(lambda: beats() >= 4, what="beats, though something takes long")
    goes_on.set()
    it.close()


def test_whatever_is_wrong_with_the_directory_the_lease_is_renewed_and_it_is_told(
    tmp_path: Path, home: Callable[..., CheckpointManager]
) -> None:
    it, is_full = home(tmp_path), True

    def kept() -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")

    it.persist_between_batches(kept)
    wait_until(lambda: it.problem is not None, what="a problem")
    assert "No space left" in str(it.problem)
    is_full = False
    wait_until(lambda: it.problem is None, what="none")
    it.close()


@pytest.fixture
def cut_off(objects: MemoryObjects) -> Iterator[FaultDoor]:
    """Another way to the same store."""
    made = FaultDoor(S3OfObjects(objects))
    yield made
    made.close()


def test_a_job_whose_checkpoints_another_one_took_is_told_who(
    tmp_path: Path, cut_off: FaultDoor, home: Callable[..., CheckpointManager]
) -> None:
    first = home(tmp_path / "first", cut_off)
    cut_off.rule = lambda _: Answered(503)
    second = home(tmp_path / "second")
    with pytest.raises(NotNowError, match="not renewed in time"):
        first.persist("lake")
    cut_off.rule = lambda _: None

    def is_lost() -> bool:
        try:
            first.require_not_lost()
        except UnavailableError as error:
            assert "has taken over" in str(error)  # noqa: PT017 - waited for
            return True
        return False

    wait_until(is_lost, what="it is noticed")
    second.persist("lake")
    first.close()
    second.persist("lake")
    second.close()


def test_a_copy_of_a_directory_on_another_machine_waits(
    tmp_path: Path, door: FaultDoor, home: Callable[..., CheckpointManager]
) -> None:
    """And be it one of the same name, as of a virtual machine that was copied."""
    first = home(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    boot_id, config = tmp_path / "boot_id", job(tmp_path / "second", door)
    boot_id.write_text("another")
    second, looks = CheckpointManager(config, SystemClock(), boot_id=boot_id), iter([False] * 5)
    assert not second.open(lambda: next(looks, True))
    second.close()
    first.close()


def test_who_ends_while_a_batch_is_in_work_is_waited_for(
    tmp_path: Path,
    objects: MemoryObjects,
    door: FaultDoor,
    home: Callable[..., CheckpointManager],
) -> None:
    first = home(tmp_path / "first")
    first.close(publishes=True)
    assert "terms/00000001.released" not in objects.held
    config, looks = job(tmp_path / "second", door), iter([False] * 5)
    second = CheckpointManager(config, SystemClock())
    assert not second.open(lambda: next(looks, True))
    second.close()


def test_a_replay_does_not_wait_for_a_job_that_goes_on(
    tmp_path: Path, door: FaultDoor, home: Callable[..., CheckpointManager]
) -> None:
    running = home(tmp_path / "first")
    with (
        pytest.raises(UnavailableError, match=r"checkpoint_store is waited for: process \d+ on"),
        bounded_run(job(tmp_path / "second", door), needs_lock=True, needs_log=False),
    ):
        pass
    running.persist("lake")
    running.close()


def test_without_a_store_nothing_of_it_is_there(tmp_path: Path) -> None:
    it = CheckpointManager(job(tmp_path, checkpoint_store=None), SystemClock())
    assert it.open()
    it.persist("lake")
    it.persist_between_batches(lambda: None)
    assert (it.problem, it.info()) == (None, None)
    it.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["format", "lock"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"type": "s3", "url": "https://bucket"}, "url"),
        ({"type": "s3", "url": "s3://bucket", "access_key_id": "x"}, "or neither"),
        ({"type": "s3", "url": "s3://bucket", "session_token": "x"}, "of no use"),
        ({"type": "s3", "url": "s3://bucket", "lease_s": 1}, "lease_s"),
        ({"type": "hdfs", "url": "hdfs://namenode"}, "url"),
        ({"type": "ftp", "url": "ftp://x"}, "type"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    tmp_path: Path, keys: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        job(tmp_path, checkpoint_store=keys)


def test_a_directory_of_a_machine_is_meant_and_the_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`checkpoint_store` keeps all of these in S3 or HDFS"):
        job(tmp_path, checkpoint_dir="s3://bucket/jobs")
