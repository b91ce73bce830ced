"""Letters of another version, of another program, or edited by hand; and directories of others."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyarrow.dataset import dataset

from penstock.base.clock import SystemClock
from penstock.router.cli.main import cli
from penstock.router.deadletters.replayable import DeadLetterFile, as_rows, find_dead_letters
from penstock.router.job.job import Job
from penstock.router.job.permissions import require_room_for_dead_letters
from penstock.router.read.logd_reader import LogState
from penstock.router.replay.bounded_run import BoundedRun, bounded_run
from penstock.router.replay.dead_letters import replay_dead_letters
from penstock.service import ConfigError, UnavailableError
from tests.support.permissions import without_privileges
from tests.support.scripted_nats import ScriptedNats
from tests.unit.router.test_router_config import JOB, load
from tests.unit.router.test_router_letters import RunWithoutSpark

PLACE = {"stream": "logs", "partition": 0, "offset": 7}
WHOLE = PLACE | {
    "subject": "t.logs",
    "time": "2026-11-23T03:00:00+00:00",
    "value": '{"kind": "log", "resource": {"service.name": "shop"}}',
}


def lay(directory: Path, *dead_letters: dict[str, Any]) -> DeadLetterFile:
    path = directory / "dead" / "lake" / "x.ndjson"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(dead_letter) + "\n" for dead_letter in dead_letters))
    return DeadLetterFile(path, "lake", "waiting")


def dlq(directory: Path, *arguments: str, **keys: Any) -> Result:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | {"dead_letter_dir": str(directory / "dead")} | keys))
    return CliRunner().invoke(cli, ["dlq", arguments[0], str(path), *arguments[1:]])


def test_what_a_letter_does_not_say_is_shown_as_unknown(tmp_path: Path) -> None:
    lay(tmp_path, PLACE)
    told = dlq(tmp_path, "ls")
    assert told.exit_code == 0
    assert told.output.split("  ")[2:] == [
        "at an unknown time",
        "None x 1",
        "for an unknown reason\n",
    ]
    assert json.loads(dlq(tmp_path, "ls", "--json").output)["time"] is None
    assert json.loads(dlq(tmp_path, "show", "lake/x").output) == PLACE


def test_a_sink_that_there_is_not_is_no_sink_without_letters(tmp_path: Path) -> None:
    lay(tmp_path, PLACE).path.parent.rename(tmp_path / "dead" / "former")
    assert [dlq(tmp_path, "ls", "--sink", sink).exit_code for sink in ("lake", "former")] == [0, 0]
    for command in ("ls", "replay"):
        told = dlq(tmp_path, command, "--sink", "lkae")
        assert told.exit_code == 64
        assert "the job has no sink 'lkae'" in told.stderr
        assert "lake" in told.stderr


def test_a_letter_does_not_command_the_terminal(tmp_path: Path) -> None:
    odd = "\x1b[2J\n\x9b1m\u202e\ud800"
    lay(tmp_path, PLACE | {"reason": odd, "time": {"a": [1]}, "code": odd, "value": odd})
    listed, shown = dlq(tmp_path, "ls"), dlq(tmp_path, "show", "lake/x")
    for told in (listed, shown):
        assert (told.exit_code, told.output.count("\n")) == (0, 1)
        assert told.output.strip().isprintable()
    assert json.loads(shown.output)["value"] == odd


@pytest.mark.parametrize("subject", [{}, {"subject": None}])
def test_a_letter_without_subject_is_a_row_without(subject: dict[str, Any]) -> None:
    dead_letter = {key: value for key, value in WHOLE.items() if key != "subject"} | subject
    (row,) = as_rows([dead_letter]).to_pylist()
    assert (row["offset"], row["subject"]) == (7, None)


def test_a_time_without_a_zone_is_utc() -> None:
    naive, aware = as_rows([WHOLE | {"time": "2026-11-23T03:00:00"}, WHOLE]).to_pylist()
    assert naive["timestamp"] == aware["timestamp"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"time": None}, "neither as 'timestamp_ns' nor as 'time'"),
        ({"time": "yesterday"}, "neither as 'timestamp_ns' nor as 'time'"),
        ({"time": 5}, "neither as 'timestamp_ns' nor as 'time'"),
        ({"time": "9999-01-01T00:00:00+00:00"}, "neither as 'timestamp_ns' nor as 'time'"),
        ({"timestamp_ns": "5"}, "nothing usable as 'timestamp_ns'"),
        ({"timestamp_ns": 2**63}, "nothing usable as 'timestamp_ns'"),
        ({"subject": 5}, "'subject' what is no text"),
        ({"stream": "\ud800"}, "'stream' what is no text"),
        ({"value": {"kind": "log"}}, "'value' what is no text"),
        ({"value": "\ud800"}, "'value' what is no text"),
        ({"incarnation": 5}, "'incarnation' what is no text"),
        ({"value_base64": "???"}, "'value_base64' what is no base64"),
        ({"key_base64": 5}, "'key_base64' what is no base64"),
        ({"key_base64": "ä"}, "'key_base64' what is no base64"),
    ],
)
def test_what_can_be_no_row_is_told_of_before_its_piece_is_delivered(
    tmp_path: Path, said: dict[str, Any], why: str
) -> None:
    file = lay(tmp_path, WHOLE, WHOLE | said)
    assert file.summary()["dead_letters"] == 2, "it can be looked at"
    with pytest.raises(ConfigError, match=why) as told:
        list(file.begin().chunks("lake"))
    assert "offset 7" in str(told.value)
    assert "correct that line" in told.value.fix


def run(directory: Path, **sinks: Any) -> BoundedRun:
    kinds = {"lake": {"type": "parquet", "path": str(directory / "lake")}, **sinks}
    routes = [{"name": "all", "sinks": list(kinds)}]
    config = load(
        directory, sinks=kinds, routes=routes, checkpoint_dir=str(directory / "checkpoint")
    )
    session: Any = None
    return RunWithoutSpark(config, session, LogState({}, {}), None, SystemClock())


def test_letters_without_subject_go_where_none_is_needed(tmp_path: Path) -> None:
    file = lay(
        tmp_path, {key: WHOLE[key] for key in WHOLE if key != "subject"} | {"incarnation": None}
    )
    hook = {"type": "http", "url": "http://127.0.0.1:1/"}
    with pytest.raises(ConfigError, match="nothing as 'subject'"):
        replay_dead_letters(run(tmp_path, hook=hook), [file], "hook", print)
    (left,) = find_dead_letters(tmp_path / "dead")
    assert replay_dead_letters(run(tmp_path), [left], "lake", print) == 1
    found = dataset(tmp_path / "lake", format="parquet", partitioning="hive").to_table()
    assert found["offset"].to_pylist() == [7]


def test_a_file_that_a_replay_has_moved_meanwhile_is_no_bug(tmp_path: Path) -> None:
    file = lay(tmp_path, WHOLE)
    file.begin()
    with pytest.raises(UnavailableError, match="has been moved meanwhile"):
        list(file.dead_letters())
    assert "has been moved meanwhile" in file.summary()["problem"]


def test_what_is_no_file_or_directory_of_letters_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "dead").write_text("")
    told = dlq(tmp_path, "ls")
    assert (told.exit_code, "dead cannot be read: Not a directory" in told.output) == (78, True)
    (tmp_path / "dead").unlink()
    (tmp_path / "dead" / "lake" / "x.ndjson").mkdir(parents=True)
    told = dlq(tmp_path, "ls")
    assert (told.exit_code, "cannot be read: Is a directory" in told.output) == (0, True)


def lay_odd(directory: Path) -> None:
    """Three files, of which the second one has a letter and then something else."""
    lay(directory, WHOLE)
    home = directory / "dead" / "lake"
    (home / "z.ndjson").write_bytes((home / "x.ndjson").read_bytes())
    (home / "y.ndjson").write_bytes((home / "x.ndjson").read_bytes() + b"[1]\n")


def test_an_odd_file_is_listed_with_what_is_wrong_and_hides_no_other(tmp_path: Path) -> None:
    lay_odd(tmp_path)
    told = dlq(tmp_path, "ls")
    first, odd, last = told.output.splitlines()
    assert told.exit_code == 0
    assert (first.split()[0], last.split()[0]) == ("lake/x", "lake/z")
    assert odd.startswith("lake/y  waiting  2026-11-23T03:00:00+00:00  None x 1")
    assert odd.endswith("line 2 is no JSON object")
    listed = map(json.loads, dlq(tmp_path, "ls", "--json").output.splitlines())
    assert [(it["dead_letters"], it["problem"] is None) for it in listed] == [
        (1, True),
        (1, False),
        (1, True),
    ]


def test_an_odd_file_keeps_no_other_from_the_stream(tmp_path: Path) -> None:
    lay_odd(tmp_path)
    with ScriptedNats() as server:
        to = {"nats": server.url, "subject": "d"}
        told = dlq(tmp_path, "publish", dead_letter_stream=to)
    assert [json.loads(it.payload)["offset"] for it in server.published] == [7, 7]
    assert told.exit_code == 78, told.output
    first, odd, last, *_ = told.output.splitlines()
    assert first == "lake/x: 1 of 1 are in the stream"
    assert odd.startswith("lake/y: passed over: ")
    assert last == "lake/z: 1 of 1 are in the stream"
    assert "line 2 is no JSON object" in told.output


def test_a_directory_that_may_not_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    home = lay(tmp_path, WHOLE).home
    home.chmod(0)
    try:
        with pytest.raises(ConfigError, match="lake cannot be read: Permission denied") as told:
            without_privileges(lambda: find_dead_letters(tmp_path / "dead"))
    finally:
        home.chmod(0o700)
    assert "run this as" in told.value.fix


def test_letters_that_cannot_be_moved_are_told_of_with_their_owner(tmp_path: Path) -> None:
    file = lay(tmp_path, WHOLE)
    file.home.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match=r"cannot write to .*lake: Permission denied") as told:
            without_privileges(file.begin)
    finally:
        file.home.chmod(0o700)
    assert f"run this as {file.path.owner()}" in told.value.fix


def test_a_job_that_could_not_keep_letters_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = load(
        tmp_path,
        checkpoint_dir=str(tmp_path / "checkpoint"),
        dead_letter_dir=str(tmp_path / "file"),
    )
    job = Job(config)
    try:
        with pytest.raises(ConfigError, match=r"dead_letter_dir: .*is no directory"):
            job.start()
    finally:
        job.close()
    home = tmp_path / "dead"
    (home / "lake").mkdir(parents=True)
    (home / "lake").chmod(0o500)
    try:
        with pytest.raises(ConfigError, match=r"may not write to .*lake, which belongs to \w+"):
            without_privileges(lambda: require_room_for_dead_letters(home, ["hook", "lake"]))
    finally:
        (home / "lake").chmod(0o700)
    require_room_for_dead_letters(tmp_path / "not" / "there" / "yet", ["lake"])


def test_a_replay_does_not_begin_where_what_is_refused_could_not_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = load(
        tmp_path,
        checkpoint_dir=str(tmp_path / "checkpoint"),
        dead_letter_dir=str(tmp_path / "file"),
    )
    with (
        pytest.raises(ConfigError, match="is no directory"),
        bounded_run(config, needs_lock=True, needs_log=False),
    ):
        pytest.fail("it began")
