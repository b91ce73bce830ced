"""Room on the disk that is kept for the checkpoint."""

import errno
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.agent import Agent
from penstock.collector.config import CollectorConfig
from penstock.collector.reserve import NAME, Reserve
from penstock.logd.store import Checkpoint


def test_it_is_as_large_as_some_checkpoints_and_grows_with_them(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(b"x")
    reserve = Reserve(tmp_path, checkpoint)
    reserve.make()
    assert (tmp_path / NAME).stat().st_size == 256 * 1024
    assert (tmp_path / NAME).stat().st_blocks * 512 >= 256 * 1024
    checkpoint.write_bytes(b"x" * 100_000)
    reserve.make()
    assert (tmp_path / NAME).stat().st_size == 400_000
    reserve.give()
    assert not (tmp_path / NAME).exists()
    reserve.give()
    reserve.make()
    assert (tmp_path / NAME).stat().st_size == 400_000


def test_what_was_there_before_is_used(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"x")
    for _ in range(2):
        Reserve(tmp_path, tmp_path / "checkpoint").make()
    assert (tmp_path / NAME).stat().st_size == 256 * 1024


def test_a_disk_without_room_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"x")
    (tmp_path / NAME).mkdir()
    Reserve(tmp_path, tmp_path / "checkpoint").make()


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    document = {"data_dir": tmp_path, "sources": [{"type": "syslog", "udp": "127.0.0.1:0"}]}
    return Agent(CollectorConfig.model_validate(document), Path("collector.yaml"))


async def test_a_checkpoint_on_a_full_disk_takes_the_room_that_is_kept_and_nobody_else_does(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, journals = agent._saver, agent._engine.journals[:2]
    agent._recover()
    assert (tmp_path / NAME).exists()
    held: list[bool] = []

    def save(self: Checkpoint, document: dict[str, Any]) -> None:
        if (tmp_path / NAME).exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        held.append(all(journal.held().locked() for journal in journals))

    monkeypatch.setattr(Checkpoint, "save", save)
    for _ in range(2):  # and again, for the room is taken anew
        saver._saved = {}
        assert await saver.save()
    assert held == [True, True]
    assert (tmp_path / NAME).exists()
    assert not any(journal.held().locked() for journal in journals)


async def test_a_disk_that_fails_otherwise_is_told_and_the_room_kept(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = agent._saver
    agent._recover()

    def save(self: Checkpoint, document: dict[str, Any]) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Checkpoint, "save", save)
    saver._saved = {}
    assert not await saver.save()
    assert (tmp_path / NAME).exists()


def test_the_first_checkpoint_of_a_start_takes_it_too(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent._saver._reserve.make()
    saved: list[bool] = []

    def save(self: Checkpoint, document: dict[str, Any]) -> None:
        if (tmp_path / NAME).exists() or not saved:
            saved.append(False)
            raise OSError(errno.ENOSPC, "No space left on device")
        saved.append(True)

    monkeypatch.setattr(Checkpoint, "save", save)
    agent._saver.begin()
    assert saved == [False, True]


def test_a_start_goes_on_where_its_addresses_cannot_be_written(
    agent: Agent, tmp_path: Path
) -> None:
    (tmp_path / "endpoints.json").mkdir()
    agent._write_endpoints("127.0.0.1:1")
    assert agent._admin_address == "127.0.0.1:1"
