"""`streams purge` asks before it deletes; `gaps` shows what every node has missed."""

from typing import Any

import msgspec
import orjson
import pytest
from click.testing import CliRunner, Result

from penstock.logd.api.models import GapList
from penstock.logd.cli import cli
from penstock.logd.errors import UnavailableError
from penstock.logd.format.batch import Record
from tests.support.fake_log import FakeLog


@pytest.fixture
def log() -> FakeLog:
    made = FakeLog()
    records = [Record("t.a", b"x", n * 10**9) for n in range(100)]
    made.add("logs", records, per_frame=10)
    made.add("two", records[:4], per_frame=2)
    made.add("two", records[4:6], per_frame=2, partition=1)
    return made


def run(log: FakeLog, words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli, words.split(), input=answer, obj=log.clients())


@pytest.mark.parametrize(
    ("words", "start", "gone"),
    [("--before 30", 30, 30), ("--before 1970-01-01T00:00:45Z", 45, 45), ("--all", 100, 100)],
)
def test_the_beginning_is_deleted(log: FakeLog, words: str, start: int, gone: int) -> None:
    done = run(log, f"streams purge logs {words} --yes")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert done.stdout == f"logs/0 begins at offset {start}; deleted: {gone} records\n"
    assert log.starts == {"logs": start}


def test_it_asks_first(log: FakeLog) -> None:
    done = run(log, "streams purge logs --before 30", "n\n")
    assert (done.exit_code, done.stdout, log.starts) == (1, "", {})
    assert "Delete 30 records of logs, for ever?" in done.stderr
    assert run(log, "streams purge logs --before 30", "y\n").exit_code == 0
    assert log.starts == {"logs": 30}


def test_each_partition_is_purged_unless_one_is_named(log: FakeLog) -> None:
    done = run(log, "streams purge two --all --yes --json")
    assert [orjson.loads(line) for line in done.stdout.splitlines()] == [
        {"stream": "two", "partition": 0, "start_offset": 4},
        {"stream": "two", "partition": 1, "start_offset": 2},
    ]
    assert len(run(log, "streams purge two --all --partition 1 --yes").stdout.splitlines()) == 1
    assert run(log, "streams purge two --before 1 --yes").exit_code == 64
    assert "UNKNOWN_STREAM" in run(log, "streams purge none --all --yes").stderr


def gap(**facts: Any) -> dict[str, Any]:
    return {
        "streams": ["logs/0"], "stream_count": 1, "reason": "busy", "detail": "",
        "start": "2026-01-31T03:00:00.123+00:00", "end": "2026-01-31T03:00:05.000+00:00",
        "seconds": 4.877, "messages": 7,
    } | facts  # fmt: skip


def said_by(node: str, **found: Any) -> GapList:
    answer = {"node": node, "lasting": [], "ended": [], "damaged": []} | found
    return msgspec.convert(answer, GapList)


def test_gaps_and_damage_of_every_node_are_shown(log: FakeLog) -> None:
    lasting = gap(
        start="2026-01-31T02:00:00.000+00:00", end=None, messages=None, reason="reconnecting",
        streams=["logs/0", "pri\x1bces"], stream_count=12, detail="gone", seconds=90.0,
    )  # fmt: skip
    hole = {"stream": "logs", "partition": 0, "first": 10, "upto": 20}
    log.nodes = {
        "a": said_by("a", ended=[gap()]),
        "b": said_by("b", lasting=[lasting], damaged=[hole]),
    }
    done = run(log, "gaps")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[1][:5] == ["2026-01-31T02:00:00Z", "lasts", "90", "?", "reconnecting"]
    assert lines[1][5:] == ["logs/0,pri\\x1bces", "and", "10", "more", "b", "gone"]
    assert lines[2][:4] == ["2026-01-31T03:00:00Z", "2026-01-31T03:00:05Z", "5", "7"]
    assert lines[-1] == ["logs", "0", "10", "20", "b"]
    documents = [
        orjson.loads(line) for line in run(log, "gaps --json --stream logs").stdout.splitlines()
    ]
    assert [(one["kind"], one["node"]) for one in documents] == [
        ("ingest", "b"), ("ingest", "a"), ("damage", "b")
    ]  # fmt: skip
    assert "no stream has missed messages" in run(log, "gaps --stream log").stdout
    assert "damaged" not in run(log, "gaps --node a").stdout


def test_a_node_that_cannot_be_asked_is_named(log: FakeLog) -> None:
    log.nodes = {"a": said_by("a", ended=[gap()]), "b": UnavailableError("it is gone")}
    done = run(log, "gaps")
    assert done.exit_code == 69
    assert "logs/0" in done.stdout
    assert "node b was not asked: it is gone" in done.stderr


def test_a_lone_logd_answers_for_itself(log: FakeLog) -> None:
    log.nodes = {"logd-1": said_by("logd-1")}
    assert run(log, "gaps").stdout == "no stream has missed messages since logd was started\n"
