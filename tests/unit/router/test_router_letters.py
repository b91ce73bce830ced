"""Dead letters: found, listed, set apart while they are replayed, and made rows again."""

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pyarrow.dataset import dataset
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.router.cli.main import cli
from penstock.router.deadletters.replayable import (
    CODES_MAX,
    LIMITS,
    DeadLetter,
    DeadLetterFile,
    DeadLetterLimits,
    MalformedDeadLetterError,
    as_rows,
    find_dead_letters,
)
from penstock.router.deadletters.writer import Reason, send_to_dlq
from penstock.router.errors import StoppedError
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.read.logd_reader import LogState
from penstock.router.replay.bounded_run import BoundedRun, ReplayStoppedError
from penstock.router.replay.dead_letters import replay_dead_letters
from penstock.service import ConfigError, UnavailableError
from tests.unit.router.sink_rows import context, row, table
from tests.unit.router.test_router_config import JOB, load

REASON = Reason("http_400", "no such index", status=400, attempt=3)


def refuse(directory: Path, *offsets: int, **fields: Any) -> None:
    rows = table([row(offset, **fields) for offset in offsets])
    send_to_dlq(rows, REASON, context(directory))


def command(directory: Path, *arguments: str) -> str:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | {"dead_letter_dir": str(directory / "dead")}))
    done = CliRunner().invoke(cli, ["dlq", arguments[0], str(path), *arguments[1:]])
    assert done.exit_code == 0, done.output
    return done.output


def test_letters_are_listed_and_shown(tmp_path: Path) -> None:
    refuse(tmp_path, 7, 8)
    (line,) = command(tmp_path, "ls", "--json").splitlines()
    listed = json.loads(line)
    assert listed | {"time": None} == {
        "name": f"lake/logs.5f2c19aa-0-{7:020d}-{8:020d}",
        "state": "waiting",
        "dead_letters": 2,
        "codes": {"http_400": 2},
        "time": None,
        "reason": "no such index",
        "problem": None,
    }
    assert "http_400 x 2  no such index" in command(tmp_path, "ls")
    shown = [json.loads(it) for it in command(tmp_path, "show", listed["name"]).splitlines()]
    assert [dead_letter["offset"] for dead_letter in shown] == [7, 8]
    assert {(it["sink"], it["attempt"], it["value"]) for it in shown} == {
        ("lake", 3, '{"kind":"log","number":7}'),
        ("lake", 3, '{"kind":"log","number":8}'),
    }
    assert command(tmp_path, "ls", "--sink", "lake") != ""


@pytest.mark.parametrize("options", [[], ["--json"], ["--done"]])
def test_where_no_letters_are_that_is_said(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | {"dead_letter_dir": str(tmp_path / "dead")}))
    done = CliRunner().invoke(cli, ["dlq", "ls", str(path), *options])
    assert (done.stdout, done.stderr) == ("", "there are no dead letters\n")


def test_a_sink_that_the_job_does_not_have_is_refused_unless_it_has_letters(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | {"dead_letter_dir": str(tmp_path / "dead")}))
    for verb in ("ls", "replay"):
        done = CliRunner().invoke(cli, ["dlq", verb, str(path), "--sink", "lakes"])
        assert done.exit_code == 64, done.output
        assert "the job has no sink 'lakes', only lake" in done.output
    refuse(tmp_path, 7)
    (tmp_path / "dead" / "lake").rename(tmp_path / "dead" / "lakes")
    assert "lakes/logs" in command(tmp_path, "ls", "--sink", "lakes")


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no dead letters 'lake/x'"):
        find_dead_letters(tmp_path / "dead", names=("lake/x",))


def test_letters_under_replay_do_not_stand_in_the_way_of_new_ones(tmp_path: Path) -> None:
    refuse(tmp_path, 7)
    (file,) = find_dead_letters(tmp_path / "dead")
    begun = file.begin()
    refuse(tmp_path, 7)
    assert [it.state for it in find_dead_letters(tmp_path / "dead")] == ["replaying", "waiting"]
    assert begun.begin() == begun, "one that a killed replay left is taken up"
    begun.end()
    assert [it.state for it in find_dead_letters(tmp_path / "dead")] == ["waiting"]
    assert len(find_dead_letters(tmp_path / "dead", done=True)) == 2


def position_of(begun: DeadLetterFile) -> Path:
    """Where it is written down how far a file is."""
    return begun.path.with_suffix(".position")


def deliver_first(begun: DeadLetterFile) -> None:
    """As a replay that is killed behind the first letter."""
    chunks = replace(begun, limits=DeadLetterLimits(chunk_records=1)).chunks("lake")
    next(chunks)
    next(chunks)


def left_of(begun: DeadLetterFile) -> list[int]:
    """The offsets of what is still to be delivered."""
    return [dead_letter["offset"] for chunk in begun.chunks("lake") for dead_letter in chunk]


def test_a_list_that_is_out_of_date_takes_nothing_from_the_replay_since(tmp_path: Path) -> None:
    """As when the job moved the file between a listing and the end of the job."""
    refuse(tmp_path, 7, 8)
    (listed,) = find_dead_letters(tmp_path / "dead")
    begun = listed.begin()
    deliver_first(begun)
    with pytest.raises(UnavailableError, match="has been moved meanwhile"):
        listed.begin()
    assert left_of(begun) == [8]


def test_how_far_a_file_is_holds_for_no_other_of_its_name(tmp_path: Path) -> None:
    """Killed between a file's end and the removal of its position, or before the latter was."""
    refuse(tmp_path, 7, 8)
    (file,) = find_dead_letters(tmp_path / "dead")
    begun = file.begin()
    deliver_first(begun)
    assert left_of(begun) == [8]
    position = position_of(begun).read_bytes()
    begun.end()
    later = context(tmp_path)
    later.clock.sleep(1)
    send_to_dlq(table([row(offset) for offset in (7, 8)]), REASON, later)
    (file,) = find_dead_letters(tmp_path / "dead")
    again = file.begin()
    position_of(again).write_bytes(position)
    assert left_of(again) == [7, 8]


def test_what_a_killed_replay_left_is_replayed_before_newer_letters_take_its_place(
    tmp_path: Path,
) -> None:
    """7 and 9 were refused again, under the same name; 8 was not delivered when it was killed."""
    refuse(tmp_path, 7, 8, 9)
    (file,) = find_dead_letters(tmp_path / "dead")
    file.begin()
    refuse(tmp_path, 7, 9)
    replayed = []
    for file in find_dead_letters(tmp_path / "dead"):
        begun = file.begin()
        replayed.append([dead_letter["offset"] for dead_letter in begun.dead_letters()])
        begun.end()
    assert replayed == [[7, 8, 9], [7, 9]]


class RunWithoutSpark(BoundedRun):
    """Every letter is wanted."""

    @override
    def dead_letter_rows(self, dead_letters: Sequence[DeadLetter]) -> Any:
        return as_rows(dead_letters)

    @override
    def deliver(self, batch_writer: BatchWriter, sink: str, rows: Any, batch: int) -> int:
        if self.stop.is_set():
            raise StoppedError("as the real one")
        batch_writer.give(rows.select(batch_writer.steps.columns), batch)
        self.progress.records += rows.num_rows
        return int(rows.num_rows)


def test_a_replayed_file_stays_delivered_when_the_next_one_lies_within_its_offsets(
    tmp_path: Path,
) -> None:
    """They hold one record both, so they are two batches."""
    record = b'{"schema":"log/1.0","kind":"log","resource":{"service.name":"shop"}}'
    refuse(tmp_path, 1, 9, value=record)
    refuse(tmp_path, 5, 9, value=record)
    lake = {"lake": {"type": "parquet", "path": str(tmp_path / "lake")}}
    config = load(tmp_path, sinks=lake, checkpoint_dir=str(tmp_path / "checkpoint"))
    session: Any = None
    run = RunWithoutSpark(config, session, LogState({}, {}), None, SystemClock())
    of_a_range = tmp_path / "checkpoint" / "lake" / "replay" / "journal"
    of_a_range.parent.mkdir(parents=True)
    of_a_range.touch()
    assert replay_dead_letters(run, find_dead_letters(tmp_path / "dead"), None, print) == 4
    assert of_a_range.exists(), "a stopped replay of a range goes on with it"
    found = dataset(tmp_path / "lake", format="parquet", partitioning="hive").to_table()
    assert sorted(found["offset"].to_pylist()) == [1, 5, 9, 9]
    names = [path.name.split(".") for path in (tmp_path / "lake").rglob("*.parquet")]
    assert [len(parts[2]) for parts in names] == [8, 8], "no names of batches"


RECORD = b'{"schema":"log/1.0","kind":"log","resource":{"service.name":"shop"}}'


def lake_run(directory: Path, run: type[RunWithoutSpark] = RunWithoutSpark) -> RunWithoutSpark:
    """A replay to a lake whose files are named after what is in them."""
    lake = {"lake": {"type": "parquet", "path": str(directory / "lake")}}
    config = load(directory, sinks=lake, checkpoint_dir=str(directory / "checkpoint"))
    session: Any = None
    return run(config, session, LogState({}, {}), None, SystemClock())


def lake_offsets(directory: Path) -> list[int]:
    found = dataset(directory / "lake", format="parquet", partitioning="hive").to_table()
    return sorted(found["offset"].to_pylist())


def test_small_files_are_delivered_together_and_reported_in_one_line(tmp_path: Path) -> None:
    for offset in (7, 9, 3):
        refuse(tmp_path, offset, value=RECORD)
    said: list[str] = []
    run = lake_run(tmp_path)
    assert replay_dead_letters(run, find_dead_letters(tmp_path / "dead"), None, said.append) == 3
    (line,) = said
    assert line.startswith("lake/logs.5f2c19aa-0-00000000000000000003-")
    assert line.endswith("(3 files): 3 of 3 to lake")
    assert (run.progress.done, find_dead_letters(tmp_path / "dead")) == (3, [])
    assert lake_offsets(tmp_path) == [3, 7, 9]
    assert len([*(tmp_path / "lake").rglob("*.parquet")]) == 1


def test_a_replay_that_is_killed_delivers_the_same_batch_again(tmp_path: Path) -> None:
    """Though another file has come that would be in it."""

    class Killed(RunWithoutSpark):
        @override
        def deliver(self, batch_writer: BatchWriter, sink: str, rows: Any, batch: int) -> int:
            super().deliver(batch_writer, sink, rows, batch)
            raise KeyboardInterrupt

    for offset in (3, 7):
        refuse(tmp_path, offset, value=RECORD)
    with pytest.raises(KeyboardInterrupt):
        replay_dead_letters(
            lake_run(tmp_path, Killed), find_dead_letters(tmp_path / "dead"), None, print
        )
    refuse(tmp_path, 5, value=RECORD)
    assert (
        replay_dead_letters(lake_run(tmp_path), find_dead_letters(tmp_path / "dead"), None, print)
        == 3
    )
    assert lake_offsets(tmp_path) == [3, 5, 7]
    assert find_dead_letters(tmp_path / "dead") == []


def test_files_of_a_delivered_batch_are_marked_as_done_and_not_delivered_again(
    tmp_path: Path,
) -> None:
    for offset in (3, 7):
        refuse(tmp_path, offset, value=RECORD)
    name = find_dead_letters(tmp_path / "dead")[1].path.name
    in_its_way = tmp_path / "dead" / "lake" / "done" / name
    in_its_way.mkdir(parents=True)
    with pytest.raises(UnavailableError, match="cannot write to"):
        replay_dead_letters(lake_run(tmp_path), find_dead_letters(tmp_path / "dead"), None, print)
    in_its_way.rmdir()
    said: list[str] = []
    left = find_dead_letters(tmp_path / "dead")
    assert replay_dead_letters(lake_run(tmp_path), left, None, said.append) == 0
    assert said == [f"lake/{name.removesuffix('.ndjson')}: was delivered before"]
    assert find_dead_letters(tmp_path / "dead") == []
    assert lake_offsets(tmp_path) == [3, 7]


def test_a_letter_is_a_row_again_typed_again(tmp_path: Path) -> None:
    refuse(tmp_path, 7, value=b'\xff{"kind":"log"}')
    (file,) = find_dead_letters(tmp_path / "dead")
    (dead_letter,) = file.dead_letters()
    moment = datetime.fromisoformat(dead_letter["time"])
    other = {
        "stream": "traces",
        "timestamp_ns": 1_795_000_000_123_456_789,
        "key_base64": "a2V5",
        "value": '{"kind":"log","body":"paid"}',
        "value_base64": None,
    }
    odd, paid = as_rows([dead_letter | other, dead_letter]).to_pylist()
    assert (odd["stream"], odd["partition"], odd["offset"]) == ("logs", 0, 7)
    assert (odd["timestamp"], odd["key"]) == (moment, None)
    assert odd["timestamp_ns"] == int(moment.timestamp()) * 10**9
    assert odd["subject"] == "telemetry.logs.checkout"
    assert odd["value"] == odd["malformed_value"] == b'\xff{"kind":"log"}'
    assert (odd["kind"], odd["malformed_reason"]) == ("raw", "not a JSON object")
    assert paid["timestamp"] == datetime(2026, 11, 18, 11, 6, 40, 123456, tzinfo=UTC)
    assert (paid["timestamp_ns"], paid["key"]) == (1_795_000_000_123_456_789, b"key")
    assert (paid["kind"], paid["body"], paid["malformed"]) == ("log", "paid", False)


def big(directory: Path, count: int, *, size: int = 100) -> DeadLetterFile:
    """A file of another tool's making, larger than any of the router's."""
    path = directory / "dead" / "lake" / "big.ndjson"
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        for offset in range(count):
            place = {"stream": "logs", "partition": 0, "offset": offset, "subject": "t.logs"}
            about = {
                "code": f"c{offset % 100}",
                "reason": "no",
                "time": "2026-11-23T03:00:00+00:00",
            }
            resource = {"service.name": "shop"}
            value = json.dumps({"kind": "log", "body": "x" * size, "resource": resource})
            file.write(json.dumps(place | about | {"value": value}) + "\n")
    return DeadLetterFile(path, "lake", "waiting")


def test_no_more_of_a_file_is_held_than_a_piece(tmp_path: Path) -> None:
    """16 MiB; a piece is 1 MiB, and letters are some times as large as their text."""
    file = replace(
        big(tmp_path, 256, size=64 * 1024), limits=DeadLetterLimits(chunk_bytes=1024 * 1024)
    )
    assert file.path.stat().st_size > 16 * 1024 * 1024
    tracemalloc.start()
    try:
        summary = file.summary()
        of_summary = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        chunks = [len(chunk) for chunk in file.begin().chunks("lake")]
        of_pieces = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (summary["dead_letters"], len(summary["codes"])) == (256, CODES_MAX + 1)
    assert chunks == [16] * 16
    assert of_summary < 1024 * 1024
    assert of_pieces < 4 * 1024 * 1024


def test_a_piece_has_so_many_letters_at_most(tmp_path: Path) -> None:
    file = big(tmp_path, 2 * LIMITS.chunk_records + 1)
    assert [len(it) for it in file.begin().chunks("lake")] == [LIMITS.chunk_records] * 2 + [1]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[1]", "no JSON object"),
        ("{", "Expecting"),
        ("x" * 200, "longer than 100"),
        ('{"partition": 0, "offset": 1}', "nothing usable as 'stream'"),
        ('{"stream": "logs", "partition": "0", "offset": 1}', "nothing usable as 'partition'"),
        ('{"stream": "logs", "partition": 0}', "nothing usable as 'offset'"),
        ('{"stream": "logs", "partition": -1, "offset": 1}', "nothing usable as 'partition'"),
        ('{"stream": "logs", "partition": 0, "offset": 1e99}', "nothing usable as 'offset'"),
        (f'{{"stream": "logs", "partition": 0, "offset": {2**63}}}', "usable as 'offset'"),
        ("1" * 90, "no JSON object"),
        ("[" * 90, "Expecting"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "lake.ndjson"
    path.write_text(f"{line}\n")
    file = DeadLetterFile(path, "lake", "waiting", DeadLetterLimits(line_bytes=100))
    with pytest.raises(ConfigError, match=why):
        list(file.dead_letters())
    assert why in file.summary()["problem"]


@pytest.mark.parametrize("held", ["", "[]", '{"to": "lake"}', '{"to": "lake", "bytes": null}'])
def test_a_damaged_position_is_reported(tmp_path: Path, held: str) -> None:
    begun = big(tmp_path, 2).begin()
    position_of(begun).write_text(held)
    with pytest.raises(ConfigError, match=r"big\.position cannot be read") as told:
        list(begun.chunks("lake"))
    assert "remove it" in told.value.fix


@pytest.mark.parametrize("corrected", [12, 3])
def test_a_file_that_is_corrected_goes_on_where_it_was(tmp_path: Path, corrected: int) -> None:
    """An editor writes the file again, which makes it another file."""
    begun = replace(big(tmp_path, 25), limits=DeadLetterLimits(chunk_records=10)).begin()
    whole = begun.path.read_bytes().splitlines(keepends=True)
    begun.path.write_bytes(b"".join([*whole[:12], b"{\n", *whole[13:]]))
    first = begun.chunks("lake")
    assert next(first)[0]["offset"] == 0
    with pytest.raises(MalformedDeadLetterError, match="line 13"):
        next(first)
    whole[corrected] = whole[corrected].replace(b"{", b"{ ", 1)
    rewritten = tmp_path / "rewritten"
    rewritten.write_bytes(b"".join(whole))
    rewritten.replace(begun.path)
    starts = [chunk[0]["offset"] for chunk in begun.chunks("lake")]
    assert starts == ([10, 20] if corrected == 12 else [0, 10, 20])


def test_a_stopped_file_goes_on_behind_the_pieces_that_were_delivered(tmp_path: Path) -> None:
    big(tmp_path, 25)
    ten = DeadLetterLimits(chunk_records=10)
    sinks = {"lake": {"type": "parquet", "path": str(tmp_path / "lake")}}
    config = load(tmp_path, sinks=sinks, checkpoint_dir=str(tmp_path / "checkpoint"))
    session: Any = None

    class Stopped(RunWithoutSpark):
        """Is told to stop while it delivers its second piece."""

        batches: list[int]

        @override
        def dead_letter_rows(self, dead_letters: Sequence[DeadLetter]) -> Any:
            self.batches.append(dead_letters[0]["offset"])
            if len(self.batches) == 2:
                self.stop.set()
            return super().dead_letter_rows(dead_letters)

    def run() -> Stopped:
        its = Stopped(config, session, LogState({}, {}), None, SystemClock())
        its.batches = []
        return its

    first = run()
    with pytest.raises(ReplayStoppedError, match="after 0 of 1 files, 10 records"):
        replay_dead_letters(first, find_dead_letters(tmp_path / "dead", limits=ten), None, print)
    assert first.batches == [0, 10]
    (left,) = find_dead_letters(tmp_path / "dead", limits=ten)
    assert left.state == "replaying"
    position = position_of(left).read_bytes()
    assert [it[0]["offset"] for it in left.chunks("search")] == [0, 10, 20], "elsewhere, all of it"
    position_of(left).write_bytes(position)
    second = run()
    second.batches = [-1, -1]  # it is not told to stop
    assert replay_dead_letters(second, [left], None, print) == 15
    assert second.batches[2:] == [10, 20]
    assert find_dead_letters(tmp_path / "dead") == []
    assert list((tmp_path / "dead").rglob("*.position")) == []
    found = dataset(tmp_path / "lake", format="parquet", partitioning="hive").to_table()
    assert sorted(found["offset"].to_pylist()) == list(range(25))


def test_an_odd_letter_keeps_no_other_file_back(tmp_path: Path) -> None:
    """It stays as it is, and so do letters that would take its place."""
    two = DeadLetterLimits(chunk_records=2)
    odd = big(tmp_path, 5)
    lines = odd.path.read_text().splitlines()
    for name, line in (("again", '{"stream": "logs"}'), ("big", lines[3].replace("time", "when"))):
        held = [*lines[:3], line, lines[4]]
        (odd.path.parent / f"{name}.ndjson").write_text("\n".join(held) + "\n")
    refuse(tmp_path, 7)
    sinks = {"lake": {"type": "parquet", "path": str(tmp_path / "lake")}}
    config = load(tmp_path, sinks=sinks, checkpoint_dir=str(tmp_path / "checkpoint"))
    session: Any = None
    dead, said = tmp_path / "dead", list[str]()

    def replay() -> int:
        run = RunWithoutSpark(config, session, LogState({}, {}), None, SystemClock())
        return replay_dead_letters(run, find_dead_letters(dead, limits=two), None, said.append)

    with pytest.raises(ConfigError, match=r"again\.ndjson: .*line 4 says nothing usable") as told:
        replay()
    assert "correct that line" in told.value.fix
    assert "the other files were delivered" in told.value.fix
    assert [line.partition(": ")[2][:11] for line in said] == [
        "passed over",
        "passed over",
        "1 of 1 to l",
    ]
    assert "offset 3" in said[1]
    newer = dead / "lake" / "again.ndjson"
    newer.write_text(lines[0] + "\n")
    with pytest.raises(ConfigError, match="passed over with others like it"):
        replay()
    assert newer.exists(), "else it would have taken the place of the odd one"
    for name in ("again", "big"):
        (dead / "lake" / "replaying" / f"{name}.ndjson").write_text("\n".join(lines) + "\n")
    assert replay() == 3 + 3 + 1, "the first two of each were delivered"
    assert find_dead_letters(dead) == []
