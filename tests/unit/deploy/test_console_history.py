"""The console's history: its spans, over restarts, cut-off writes and clocks that step."""

import asyncio
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import UnavailableError
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.console.daemon import Console
from penstock.deploy.console.history.file import HistoryFile, HistoryInUseError
from penstock.deploy.console.history.rings import RINGS, ROWS, History, Series
from penstock.deploy.console.history.samples import Sampler
from penstock.deploy.console.rates import SECOND_NS
from penstock.deploy.console.snapshot import PartSnapshot
from tests.support.console import a_stage, a_status

T0 = 1_800_000_000
RATE = Series("pipeline", "", "stored")
LEVEL = Series("pipeline", "", "waiting_sinks")
FREE = Series("pipeline", "", "free_bytes")


def figures(history: History, span: str, unix_s: int) -> dict[str, list[float | None]]:
    found = history.read("pipeline", "", span, unix_s)
    assert found is not None
    assert {len(values) for values in found["figures"].values()} <= {61, 73, 169}
    shown: dict[str, list[float | None]] = found["figures"]
    return shown


class Kept:
    """A history and its file, as a console has them."""

    def __init__(self, directory: Path, max_series: int = 100) -> None:
        self.history = History(max_series)
        self._file = HistoryFile(directory, max_series)
        self.was_usable = self._file.load(self.history)

    def take(self, unix_s: int, value: float, *series: Series) -> None:
        changes = self.history.note(unix_s, dict.fromkeys(series or (RATE,), value))
        self._file.write(self.history, changes)

    def close(self) -> History:
        self._file.close()
        return self.history


def loaded(directory: Path, max_series: int = 100) -> History:
    return Kept(directory, max_series).close()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.integers(30, 900))
def test_each_span_says_what_a_dumb_history_of_all_samples_says(seed: int, ticks: int) -> None:
    """Rates by their mean of means, levels by their maximum, free room by its minimum."""
    dice = random.Random(seed)
    history, samples, now = History(10), dict[int, tuple[float, float, float]](), T0
    for _ in range(ticks):
        now += 15 if dice.random() < 0.95 else 15 * dice.randrange(1, 60)
        values = (dice.randrange(1000), dice.randrange(1000), dice.randrange(1000))
        samples[now - now % 15] = values
        history.note(now, dict(zip((RATE, LEVEL, FREE), values, strict=True)))

    def dumb(number: int, start: int) -> list[tuple[float, float, float]]:
        if number == 0:
            return [samples[start]] if start in samples else []
        finer = RINGS[number - 1].step_s
        slots = range(start, start + RINGS[number].step_s, finer)
        found = [one for slot in slots for one in dumb(number - 1, slot)]
        if not found:
            return []
        rates, levels, room = zip(*found, strict=True)
        return [(sum(rates) / len(rates), max(levels), min(room))]

    for number, ring in enumerate(RINGS):
        shown, last = figures(history, ring.span, now), ring.slot_of(now)
        slots = range(last - (ring.rows - 1) * ring.step_s, last + 1, ring.step_s)
        for place, slot in enumerate(slots):
            expected = dumb(number, slot)
            for figure, index in (("stored", 0), ("waiting_sinks", 1), ("free_bytes", 2)):
                value = shown[figure][place]
                assert (value is None) == (not expected), (ring.span, slot)
                if value is not None:
                    assert math.isclose(value, expected[0][index], rel_tol=1e-4, abs_tol=1e-4)


def test_seven_days_fit_and_older_figures_make_room() -> None:
    history = History(10)
    for tick in range(9 * 86_400 // 15):
        history.note(T0 + 15 * tick, {RATE: tick * 15 / 3600})
    now = T0 + 9 * 86_400 - 15
    week = figures(history, "7d", now)["stored"]
    assert [value for value in week if value is None] == []
    oldest = week[0]
    assert oldest is not None
    assert 47 < oldest < 49, "hours since the start: those before two days ago are gone"
    assert len(figures(history, "15m", now)["stored"]) == 61


def test_a_restart_loses_nothing_not_even_of_the_slot_that_goes_on(tmp_path: Path) -> None:
    one, other, now = Kept(tmp_path), History(100), T0
    for tick in range(700):
        now = T0 + 15 * tick
        one.take(now, float(tick % 90))
        other.note(now, {RATE: float(tick % 90)})
        if tick % 97 == 0:
            one.close()
            one = Kept(tmp_path)
    one.close()
    for ring in RINGS:
        expected = figures(other, ring.span, now)["stored"]
        assert figures(loaded(tmp_path), ring.span, now)["stored"] == expected


def test_a_slot_that_ended_while_nobody_ran_is_made_of_what_there_was(tmp_path: Path) -> None:
    one = Kept(tmp_path)
    for tick in range(40):
        one.take(T0 + 15 * tick, 10.0)
    one.close()
    again, now = loaded(tmp_path), T0 + 6 * 3600
    again.note(now, {RATE: 0.0})
    assert figures(again, "6h", now)["stored"][:2] == [10.0, 10.0]
    assert figures(again, "6h", now)["stored"].count(None) == 70


@pytest.mark.parametrize("seed", range(30))
def test_a_write_that_is_cut_off_costs_one_row_at_most(tmp_path: Path, seed: int) -> None:
    one, dice, rows = Kept(tmp_path), random.Random(seed), tmp_path / "rows"
    for tick in range(25):
        one.take(T0 + 15 * tick, 7.0)
    before = rows.read_bytes()
    one.take(T0 + 15 * 25, 9.0)
    one.close()
    after = rows.read_bytes()
    changed = [n for n, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    reached = dice.randrange(changed[0], changed[-1] + 1)
    rows.write_bytes(after[:reached] + before[reached:])
    shown = figures(loaded(tmp_path), "15m", T0 + 15 * 25)["stored"]
    assert shown[-26:-1] == [7.0] * 25
    assert shown[-1] in (None, 9.0)


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_never_shown_as_a_figure(tmp_path: Path, seed: int) -> None:
    dice, one = random.Random(seed), Kept(tmp_path)
    for tick in range(3):
        one.take(T0 + 15 * tick, 7.0)
    one.close()
    path = tmp_path / dice.choice(["rows", "names.json"])
    held = bytearray(path.read_bytes())
    written = [place for place, byte in enumerate(held) if byte]
    held[dice.choice(written)] ^= dice.randrange(1, 256)
    path.write_bytes(held)
    shown = loaded(tmp_path).read("pipeline", "", "15m", T0 + 30)
    assert shown is not None
    for values in shown["figures"].values():
        assert set(values) <= {None, 7.0}


@pytest.mark.parametrize("damage", ["names.json", "rows", "width"])
def test_what_cannot_be_used_begins_again(tmp_path: Path, damage: str) -> None:
    one = Kept(tmp_path)
    one.take(T0, 7.0)
    one.close()
    if damage != "width":
        (tmp_path / damage).write_bytes(b"{}")
    again = Kept(tmp_path, 200 if damage == "width" else 100)
    assert not again.was_usable
    again.take(T0 + 15, 8.0)
    again.close()
    shown = loaded(tmp_path, again.history.max_series)
    assert figures(shown, "15m", T0 + 15)["stored"][-2:] == [None, 8.0]


def test_the_file_has_one_size_and_no_more_room_than_it_needs(tmp_path: Path) -> None:
    one = Kept(tmp_path, 5_000)
    series = [Series("stream", f"s{n}", "stored") for n in range(6_000)]
    for tick in range(3):
        one.take(T0 + 15 * tick, 1.0, *series)
    one.close()
    found = (tmp_path / "rows").stat()
    assert found.st_size == 24 + ROWS * (16 + 4 * 5_000)
    assert found.st_blocks * 512 < 200_000, "rows that were not written are holes"
    assert one.history.left_out == 1_000


def test_a_series_that_is_gone_makes_room_for_a_new_one_without_a_past(tmp_path: Path) -> None:
    one, old, new = (
        Kept(tmp_path, 1),
        Series("stream", "a", "stored"),
        Series("stream", "b", "stored"),
    )
    one.take(T0, 1.0, old)
    one.take(T0 + 15, 1.0, old)
    one.take(T0 + 30, 2.0, new)
    for history in (one.close(), loaded(tmp_path, 1)):
        shown = history.read("stream", "b", "15m", T0 + 30)
        assert shown is not None
        assert shown["figures"]["stored"][-3:] == [None, None, 2.0]
        assert history.read("stream", "a", "15m", T0 + 30) == shown | {"figures": {}}


def test_a_clock_that_was_ahead_hides_nothing_that_comes(tmp_path: Path) -> None:
    one = Kept(tmp_path)
    one.take(T0 + 40 * 86_400, 9.0)
    for tick in range(50):
        one.take(T0 + 15 * tick, 7.0)
    now = T0 + 15 * 49
    for history in (one.close(), loaded(tmp_path)):
        for span in ("15m", "6h", "7d"):
            values = figures(history, span, now)["stored"]
            assert {value for value in values if value is not None} == {7.0}


def test_two_consoles_do_not_write_one_history(tmp_path: Path) -> None:
    first = HistoryFile(tmp_path, 100)
    with pytest.raises(HistoryInUseError, match="another console"):
        HistoryFile(tmp_path, 100)
    config = {"listen": "127.0.0.1:0", "history": {"directory": tmp_path, "max_series": 100}}
    console = Console(ConsoleConfig.model_validate(config))
    with pytest.raises(UnavailableError, match="another console"):
        asyncio.run(console.run(asyncio.Event()))
    first.close()
    HistoryFile(tmp_path, 100).close()


def test_a_directory_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = {"listen": "127.0.0.1:0", "history": {"directory": tmp_path / "file" / "history"}}
    console = Console(ConsoleConfig.model_validate(config))
    with pytest.raises(UnavailableError, match=r"history\.directory"):
        asyncio.run(console.run(asyncio.Event()))


def part(status: Mapping[str, Any], name: str, age_ms: int = 0) -> PartSnapshot:
    return PartSnapshot(name, json.loads(json.dumps(status)), age_ms=age_ms)


def parts_at(second: int) -> list[PartSnapshot]:
    """A pipeline whose counters grow steadily."""
    account = {"dropped": {"full": 3 * second}, "sender_dropped": {"queue": second}}
    collector = a_status(
        "collector", "c", a_stage("source/unix", 100 * second, lag=5, errors=4 * second),
        info={"reconciliation": {"unix": account}, "spool": {"bytes": 50}},
    )  # fmt: skip
    logd = a_status("logd", "l", a_stage("stream/logs", 0, errors=2 * second, detail={"lost": 0}))
    router = a_status(
        "router", "r", a_stage("sink/lake", 90 * second, lag=7),
        a_stage("sink/loki", 80 * second, lag=70, detail={"dead_letters": second}),
        info={"log": {"logs": 95 * second}, "sinks": {"lake": {"committed": {"logs": 0}}}},
    )  # fmt: skip
    return [part(collector, "collector"), part(logd, "logd-1"), part(router, "router")]


def rows_at(second: int) -> list[dict[str, Any]]:
    return [{"stream": "logs", "partition": 0, "end": 95 * second, "size": 1000},
            {"stream": "__cursors", "partition": 0, "end": second, "size": 10}]  # fmt: skip


def look(sampler: Sampler, second: int, **more: Any) -> dict[tuple[str, str, str], float]:
    told: dict[str, Any] = {"parts": parts_at(second), "streams": rows_at(second)} | more
    found = sampler.look(**told, free_bytes=77, now_ns=(100 + second) * SECOND_NS)
    return {(one.kind, one.name, one.figure): value for one, value in found.items()}


def test_a_pipeline_is_measured_whole_and_thing_by_thing() -> None:
    sampler = Sampler()
    first = look(sampler, 1)
    assert ("pipeline", "", "stored") not in first, "a rate takes two looks"
    assert first["pipeline", "", "waiting_sinks"] == 70
    sample = look(sampler, 3)
    of_all = {figure: value for (kind, _, figure), value in sample.items() if kind == "pipeline"}
    assert of_all == {
        "received": 100, "stored": 95, "delivered": 170, "waiting_collectors": 5,
        "waiting_sinks": 70, "errors": 6, "drops": 4, "app_drops": 1, "stored_bytes": 1010,
        "spool_bytes": 50, "free_bytes": 77,
    }  # fmt: skip
    assert sample["stream", "logs", "waiting_sinks"] == 95 * 3
    assert sample["stream", "logs", "errors"] == 2
    assert sample["collector", "collector", "received"] == 100
    assert sample["job", "router", "delivered"] == 170
    assert sample["job", "router", "received"] == 90
    assert sample["sink", "router/loki", "drops"] == 1
    assert next(iter(sample))[0] != "stream"


def test_a_part_that_is_away_has_no_figures_and_one_that_began_again_no_negative_ones() -> None:
    sampler = Sampler()
    look(sampler, 100)
    levels = {figure for _, _, figure in look(sampler, 1)}
    assert all(f.endswith("_bytes") or f.startswith("waiting") for f in levels), "no time passed"
    sampler = Sampler()
    look(sampler, 100)
    began_again = sampler.look(parts_at(1), rows_at(1), free_bytes=None, now_ns=300 * SECOND_NS)
    assert all(value >= 0 for value in began_again.values())
    away = [PartSnapshot("collector", {}, problem="no answer")]
    assert look(Sampler(), 1, parts=away, streams=[]).keys() == {("pipeline", "", "free_bytes")}
