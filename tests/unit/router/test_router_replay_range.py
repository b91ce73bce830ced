"""Which offsets the command `replay` means by a time, an end of the log, or how long ago."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.batch import Record
from penstock.router import backfill, bounded, cli_again, replay_process
from penstock.router.cli import cli
from penstock.router.core.offsets import Readable, StreamPartition
from penstock.router.reading import LogState
from penstock.router.replay_progress import Progress
from penstock.service import ExitCode
from tests.support.fake_log import FakeLog
from tests.unit.router.test_router_config import JOB

MINUTE_NS = 60 * 10**9
AGES_MIN = (50, 40, 30, 20, 10)
LOGS, MORE, TRACES = (
    StreamPartition("logs", 0),
    StreamPartition("logs", 1),
    StreamPartition("traces", 0),
)
Ends = dict[StreamPartition, int | None]


class Log(FakeLog):
    """Knows times of 64 bits only, as the wire does."""

    @override
    def offset_for_timestamp(self, stream: str, timestamp_ns: int, partition: int = 0) -> int:
        assert 0 <= timestamp_ns < 2**63
        return super().offset_for_timestamp(stream, timestamp_ns, partition)


class Case:
    """A log of two streams, a record every ten minutes; logs/1 has none yet, traces begin at 2.

    Attributes:
        asked: From where to where was to be replayed.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = SystemClock().unix_ns()
        self.asked: list[tuple[Ends, Ends]] = []
        self.log = Log(starts={"traces": 2})
        records = [Record("t", b"x", self.now_ns - age * MINUTE_NS) for age in AGES_MIN]
        self.log.add("logs", records, per_frame=2)
        self.log.add("logs", [], per_frame=1, partition=1)
        self.log.add("traces", records, per_frame=5)
        self._path = directory / "job.yaml"
        self._path.write_text(yaml.safe_dump(JOB | {"streams": ["logs", "traces"]}))
        self.progress = Progress("batches")
        monkeypatch.setattr(cli_again, "LogClient", lambda *_, **__: self.log)
        monkeypatch.setattr(bounded, "bounded_run", self._run)
        monkeypatch.setattr(backfill, "backfill", self._backfill)
        monkeypatch.setattr(replay_process, "attended", lambda *_: nullcontext())
        monkeypatch.setattr(cli_again, "typed", lambda *_, **__: nullcontext())

    @contextmanager
    def _run(self, *_: Any, **__: Any) -> Iterator[Any]:
        readable = {LOGS: Readable(0, 5), MORE: Readable(0, 0), TRACES: Readable(2, 7)}
        yield SimpleNamespace(state=LogState(readable, {}), progress=self.progress)

    def _backfill(self, run: Any, sink: str, first: Ends, last: Ends, tell: Any) -> int:
        del run, tell
        assert sink == "lake"
        self.progress.refused = 3
        self.asked.append((first, last))
        return 0

    def replay(self, *arguments: str) -> Result:
        command = ["replay", str(self._path), "--sink", "lake", *arguments]
        return CliRunner().invoke(cli, command)

    def ago(self, minutes: int) -> str:
        moment = datetime.fromtimestamp((self.now_ns - minutes * MINUTE_NS) / 1e9, UTC)
        return moment.isoformat().replace("+00:00", "Z")


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def test_a_range_of_times_is_looked_up_in_each_partition(case: Case) -> None:
    done = case.replay("--from", case.ago(35), "--to", "15m")
    assert done.exit_code == 0, done.output
    assert done.output == "0 records went to lake again, 3 refused again (dead letters)\n"
    assert case.asked == [({LOGS: 2, MORE: 0, TRACES: 4}, {LOGS: 4, MORE: 0, TRACES: 6})]


def test_without_an_end_it_is_as_far_as_the_sink_has_come(case: Case) -> None:
    assert case.replay("--from", "25m").exit_code == 0
    assert case.asked == [({LOGS: 3, MORE: 0, TRACES: 5}, {LOGS: None, MORE: None, TRACES: None})]


def test_of_one_stream_the_others_are_left_alone(case: Case) -> None:
    assert case.replay("--from", "earliest", "--to", "latest", "--stream", "traces").exit_code == 0
    assert case.asked == [({LOGS: 0, MORE: 0, TRACES: 2}, {LOGS: 0, MORE: 0, TRACES: 7})]
    assert case.replay("--from", "3", "--to", "6", "--stream", "traces").exit_code == 0
    assert case.asked[1] == ({LOGS: 0, MORE: 0, TRACES: 3}, {LOGS: 0, MORE: 0, TRACES: 6})
    refused = case.replay("--from", "3")
    assert (refused.exit_code, len(case.asked)) == (ExitCode.USAGE, 2)
    assert "name the stream" in refused.output


@pytest.mark.parametrize("far", ["0001-01-01", "9999-12-31"])
def test_times_beyond_64_bits_are_before_and_after_everything(case: Case, far: str) -> None:
    assert case.replay("--from", far).exit_code == 0
    ((first, _),) = case.asked
    is_early = far.startswith("0")
    assert first == ({LOGS: 0, MORE: 0, TRACES: 2} if is_early else {LOGS: 5, MORE: 0, TRACES: 7})
