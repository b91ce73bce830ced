"""Which offsets the command `replay` means by a time, an end of the log, or how long ago."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.format.batch import Record
from penstock.router.cli.main import cli
from penstock.router.read.offsets import Readable, StreamPartition
from penstock.router.replay.backfill import range_of
from penstock.service import ExitCode
from penstock.service.cli import POSITION
from tests.support.fake_log import FakeLog
from tests.unit.router.test_router_config import JOB

MINUTE_NS = 60 * 10**9
AGES_MIN = (50, 40, 30, 20, 10)
LOGS, MORE, TRACES = (
    StreamPartition("logs", 0),
    StreamPartition("logs", 1),
    StreamPartition("traces", 0),
)
READABLE = {LOGS: Readable(0, 5), MORE: Readable(0, 0), TRACES: Readable(2, 7)}


class Log(FakeLog):
    """A record every ten minutes; logs/1 has none yet, traces begin at 2.

    Knows times of 64 bits only, as the wire does.
    """

    def __init__(self, now_ns: int) -> None:
        super().__init__(starts={"traces": 2})
        records = [Record("t", b"x", now_ns - age * MINUTE_NS) for age in AGES_MIN]
        self.add("logs", records, per_frame=2)
        self.add("logs", [], per_frame=1, partition=1)
        self.add("traces", records, per_frame=5)

    @override
    def offset_for_timestamp(self, stream: str, timestamp_ns: int, partition: int = 0) -> int:
        assert 0 <= timestamp_ns < 2**63
        return super().offset_for_timestamp(stream, timestamp_ns, partition)


def meant(begin: str, end: str | None = None, stream: str | None = None) -> tuple[Any, Any]:
    """The offsets that `--from`, `--to` and `--stream` are."""
    log: Any = Log(SystemClock().unix_ns())
    first, last = (None if it is None else POSITION.convert(it, None, None) for it in (begin, end))
    return range_of(log, READABLE, first, last, stream)


def ago(minutes: int) -> str:
    moment = datetime.fromtimestamp((SystemClock().unix_ns() - minutes * MINUTE_NS) / 1e9, UTC)
    return moment.isoformat().replace("+00:00", "Z")


def test_a_range_of_times_is_looked_up_in_each_partition() -> None:
    assert meant(ago(35), "15m") == (
        {LOGS: 2, MORE: 0, TRACES: 4}, {LOGS: 4, MORE: 0, TRACES: 6},
    )  # fmt: skip


def test_without_an_end_it_is_as_far_as_the_sink_has_come() -> None:
    assert meant("25m") == (
        {LOGS: 3, MORE: 0, TRACES: 5}, {LOGS: None, MORE: None, TRACES: None},
    )  # fmt: skip


def test_of_one_stream_the_others_are_left_alone() -> None:
    assert meant("earliest", "latest", "traces") == (
        {LOGS: 0, MORE: 0, TRACES: 2}, {LOGS: 0, MORE: 0, TRACES: 7},
    )  # fmt: skip
    assert meant("3", "6", "traces") == (
        {LOGS: 0, MORE: 0, TRACES: 3}, {LOGS: 0, MORE: 0, TRACES: 6},
    )  # fmt: skip


def test_an_offset_is_of_a_stream_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | {"streams": ["logs", "traces"]}))
    refused = CliRunner().invoke(cli, ["replay", str(path), "--sink", "lake", "--from", "3"])
    assert refused.exit_code == ExitCode.USAGE
    assert "name the stream" in refused.output


@pytest.mark.parametrize("far", ["0001-01-01", "9999-12-31"])
def test_times_beyond_64_bits_are_before_and_after_everything(far: str) -> None:
    first, _ = meant(far)
    is_early = far.startswith("0")
    assert first == ({LOGS: 0, MORE: 0, TRACES: 2} if is_early else {LOGS: 5, MORE: 0, TRACES: 7})
