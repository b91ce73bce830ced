"""How the harness carries out a plan, and what it says of it."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.collector import failpoints
from tests.harness.__main__ import PLANS, load_plan, parse
from tests.harness.plan import Plan, Report, Run, System, execute, in_turn
from tests.harness.plans.crash import name_silent_failpoints


class Fake(System):
    """A system that says what was done to it."""

    def __init__(self, run: Run, wrong: Callable[[Run], None] = lambda _: None) -> None:
        super().__init__(run)
        self.wrong = wrong

    @override
    def begin(self, stack: ExitStack) -> None:
        (self.run.directory / "data").write_text("kept")
        stack.callback(self.run.report.counts.update, ["ended"])

    @override
    def recover(self) -> str:
        self.wrong(self.run)
        return "well"

    @override
    def conclude(self) -> None:
        self.run.report.counts["judged"] += self.run.number


def one(system: Fake) -> str:
    system.run.report.counts["one"] += 1
    return "one"


def other(system: Fake) -> str:
    system.run.report.counts["other"] += 1
    return "other"


def carry_out(
    directory: Path, wrong: Callable[[Run], None] = lambda _: None, **options: Any
) -> tuple[Report, list[str]]:
    told: list[str] = []
    plan = Plan(
        about="", system=lambda run: Fake(run, wrong), faults=lambda _: [one, other], order=in_turn
    )
    given = {"runs": None, "seconds": None, "round": None, "seed": 3, "twin": None, "keep": False}
    return execute(plan, Namespace(**given | options), directory, told.append), told


def test_rounds_are_judged_each_and_add_up(tmp_path: Path) -> None:
    report, told = carry_out(tmp_path, runs=5, round=2)
    assert report.counts == Counter(one=3, other=2, judged=5, ended=3, rounds=3)
    assert (report.runs, report.broken, list(tmp_path.iterdir())) == (5, [], [])
    assert "round 3, seed 5: every promise was kept" in told
    assert "run 5, 0 s: one; well" in told


def test_a_plan_ends_in_time_and_not_before_its_first_run(tmp_path: Path) -> None:
    report, _ = carry_out(tmp_path, seconds=0.0)
    assert report.runs == 1


def test_a_broken_promise_ends_it_and_leaves_the_data(tmp_path: Path) -> None:
    report, _ = carry_out(
        tmp_path, lambda run: run.demand(run.number < 2, "it was lost"), runs=5, round=2
    )
    assert report.broken == ["it was lost"]
    assert report.counts["ended"] == 1
    assert (tmp_path / "round-1" / "data").exists()


def test_what_a_judge_names_leaves_that_round_and_goes_on(tmp_path: Path) -> None:
    def wrong(run: Run) -> None:
        if run.seed == 3:
            run.report.broken.append("twice")

    report, _ = carry_out(tmp_path, wrong, runs=2, round=1)
    assert (report.runs, report.broken) == (2, ["twice"])
    assert [place.name for place in tmp_path.iterdir()] == ["round-1"]


def test_an_error_of_the_harness_is_no_broken_promise(tmp_path: Path) -> None:
    def wrong(run: Run) -> None:
        raise OSError(run.number)

    with pytest.raises(OSError, match="1"):
        carry_out(tmp_path, wrong, runs=2)


def test_times_are_summed_up() -> None:
    report = Report()
    for seconds in (1.0, 2.0, 9.0):
        report.took("ready", seconds)
    times = report.summary()["times_s"]
    assert times == {"ready": {"times": 3, "p50": 2.0, "p99": 9.0, "max": 9.0}}
    json.dumps(report.summary())


@pytest.mark.parametrize("name", PLANS)
def test_each_plan_says_what_it_does_and_how_long(name: str) -> None:
    plan, options = parse([name])
    assert plan.about.count("\n") > 3
    assert options.runs or options.seconds
    assert parse([name, "--minutes", "2"])[1].seconds == 120
    assert parse([name, "--runs", "7"])[1].seconds is None
    assert load_plan(name) is plan


def test_a_failpoint_that_never_fired_is_named_once_there_were_enough_runs() -> None:
    few, enough = (Report(runs=6 * len(failpoints.NAMES) - less) for less in (1, 0))
    for report in (few, enough):
        report.counts.update(f"fired: {name}" for name in failpoints.NAMES[1:])
        name_silent_failpoints(report)
    assert few.broken == []
    assert enough.broken == [f"failpoints that never fired: ['{failpoints.NAMES[0]}']"]
