"""Commands on a data directory that has workers' own in it: none of them is passed over unnamed."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.collector.agent.admin import ControlServer
from penstock.collector.cli.main import cli
from penstock.collector.spool.journal import Journal
from penstock.logd.storage import CommitLog, DirectoryLock, LogConfig
from tests.unit.collector.test_replay import place


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """One with two workers beside the first."""

    async def refuse(directory: Path, *numbers: int) -> None:
        async with place(directory) as here:
            await here.refuse(*numbers)

    data_dir = tmp_path / "collector"
    places = {data_dir: (1, 2), data_dir / "workers/1": (3,), data_dir / "workers/2": (4,)}
    for directory, numbers in places.items():
        asyncio.run(refuse(directory, *numbers))
        CommitLog.open(directory / "spool-urgent", LogConfig()).close()
    return data_dir


def command(*parts: object) -> tuple[list[dict[str, Any]], str]:
    done = CliRunner().invoke(cli, [str(part) for part in parts])
    assert done.exit_code == 0, done.output
    # What is made up logs to the same standard output.
    return [json.loads(one) for one in done.stdout.splitlines() if one[:1] == "{"], done.stderr


def spooled(directory: Path) -> int:
    journal = Journal(directory / "spool", bytes_max=1 << 20)
    journal.open()
    count = journal.log.end_offset
    asyncio.run(journal.close())
    return count


@contextmanager
def running(directory: Path) -> Iterator[list[Mapping[str, Any]]]:
    """A made-up first process of several, whose workers are 0 and 2; what it is asked."""
    asked: list[Mapping[str, Any]] = []
    loop = asyncio.new_event_loop()

    async def quarantine(request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        asked.append(request)
        kept = {"source": "app", "reason": "bad", "records": 2, "replayed": 0}
        yield {"kept": {"worker": 0, **kept}}
        yield {"kept": {"worker": 2, **kept}}
        yield {"ok": True, "workers": [0, 2]}

    async def replay(request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        asked.append(request)
        counts = {"replayed": 2, "before": 0, "unknown": 0, "stopped": ""}
        each = {"ok": True, **counts, "replayed": 1}
        yield {"ok": True, **counts, "workers": {"0": each, "2": each}}

    server = ControlServer(directory / "admin.sock", {"quarantine": quarantine, "replay": replay})
    lock = DirectoryLock(directory)
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asked
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        lock.release()


def test_the_quarantines_of_all_workers_are_shown_and_put_back(data_dir: Path) -> None:
    [counted], _ = command("quarantine", "ls", data_dir)
    assert counted == {"source": "app", "reason": "bad", "records": 4, "replayed": 0}
    shown, _ = command("quarantine", "show", data_dir)
    assert [one["worker"] for one in shown] == [0, 0, 1, 2]
    for option, text, count in (
        ("--source", "app", 4), ("--source", "ap", 0), ("--reason", "ba", 4), ("--reason", "x", 0)
    ):  # fmt: skip
        shown, told = command("quarantine", "show", data_dir, option, text)
        assert len(shown) == count
        assert ("no record in quarantine matches" in told) is (count == 0)
    [outcome], _ = command("quarantine", "replay", data_dir)
    assert outcome["replayed"] == 4
    assert {n: one["replayed"] for n, one in outcome["workers"].items()} == {"0": 2, "1": 1, "2": 1}
    assert [spooled(data_dir), spooled(data_dir / "workers/1")] == [2, 1]


@pytest.mark.parametrize(
    ("command_", "told"),
    [
        (("quarantine", "ls"), "nothing is in quarantine"),
        (("quarantine", "show"), "nothing is in quarantine"),
        (("spool", "ls"), "no unit is there"),
        (("spool", "cat"), "no unit is there"),
        (("spool", "cat", "--source", "other"), "no unit is there"),
    ],
)
def test_where_nothing_is_that_is_said(
    tmp_path: Path, command_: tuple[str, ...], told: str
) -> None:
    for name in ("quarantine", "spool"):
        CommitLog.open(tmp_path / name, LogConfig()).close()
    done = CliRunner().invoke(cli, [*command_[:2], str(tmp_path), *command_[2:]])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"{told}\n"


def test_what_a_short_reason_means_stands_beside_it(tmp_path: Path) -> None:
    async def refuse() -> None:
        async with place(tmp_path) as here:
            await here.refuse(1, reason="invalid: severity_number: int_parsing")

    asyncio.run(refuse())
    [counted], _ = command("quarantine", "ls", tmp_path)
    [shown], said = command("quarantine", "show", tmp_path)
    for one in (counted, shown):
        assert one["reason"] == "invalid: severity_number: int_parsing"
        assert one["meaning"] == "severity_number must be an integer"
    assert said == ""


def test_an_offset_is_of_the_directory_that_is_named(data_dir: Path) -> None:
    [outcome], _ = command("quarantine", "replay", data_dir, "--offset", 0)
    assert (outcome["replayed"], "workers" in outcome) == (1, False)
    [outcome], _ = command("quarantine", "replay", data_dir / "workers/1", "--offset", 0)
    assert outcome["replayed"] == 1


def test_what_is_left_of_a_worker_that_runs_no_more_is_shown_and_put_back(data_dir: Path) -> None:
    with running(data_dir) as asked:
        shown, _ = command("quarantine", "show", data_dir)
        [outcome], said = command("quarantine", "replay", data_dir)
    assert [one["worker"] for one in shown] == [0, 2, 1]
    assert (outcome["replayed"], len(asked)) == (3, 2)
    assert said == f"{data_dir}/workers/1: delivered when the collector is started again\n"
    assert [spooled(data_dir / place) for place in ("", "workers/1", "workers/2")] == [0, 1, 0]


def test_one_that_cannot_be_opened_stops_no_other(data_dir: Path) -> None:
    with DirectoryLock(data_dir / "workers/1"):  # runs, and has no socket
        done = CliRunner().invoke(cli, ["quarantine", "replay", str(data_dir)])
    assert done.exit_code == 75
    outcome = json.loads(done.stdout)
    assert outcome["replayed"] == 3
    assert outcome["stopped"].startswith("worker 1: no collector answers")


@pytest.mark.parametrize("name", ["ls", "cat", "check", "repair"])
def test_spools_that_are_not_looked_at_are_named(data_dir: Path, name: str) -> None:
    done = CliRunner().invoke(cli, ["spool", name, str(data_dir)])
    assert done.exit_code == 0, done.output
    for number in (1, 2):
        assert f"{data_dir}/workers/{number}/spool: another worker's" in done.stderr
