"""Statistics, ratios and aims of the bench, and how they are shown."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench.__main__ import main
from tests.bench.figures import Aim, Case, percentile, spread
from tests.bench.report import number_text, read_json, show_scenario, write_json


def _case(better: str = "higher") -> Case:
    aims = (Aim("ours", "peer", 1.5), Aim("ours", None, 250.0), Aim("absent", "peer", 1.0))
    case = Case("z", "speed", "records/s", aims=aims, compare={"ours": ("peer", "absent")})
    case.better = "higher" if better == "higher" else "lower"
    for ours, peer in ((100.0, 50.0), (400.0, 100.0), (90.0, 90.0)):
        case.add("ours", ours)
        case.add("peer", peer)
    return case


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (50, 3), (60, 3), (61, 4), (99, 5), (100, 5)]
)
def test_a_percentile_is_a_value_that_was_measured(percent: float, expected: float) -> None:
    assert percentile([5, 1, 4, 2, 3], percent) == expected


def test_the_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.0], 99.9) == 7.0


def test_spread_is_median_lowest_highest() -> None:
    assert spread([3.0, 1.0, 2.0, 10.0]) == (2.5, 1.0, 10.0)


def test_ratios_pair_the_values_of_one_round() -> None:
    """The ratio of the medians would be 100 / 90, which no round has shown."""
    assert _case().ratio("ours", "peer") == (2.0, 1.0, 4.0)


def test_there_is_no_ratio_to_what_was_not_measured_or_is_zero() -> None:
    case = _case()
    case.add("zero", 0.0)
    assert case.ratio("ours", "absent") is None
    assert case.ratio("ours", "zero") is None


def test_aims_are_judged_by_the_median_and_by_which_way_is_better() -> None:
    assert [(v.value, v.met) for v in _case().verdicts()] == [(2.0, True), (100.0, False)]
    assert [(v.value, v.met) for v in _case("lower").verdicts()] == [(2.0, False), (100.0, True)]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234567.8, "1,234,568"), (99.96, "100.0"), (12.34, "12.3"), (0.01234, "0.0123")],
)
def test_numbers_show_what_matters(value: float, text: str) -> None:
    assert number_text(value) == text


def test_a_table_shows_every_system_and_the_verdicts() -> None:
    case = _case()
    case.notes["peer"] = "a note"
    console = Console(file=io.StringIO(), width=150)
    show_scenario(console, "z", "a title", [case], aims=True)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for text in ("z. a title", "ours", "peer", "a note", "90.0 to 400", "2 (1 to 4) of peer"):
        assert text in shown
    assert "aim met: z, speed: ours: 2 (at least 1.5 of peer)" in shown
    assert "aim MISSED: z, speed: ours: 100 (at least 250 records/s)" in shown


def test_json_holds_every_round_ratio_and_aim(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write_json(path, "z", {"effort": "full"}, [_case()])
    scenario = read_json(path)["z"]
    assert scenario["effort"] == "full"
    (case,) = scenario["cases"]
    assert case["systems"]["ours"]["rounds"] == [100.0, 400.0, 90.0]
    assert case["systems"]["ours"]["ratios"] == {"peer": {"median": 2.0, "low": 1.0, "high": 4.0}}
    assert [aim["met"] for aim in case["aims"]] == [True, False]
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_replaces_its_scenarios_in_the_json_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write_json(path, "z", {"effort": "full"}, [_case()])
    write_json(path, "b", {"effort": "quick"}, [])
    write_json(path, "z", {"effort": "quick"}, [])
    kept = {letter: (one["effort"], one["cases"]) for letter, one in read_json(path).items()}
    assert kept == {"b": ("quick", []), "z": ("quick", [])}


@pytest.mark.parametrize(
    ("text", "reason"),
    [('{"version": 1, "cases": []}', "has version 1, not 2"), ('{"version"', "holds no JSON")],
)
def test_a_file_that_it_cannot_complete_is_refused_before_anything_is_measured(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"bench\.json {reason}.*name another file"):
        write_json(path, "z", {}, [])
    assert main(["--json", str(path), "--only", "m", "--dir", str(tmp_path / "none")]) == 65
    assert list(tmp_path.iterdir()) == [path]
