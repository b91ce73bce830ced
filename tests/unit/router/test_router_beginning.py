"""Where a job begins; and what it says of its source and trigger is what the source takes."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from penstock.router.checkpoint.local import StartingOffsets
from penstock.router.errors import DataLossError, LogUnavailableError
from penstock.router.job.starting_offsets import first_state, starting_offsets
from penstock.router.read.logd_reader import LogState
from penstock.router.read.offset_spec import Subscription, Times
from penstock.router.read.offsets import EARLIEST, LATEST, Offsets, Readable, StreamPartition
from penstock.router.read.options import parse_options
from penstock.router.streaming.batches import logd_options
from penstock.service import ConfigError, UnavailableError, show_config
from tests.unit.router.sink_rows import TestClock
from tests.unit.router.test_router_config import load

LOGS, TRACES = StreamPartition("logs", 0), StreamPartition("traces", 0)
STATE = LogState({LOGS: Readable(10, 90), TRACES: Readable(0, 7)}, {"logs": "a", "traces": "b"})
MORNING = datetime(2026, 11, 17, 8, 0, 0, 123_456, tzinfo=UTC)
MORNING_MS = int(MORNING.timestamp() * 1000) + 1


class Log:
    """Has a first record of a time in some partitions; None: it is away.

    Attributes:
        asked: Which times were looked up, and where.
    """

    def __init__(self, at: dict[StreamPartition, int] | None) -> None:
        self.asked: list[tuple[Times, set[StreamPartition]]] = []
        self._at = at

    def state(self, streams: Subscription) -> LogState:
        if self._at is None:
            raise LogUnavailableError("nobody answers")
        if "gone" in streams.names:
            raise DataLossError("logd has no stream 'gone'")
        return STATE

    def at_times(
        self, times: Times, readable: Mapping[StreamPartition, Readable]
    ) -> dict[StreamPartition, int]:
        if self._at is None:
            raise LogUnavailableError("nobody answers")
        self.asked.append((times, set(readable)))
        return {where: self._at[where] for where in readable}


def begin(directory: Path, wanted: Any, log: Any = None, state: LogState = STATE) -> Offsets:
    keys = {"streams": ["logs", "traces"], "checkpoint_dir": str(directory / "checkpoint")}
    config = load(directory, starting_offsets=wanted, **keys)
    return starting_offsets(config, state, log, TestClock())


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        ("earliest", {LOGS: 10, TRACES: 0}),
        ("latest", {LOGS: 90, TRACES: 7}),
        ({"logs": {"0": 33}}, {LOGS: 33, TRACES: 0}),
        ({"logs": {"0": LATEST}, "traces": {"0": EARLIEST}}, {LOGS: 90, TRACES: 0}),
    ],
)
def test_an_end_or_offsets_are_decided_once(
    tmp_path: Path, wanted: Any, offsets: dict[StreamPartition, int]
) -> None:
    first = begin(tmp_path, wanted)
    assert (dict(first.next), first.stream_ids) == (offsets, STATE.stream_ids)
    assert begin(tmp_path, "earliest" if wanted == "latest" else "latest") == first
    assert StartingOffsets(tmp_path / "checkpoint").load() == first


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ({"logs": {"0": 91}}, "logs/0: 91 lies behind the end of the log, 90"),
        ({"traces": {"0": 8}}, "traces/0: 8 lies behind the end of the log, 7"),
        ({"logs": {"1": 5}}, "logs has no partition 1"),
    ],
)
def test_offsets_that_the_log_does_not_have_are_refused_and_not_kept(
    tmp_path: Path, offsets: dict[str, dict[str, int]], why: str
) -> None:
    with pytest.raises(ConfigError, match=f"starting_offsets: {why}"):
        begin(tmp_path, offsets)
    assert not StartingOffsets(tmp_path / "checkpoint").load().next
    first = begin(tmp_path, {"logs": {"0": 90}})
    assert begin(tmp_path, offsets) == first, "decided before"


def test_a_new_leader_that_may_not_show_all_yet_makes_no_offset_wrong(tmp_path: Path) -> None:
    state = replace(STATE, written={LOGS: 95})
    assert begin(tmp_path, {"logs": {"0": 95}}, state=state).next[LOGS] == 95


@pytest.mark.parametrize("key", ["token_file", "tls_ca_file"])
def test_a_file_of_the_source_that_cannot_be_read_is_named(tmp_path: Path, key: str) -> None:
    missing = tmp_path / "missing"
    source = {key: str(missing)}
    with pytest.raises(ConfigError, match=f"source.{key}: {missing}: cannot be read: No such"):
        first_state(load(tmp_path, source=source), Log(None))  # type: ignore[arg-type]
    missing.write_text("x")
    with pytest.raises(UnavailableError, match="logd: nobody answers"):
        first_state(load(tmp_path, source=source), Log(None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wanted",
    [
        MORNING,
        MORNING.isoformat(),
        "2026-11-17 08:00:00.123456",
        "2026-11-17T09:00:00.123456+01:00",
    ],
)
def test_a_time_is_looked_up_for_what_is_new_alone(tmp_path: Path, wanted: Any) -> None:
    """In whole milliseconds, and no record of before it."""
    log = Log({LOGS: 42, TRACES: 7})
    only_logs = LogState({LOGS: STATE.readable[LOGS]}, {"logs": "a"})
    assert begin(tmp_path, wanted, log, only_logs).next == {LOGS: 42}
    later = Log({TRACES: 7})
    assert begin(tmp_path, wanted, later).next == {LOGS: 42, TRACES: 7}
    assert begin(tmp_path, wanted, later).next == {LOGS: 42, TRACES: 7}
    times = Times(every=MORNING_MS, strategy="latest")
    assert log.asked == [(times, {LOGS})]
    assert later.asked == [(times, {TRACES}), (times, set())]


def test_times_before_all_and_after_now(tmp_path: Path) -> None:
    log = Log({LOGS: 10, TRACES: 0})
    soon = datetime.fromtimestamp(TestClock().unix_ns() // 10**9, UTC) + timedelta(seconds=1)
    with pytest.raises(ConfigError, match=r"starting_offsets: .* is yet to come"):
        begin(tmp_path, soon, log)
    assert not log.asked
    begin(tmp_path, date(1, 1, 1), log)
    assert log.asked[0][0].every == 0
    assert begin(tmp_path, soon, log).next == {LOGS: 10, TRACES: 0}, "nothing begins there any more"


def test_a_log_that_is_away_and_a_stream_that_is_not_there_are_told(tmp_path: Path) -> None:
    config = load(tmp_path)
    away: Any = Log(None)
    with pytest.raises(UnavailableError, match="logd: nobody answers"):
        first_state(config, away)
    with pytest.raises(UnavailableError, match="logd: nobody answers"):
        begin(tmp_path, MORNING, away)
    there: Any = Log({})
    assert first_state(config, there) == STATE
    with pytest.raises(ConfigError, match="streams: logd has no stream 'gone'"):
        first_state(load(tmp_path, streams=["gone"]), there)


def test_a_time_is_shown_as_it_was_given(tmp_path: Path) -> None:
    zone = timezone(timedelta(hours=2))
    given = load(tmp_path, starting_offsets=datetime(2026, 1, 31, 3, tzinfo=zone))
    assert "2026-01-31T03:00:00+02:00" in show_config(given)
    assert load(tmp_path, starting_offsets=date(2026, 1, 31)).starting_offsets == datetime(
        2026, 1, 31, tzinfo=UTC
    )


def test_what_a_job_says_of_its_source_is_what_the_source_takes(tmp_path: Path) -> None:
    source = {"subject": "telemetry.*.>", "read_from": "replica", "rack": "a b"}
    trigger = {"min_offsets_per_trigger": 50, "max_records": 60, "max_trigger_delay_s": 7}
    job = load(tmp_path, source=source | {"min_partitions": 3}, trigger=trigger)

    def taken(config: Any) -> Any:
        options = logd_options(config, Offsets({LOGS: 3})) | config.trigger.options()
        return parse_options(options, streaming=True)

    its = taken(job)
    assert (its.subject, its.rack, its.min_partitions) == ("telemetry.*.>", "a b", 3)
    assert (its.min_rows, its.max_rows, its.trigger_delay_ns) == (50, 60, 7 * 10**9)
    at_end = taken(job.without_waiting())
    assert (at_end.min_rows, at_end.max_rows) == (None, 60)
    plain = taken(load(tmp_path))
    assert (plain.subject, plain.rack, plain.min_rows, plain.max_rows) == (
        None,
        None,
        None,
        200_000,
    )
    assert parse_options(logd_options(job, Offsets({}), Offsets({})), streaming=False).rack == "a b"
