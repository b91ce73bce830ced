"""Replays from the command line are taken down like those that are asked for at the job."""

import json
import os
import pwd
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from penstock.base.clock import SystemClock
from penstock.router.cli.main import cli
from penstock.router.deadletters.replayable import DeadLetterFile, find_dead_letters
from penstock.router.job.config import JobConfig
from penstock.router.replay import bounded_run, dead_letters, process
from penstock.router.replay.audit_log import audited, who_types
from penstock.router.replay.progress import Progress
from penstock.service import UnavailableError
from tests.unit.router.test_router_letters import deliver_first, left_of, refuse

LETTERS = Path("checkpoint/dead_letters")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    document = {
        "job": "test",
        "logd": "127.0.0.1:9293",
        "streams": ["logs"],
        "checkpoint_dir": str(tmp_path / "checkpoint"),
        "routes": [{"name": "all", "sinks": ["lake"]}],
        "sinks": {"lake": {"type": "parquet", "path": str(tmp_path / "lake")}},
    }
    path.write_text(yaml.safe_dump(document))
    (tmp_path / LETTERS / "lake").mkdir(parents=True)
    (tmp_path / LETTERS / "lake" / "a.ndjson").write_text("{}\n")
    return path


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was delivered, file by file; no Spark is started."""
    found: list[int] = []

    @contextmanager
    def run(config: JobConfig, **_: Any) -> Iterator[Any]:
        yield its(config.dead_letters)

    def replay(run: Any, files: list[Any], *_: Any) -> int:
        found.append(len(files))
        run.progress.records = 3
        return 3

    # The command's own part is meant: a Spark for each test would take seconds.
    monkeypatch.setattr(bounded_run, "bounded_run", run)
    monkeypatch.setattr(dead_letters, "replay_dead_letters", replay)
    monkeypatch.setattr(process, "attended", lambda *_: nullcontext())
    return found


def its(directory: Path) -> Any:
    """What a run has that is taken down."""
    config = SimpleNamespace(dead_letters=directory)
    progress = Progress("files")
    return SimpleNamespace(config=config, progress=progress, stop=threading.Event())


def taken_down(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "replays.ndjson").read_text().splitlines()]


def test_who_had_letters_delivered_from_the_command_line_is_taken_down(
    job: Path, delivered: list[int]
) -> None:
    done = CliRunner().invoke(cli, ["dlq", "replay", str(job), "--sink", "lake"])
    assert (done.exit_code, delivered) == (0, [1]), done.output
    asked, ended = taken_down(job.parent / LETTERS)
    assert (asked["what"], asked["sink"], asked["files"]) == ("asked", "lake", 1)
    assert (ended["what"], ended["records"], ended["problem"]) == ("ended", 3, "")
    assert asked["by"] == ended["by"] == who_types()


def test_what_cannot_be_taken_down_is_not_done(job: Path, delivered: list[int]) -> None:
    (job.parent / LETTERS / "replays.ndjson").mkdir()
    done = CliRunner().invoke(cli, ["dlq", "replay", str(job)])
    assert (done.exit_code, delivered) == (69, []), done.output
    assert "nothing was delivered" in done.output


@pytest.mark.parametrize("what", ["failed", "stopped"])
def test_a_replay_that_ends_early_is_taken_down_too(tmp_path: Path, what: str) -> None:
    run = its(tmp_path)

    def replay() -> None:
        run.progress.records = 90
        if what == "stopped":
            run.stop.set()
        raise UnavailableError("the sink is away", fix="wait")

    with (
        pytest.raises(UnavailableError, match="the sink is away"),
        audited(tmp_path, SystemClock(), run.progress, run.stop, "range ", sink="lake"),
    ):
        replay()
    asked, early = taken_down(tmp_path)
    assert (asked["what"], early["what"]) == ("range asked", f"range {what}")
    assert "the sink is away" in early["problem"]
    assert early["records"] == 90


def test_what_the_job_moved_before_it_ended_is_found_where_it_is(
    job: Path, delivered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job still runs when the command begins, and has the lock."""
    begin = bounded_run.bounded_run
    shutil.rmtree(job.parent / LETTERS)
    refuse(job.parent / "checkpoint", 7, 8)
    (job.parent / "checkpoint" / "dead").rename(job.parent / LETTERS)

    @contextmanager
    def run(config: JobConfig, **keys: Any) -> Iterator[Any]:
        (file,) = find_dead_letters(config.dead_letters)
        begun = file.begin()
        deliver_first(begun)
        with begin(config, **keys) as found:
            yield found

    def replay(_: Any, files: list[DeadLetterFile], *__: Any) -> int:
        delivered.extend(offset for it in files for offset in left_of(it.begin()))
        return 0

    # As `delivered`: between the command's two looks the lock is had, which starts Spark.
    monkeypatch.setattr(bounded_run, "bounded_run", run)
    monkeypatch.setattr(dead_letters, "replay_dead_letters", replay)
    done = CliRunner().invoke(cli, ["dlq", "replay", str(job)])
    assert (done.exit_code, delivered) == (0, [8]), done.output


def test_the_name_is_the_machines_and_not_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, "somebody else")
    assert who_types() == f"command line, for {pwd.getpwuid(os.getuid()).pw_name}"
    assert who_types(2**31 - 7) == f"command line, for {2**31 - 7}"
