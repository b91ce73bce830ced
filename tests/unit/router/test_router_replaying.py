"""What a replay tells a sink, without Spark and a log."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.router.checkpoint.journal import BatchJournal
from penstock.router.checkpoint.local import StartingOffsets
from penstock.router.errors import LogUnavailableError, StoppedError
from penstock.router.job.config import Spark
from penstock.router.read.logd_reader import LogState
from penstock.router.read.offsets import Offsets, Readable, StreamPartition
from penstock.router.replay import backfill
from penstock.router.replay.bounded_run import ReplayStoppedError
from penstock.router.replay.progress import Progress, ReplayNote
from penstock.router.sinks import Sink, SinkContext
from penstock.service import ConfigError, UnavailableError
from tests.unit.router.sink_rows import context
from tests.unit.router.source_log import FakeLog
from tests.unit.router.test_router_config import load
from tests.unit.router.test_router_feed import Notebook

PLACE = StreamPartition("logs", 0)


class Listening(Notebook):
    """Writes down what it hears."""

    def __init__(self, its: SinkContext) -> None:
        super().__init__(its)
        self.heard: list[str] = []

    @override
    def start_over(self) -> None:
        self.heard.append("start_over")

    @override
    def go_on(self) -> None:
        self.heard.append("go_on")


class Run:
    """Has a readable log of ten records and delivers none."""

    def __init__(self, directory: Path, *, stream_id: str = "5f2c", **keys: Any) -> None:
        self.config = load(directory, checkpoint_dir=str(directory / "checkpoint"), **keys)
        self.state = LogState({PLACE: Readable(0, 10)}, {"logs": stream_id})
        self.delivered = 0
        self.batches: list[int] = []
        self.chunks: list[tuple[int, int]] = []
        self.stops_before: int | None = None
        self.progress = Progress("batches")
        self.fresh: list[bool] = []
        self.sinks: list[Listening] = []
        self.log = FakeLog(Readable(0, 10))
        self._directory = directory

    def reading(self) -> Any:
        return nullcontext(self.log)

    def context(self, sink: str, state_dir: Path, *, fresh: bool) -> SinkContext:
        self.fresh.append(fresh)
        return context(self._directory)

    def open_sink(self, _: str, its: SinkContext) -> Sink:
        self.sinks.append(Listening(its))
        return self.sinks[-1]

    def rows(self, chunk: Any) -> Any:
        return chunk

    def deliver(self, batch_writer: Any, sink: str, rows: Any, batch: int) -> int:
        if batch == self.stops_before:
            raise StoppedError("as when somebody stops it")
        self.delivered += 1
        self.batches.append(batch)
        self.chunks.append((rows.start[PLACE], rows.end[PLACE]))
        self.progress.records += 5
        return 5


def test_a_sink_hears_that_a_replay_is_on_purpose(tmp_path: Path) -> None:
    run: Any = Run(tmp_path)
    assert backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 10}, print) == 5
    assert [it.heard for it in run.sinks] == [["start_over"]]
    assert run.delivered == 1


THREES: dict[str, Any] = {"trigger": {"max_records": 3}}


def test_a_stopped_replay_goes_on_behind_its_last_batch(tmp_path: Path) -> None:
    first: Any = Run(tmp_path, **THREES)
    first.stops_before = 2
    said: list[str] = []
    with pytest.raises(ReplayStoppedError, match="after 2 of 4 batches, 10 records"):
        backfill.backfill(first, "lake", {PLACE: 0}, {PLACE: 10}, said.append)
    assert first.chunks == [(0, 3), (3, 6)]
    then: Any = Run(tmp_path, **THREES)
    assert backfill.resume(then, "lake", said.append) == 10
    assert then.chunks == [(6, 9), (9, 10)]
    assert then.batches == [2, 3], "of the same number, so that a transform knows it again"
    assert [line.partition(":")[0] for line in said] == [
        f"batch {number} of 4" for number in (1, 2, 3, 4)
    ]
    with pytest.raises(ConfigError, match="no replay to lake was ended before its time"):
        backfill.resume(then, "lake", print)


@pytest.mark.parametrize("stopped", [False, True])
def test_what_goes_on_has_the_batches_that_it_would_have_had(tmp_path: Path, stopped: bool) -> None:
    """Also where a batch of the range ends below it in another partition."""
    two = StreamPartition("logs", 1)
    home = tmp_path / "checkpoint" / "lake"
    home.mkdir(parents=True)
    run: Any = Run(tmp_path)
    run.state = LogState({PLACE: Readable(0, 200), two: Readable(0, 500)}, {"logs": "5f2c"})
    journal = BatchJournal(home)
    for one, other in ((0, 0), (100, 10), (200, 20), (200, 200), (200, 400), (200, 500)):
        journal.note(Offsets({PLACE: one, two: other}, {"logs": "5f2c"}))
    begin, end = {PLACE: 150, two: 450}, {PLACE: 200, two: 500}
    said: list[str] = []
    if stopped:
        run.stops_before = 1
        with pytest.raises(ReplayStoppedError, match="after 1 of 2 batches"):
            backfill.backfill(run, "lake", begin, end, said.append)
        run.stops_before = None
        backfill.resume(run, "lake", said.append)
    else:
        backfill.backfill(run, "lake", begin, end, said.append)
    assert said == [
        "batch 1 of 2: 5 records, logs/0 100 to 199, logs/1 10 to 19",
        "batch 2 of 2: 5 records, logs/1 400 to 499",
    ]


@pytest.mark.parametrize("stops_before", [0, 2])
def test_a_sink_that_goes_on_has_what_it_wrote_down(tmp_path: Path, stops_before: int) -> None:
    """Also of the first batch."""
    run: Any = Run(tmp_path, **THREES)
    run.stops_before = stops_before
    with pytest.raises(ReplayStoppedError):
        backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 10}, print)
    run.stops_before = None
    backfill.resume(run, "lake", print)
    assert [it.heard for it in run.sinks] == [["start_over"], ["go_on"]]
    assert run.fresh == [True, False]


def test_a_replay_that_was_killed_behind_its_last_batch_has_ended(tmp_path: Path) -> None:
    run: Any = Run(tmp_path, **THREES)
    said: list[str] = []

    def killed(line: str) -> None:
        said.append(line)
        if line.startswith("batch 4 of 4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 10}, killed)
    said.clear()
    assert backfill.resume(run, "lake", said.append) == 0
    assert said == ["the replay to lake had come to its end: 4 batches delivered"]
    with pytest.raises(ConfigError, match="no replay to lake was ended before its time"):
        backfill.resume(run, "lake", print)


def test_an_unfinished_replay_is_not_given_up_without_a_word(tmp_path: Path) -> None:
    run: Any = Run(tmp_path, **THREES)
    run.stops_before = 1
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(ReplayStoppedError):
            backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 10}, said.append)
    assert ["given up" in line for line in said] == [False, True, False]


@pytest.mark.parametrize("noted", [True, False])
def test_killed_as_it_begins_it_leaves_nothing_to_go_on_with(tmp_path: Path, noted: bool) -> None:
    """There was one before, or none; what that one left is on its way out."""

    class Killed(Run):
        @override
        def context(self, sink: str, state_dir: Path, *, fresh: bool) -> SinkContext:
            raise SystemExit

    run: Any = Run(tmp_path, **THREES)
    if noted:
        run.stops_before = 1
        with pytest.raises(ReplayStoppedError):
            backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 10}, print)
    killed: Any = Killed(tmp_path, **THREES)
    with pytest.raises(SystemExit):
        backfill.backfill(killed, "lake", {PLACE: 0}, {PLACE: 10}, print)
    with pytest.raises(ConfigError, match="no replay to lake was ended before its time"):
        backfill.resume(run, "lake", print)


def test_a_batch_is_written_down_before_a_terminal_that_is_gone_hears_of_it(tmp_path: Path) -> None:
    def gone(_: str) -> None:
        raise OSError("the terminal is gone")

    run: Any = Run(tmp_path, **THREES)
    with pytest.raises(OSError, match="gone"):
        backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 10}, gone)
    backfill.resume(run, "lake", print)
    assert run.chunks == [(0, 3), (3, 6), (6, 9), (9, 10)]


def test_nothing_goes_on_in_a_stream_that_was_made_anew(tmp_path: Path) -> None:
    first: Any = Run(tmp_path, **THREES)
    first.stops_before = 1
    with pytest.raises(ReplayStoppedError):
        backfill.backfill(first, "lake", {PLACE: 0}, {PLACE: 10}, print)
    then: Any = Run(tmp_path, stream_id="77aa", **THREES)
    with pytest.raises(ConfigError, match="made again since"):
        backfill.resume(then, "lake", print)
    assert then.chunks == []


def test_a_damaged_note_is_told_of(tmp_path: Path) -> None:
    run: Any = Run(tmp_path)
    (tmp_path / "checkpoint" / "lake").mkdir(parents=True)
    (tmp_path / "checkpoint" / "lake" / "replay.json").write_text('{"batches": 1}')
    with pytest.raises(ConfigError, match="cannot be read"):
        backfill.resume(run, "lake", print)


def test_a_second_replay_of_a_run_counts_anew(tmp_path: Path) -> None:
    run: Any = Run(tmp_path)
    for _ in range(2):
        assert backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 10}, print) == 5


def journal_of(directory: Path, *ends: int, begun: int) -> None:
    home = directory / "checkpoint" / "lake"
    home.mkdir(parents=True)
    StartingOffsets(home.parent).extend(Offsets({PLACE: begun}, {"logs": "5f2c"}))
    journal = BatchJournal(home)
    for end in ends:
        journal.note(Offsets({PLACE: end}, {"logs": "5f2c"}))


def test_a_range_that_begins_within_the_first_batch_is_widened_to_it(tmp_path: Path) -> None:
    journal_of(tmp_path, 0, 6, 10, begun=0)
    run: Any = Run(tmp_path)
    backfill.backfill(run, "lake", {PLACE: 3}, {PLACE: 8}, print)
    assert run.chunks == [(0, 6), (6, 10)]


@pytest.mark.parametrize("sink", [{"type": "parquet", "path": "/lake"}, {"type": "console"}])
def test_batches_that_are_not_known_are_made_for_no_sink_that_would_have_the_records_twice(
    tmp_path: Path, sink: dict[str, Any]
) -> None:
    """As where the journal has dropped its older half."""
    journal_of(tmp_path, 6, 10, begun=0)
    run: Any = Run(tmp_path, sinks={"lake": sink})
    if sink["type"] == "console":
        backfill.backfill(run, "lake", {PLACE: 3}, {PLACE: 8}, print)
        assert run.chunks == [(3, 6), (6, 10)]
        return
    with pytest.raises(ConfigError, match="lake got offsets 3 to 5 in batches") as told:
        backfill.backfill(run, "lake", {PLACE: 3}, {PLACE: 8}, print)
    assert "begin with --from 6 or later" in told.value.fix
    assert run.chunks == []
    backfill.backfill(run, "lake", {PLACE: 6}, {PLACE: 8}, print)
    assert run.chunks == [(6, 10)]


def test_a_batch_of_which_the_log_has_a_part_only_is_told_of(tmp_path: Path) -> None:
    journal_of(tmp_path, 0, 6, 10, begun=0)
    run: Any = Run(tmp_path)
    run.state = LogState({PLACE: Readable(4, 10)}, {"logs": "5f2c"})
    with pytest.raises(ConfigError, match="the log holds 4 to 9") as told:
        backfill.backfill(run, "lake", {PLACE: 4}, {PLACE: 10}, print)
    assert "begin with --from 6 or later" in told.value.fix


def test_a_range_that_ends_before_it_begins_is_told_with_its_offsets(tmp_path: Path) -> None:
    run: Any = Run(tmp_path)
    run.state = LogState({PLACE: Readable(0, 80)}, {"logs": "5f2c"})
    with pytest.raises(ConfigError, match=r"nothing between --from and --to: logs/0 50 to 10\n"):
        backfill.backfill(run, "lake", {PLACE: 50}, {PLACE: 10}, print)


def test_batches_that_are_not_known_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    run: Any = Run(tmp_path)
    run.state = LogState({PLACE: Readable(0, 80)}, {"logs": "5f2c"})
    run.log.sizes = {"logs": 1024 * 1024}
    backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 80}, print)
    assert run.chunks == [(0, 64), (64, 80)]
    assert run.log.looked_at == [("logs", 0, at) for at in (0, 79, 64, 79)]


def test_batches_that_are_not_known_are_bounded_by_what_the_heap_has_room_for(
    tmp_path: Path,
) -> None:
    run: Any = Run(tmp_path)
    run.config = run.config.model_copy(update={"spark": Spark(driver_memory="512m")})
    run.state = LogState({PLACE: Readable(0, 80)}, {"logs": "5f2c"})
    run.log.sizes = {"logs": 1024 * 1024}
    backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 80}, print)
    assert run.chunks == [(0, 32), (32, 64), (64, 80)]


def test_what_the_log_does_not_hold_is_refused_and_not_looked_at(tmp_path: Path) -> None:
    run: Any = Run(tmp_path)
    run.state = LogState({PLACE: Readable(5000, 6000)}, {"logs": "5f2c"})
    with pytest.raises(ConfigError, match="the log holds 5000 to 5999"):
        backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 6000}, print)


def test_a_replay_does_not_begin_without_the_log(tmp_path: Path) -> None:
    class Away(FakeLog):
        @override
        def sample(self, *_: Any, **__: Any) -> None:
            raise LogUnavailableError("no node answers")

    run: Any = Run(tmp_path)
    run.log = Away(Readable(0, 10))
    run.state = LogState({PLACE: Readable(0, 80)}, {"logs": "5f2c"})
    with pytest.raises(UnavailableError, match="logd: no node answers"):
        backfill.backfill(run, "lake", {PLACE: 0}, {PLACE: 80}, print)
    assert ReplayNote(tmp_path / "checkpoint" / "lake").load() is None
