"""The directory of what a job's sinks share: for whom there is one, and that none is left."""

import stat
from pathlib import Path
from typing import Any

import pytest

from penstock.router.job.config import JobConfig
from penstock.router.read.options import parse_options
from penstock.router.read.shared.directory import Sharing
from tests.support.permissions import without_privileges
from tests.unit.router.source_log import NEEDED
from tests.unit.router.test_router_config import load


def job(directory: Path, *, sinks: int = 2, **keys: Any) -> JobConfig:
    names = [f"sink{number}" for number in range(sinks)]
    given: dict[str, Any] = {
        "sinks": {it: {"type": "parquet", "path": str(directory / it)} for it in names},
        "routes": [{"name": "all", "sinks": names}],
    }
    return load(directory, **given | keys)


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    place = tmp_path / "memory"
    place.mkdir()
    return place


def test_a_directory_is_its_users_alone_and_goes_with_the_job(tmp_path: Path, memory: Path) -> None:
    sharing = Sharing.begin(job(tmp_path, source={"max_shared_bytes": 12_345}), memory)
    assert sharing is not None
    (place,) = memory.iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    chosen = parse_options(NEEDED | sharing.options, streaming=True)
    assert (chosen.share_in, chosen.share_bytes) == (place, 12_345)
    (place / "piece").touch()
    sharing.end()
    assert list(memory.iterdir()) == []


@pytest.mark.parametrize(
    "keys",
    [
        {"sinks": 1},
        {"source": {"max_shared_bytes": 0}},
        {"spark": {"master": "spark://127.0.0.1:7077"}},
    ],
)
def test_who_could_not_share_has_none(tmp_path: Path, memory: Path, keys: dict[str, Any]) -> None:
    assert Sharing.begin(job(tmp_path, **keys), memory) is None
    assert list(memory.iterdir()) == []


def test_where_there_is_no_such_memory_or_none_for_this_user_a_job_starts_all_the_same(
    tmp_path: Path, memory: Path
) -> None:
    assert Sharing.begin(job(tmp_path), tmp_path / "absent") is None
    memory.chmod(0o500)
    try:
        assert without_privileges(lambda: Sharing.begin(job(tmp_path), memory)) is None
    finally:
        memory.chmod(0o700)


def test_what_a_killed_job_left_goes_and_what_others_use_or_own_stays(
    tmp_path: Path, memory: Path
) -> None:
    running = Sharing.begin(job(tmp_path), memory)
    assert running is not None
    used = Path(running.options["shareIn"])
    (used / "piece").touch()
    left = used.with_name(f"{used.name}left")
    left.mkdir()
    (left / "piece").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    link = used.with_name(f"{used.name}link")
    link.symlink_to(elsewhere)
    of_another = memory / "penstock-router-nobody-x"
    of_another.mkdir()
    second = Sharing.begin(job(tmp_path), memory)
    assert second is not None
    assert (used / "piece").exists()
    assert not left.exists()
    assert (elsewhere / "file").exists()
    assert of_another.exists()
    second.end()
    running.end()
