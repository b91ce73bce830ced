"""Metrics, and what is made of them."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.observability.alerts import ALERTS, Alert, cases, rules
from tests.observability.dashboards import DASHBOARDS
from tests.observability.families import families
from tests.observability.files import ROOT, made
from tests.support.debian import program

KNOWN = {family.name: family for family in families()}
NAMES = re.compile(r"\bpenstock_[a-z_]+\b")
GROUPED = re.compile(r"\bby \(([a-z_, ]+)\)|\{\{([a-z_]+)\}\}")
SCRAPED = {"instance", "job"}


def test_the_files_are_what_the_code_says() -> None:
    stale = [name for name, text in made().items() if _read(name) != text]
    assert stale == [], "run `make metrics`"


def _read(name: str) -> str:
    path = ROOT / name
    return path.read_text() if path.exists() else ""


def test_no_other_dashboards_or_rules_lie_there() -> None:
    there = [*(ROOT / "deploy/grafana").glob("*.json"), ROOT / "deploy/prometheus/alerts.yaml"]
    assert {str(path.relative_to(ROOT)) for path in there} == set(made()) - {"docs/METRICS.md"}


def test_metrics_are_named_as_openmetrics_wants_and_say_what_they_are() -> None:
    for family in KNOWN.values():
        assert re.fullmatch(rf"penstock_{family.process}_[a-z_]+", family.name)
        assert family.help, family.name
        assert family.kind in ("counter", "gauge"), family.name
        assert not set(family.labels) & SCRAPED, family.name
    assert len(KNOWN) == len(families()), "a name is there twice"


def _queries() -> list[str]:
    panels = [panel for board in DASHBOARDS for row in board.rows for panel in row]
    return [expr for panel in panels for expr, _ in panel.queries]


def test_every_metric_of_a_dashboard_or_an_alert_exists() -> None:
    said = [*_queries(), *(alert.expr for alert in ALERTS)]
    said += [name for alert in ALERTS for name, _ in (*alert.fires, *alert.quiet)]
    named = {name for text in said for name in NAMES.findall(text)}
    assert named - set(KNOWN) == set()


def test_labels_of_a_panel_are_those_of_its_metrics() -> None:
    assert all(row for board in DASHBOARDS for row in board.rows)
    for board in DASHBOARDS:
        for panel in (panel for row in board.rows for panel in row):
            for expr, legend in panel.queries:
                words = [word for pair in GROUPED.findall(expr + legend) for word in pair if word]
                labels = {label.strip() for word in words for label in word.split(",")}
                names = NAMES.findall(expr)
                known = {label for name in names for label in KNOWN[name].labels} | SCRAPED
                assert labels - known == set(), panel.title


def test_series_of_an_alert_have_the_labels_of_their_metric() -> None:
    for alert in ALERTS:
        assert alert.fires, alert
        for series, _ in (*alert.fires, *alert.quiet):
            name = series.partition("{")[0]
            labels = set(re.findall(r"([a-z_]+)=", series))
            assert labels <= SCRAPED | set(KNOWN[name].labels if name in KNOWN else ()), series


def test_dashboards_have_unique_ids_and_their_panels_do_not_overlap() -> None:
    assert len({board.uid for board in DASHBOARDS}) == len(DASHBOARDS)
    for name, text in made().items():
        if not name.endswith(".json"):
            continue
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(text)["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y)
                     for x in range(place["w"]) for y in range(place["h"])}  # fmt: skip
            assert not cells & taken, (name, panel["title"])
            taken |= cells


def test_alerts_fire_when_they_must_and_only_then(tmp_path: Path) -> None:
    promtool = program("promtool", package="prometheus")
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules()))
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases("alerts.yaml"), sort_keys=False))
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "cases.yaml"]):
        done = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_is_not_satisfied_by_a_rule_that_never_fires(tmp_path: Path) -> None:
    promtool = program("promtool", package="prometheus")
    broken = rules()
    broken["groups"][0]["rules"][0]["expr"] += " and 1 == 0"
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(broken))
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases("alerts.yaml")))
    done = subprocess.run(
        [promtool, "test", "rules", "cases.yaml"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode != 0


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_says_what_is_wrong_and_what_to_do(alert: Alert) -> None:
    assert alert.summary.endswith(".")
    assert len(alert.what_to_do) > 20
