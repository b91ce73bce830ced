"""Replays from the command line are taken down like those that are asked for at the job."""

import json
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from penstock.router import bounded, replay_process
from penstock.router.cli import cli
from penstock.router.clock import SystemClock
from penstock.router.replay_notes import typed, who_types
from penstock.service import UnavailableError

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
    def run(*_: Any, **__: Any) -> Iterator[None]:
        yield None

    def replay(_: None, files: list[Any], *__: Any) -> int:
        found.append(len(files))
        return 3

    monkeypatch.setattr(bounded, "bounded_run", run)
    monkeypatch.setattr(bounded, "replay_letters", replay)
    monkeypatch.setattr(replay_process, "attended", lambda *_: nullcontext())
    return found


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


def test_a_replay_that_fails_is_taken_down_too(tmp_path: Path) -> None:
    with (
        pytest.raises(UnavailableError, match="the sink is away"),
        typed(tmp_path, SystemClock(), "range ", sink="lake"),
    ):
        raise UnavailableError("the sink is away", fix="wait")
    asked, failed = taken_down(tmp_path)
    assert (asked["what"], failed["what"]) == ("range asked", "range failed")
    assert "the sink is away" in failed["problem"]


def test_the_name_is_the_machines_and_not_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, "somebody else")
    assert who_types() == f"command line, for {pwd.getpwuid(os.getuid()).pw_name}"
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert who_types() == f"command line, for {2**31 - 7}"
