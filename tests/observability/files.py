"""The files that are made of the metrics, by path."""

import json
from pathlib import Path

import yaml

from tests.observability.alerts import rules
from tests.observability.dashboards import DASHBOARDS, document
from tests.observability.families import PROCESSES, Family, families

ROOT = Path(__file__).resolve().parents[2]

_TITLES = {"collector": "The collector", "logd": "logd", "router": "A router job",
           "console": "The console"}  # fmt: skip
_HEAD = """# Every metric

`/metrics` of each process, in OpenMetrics for a client that asks for it, else in Prometheus's text
format. Counters are since the process started. Dashboards for Grafana are in
[deploy/grafana](../deploy/grafana), alert rules in
[deploy/prometheus](../deploy/prometheus/alerts.yaml); all of it, this page too, is made of the code
by `make metrics`.

`stream` is a stream's name, with `/` and the partition where it has several. Units: what a value
counts; 1 is a number without unit, or 1 for yes and 0 for no.
"""


def made() -> dict[str, str]:
    """The files."""
    found = {
        "docs/METRICS.md": reference(families()),
        "deploy/prometheus/alerts.yaml": "# Made by `make metrics`.\n"
        + yaml.safe_dump(rules(), sort_keys=False, width=100),
    }
    for dashboard in DASHBOARDS:
        name = f"deploy/grafana/{dashboard.uid}.json"
        found[name] = json.dumps(document(dashboard), indent=1) + "\n"
    return found


def reference(known: list[Family]) -> str:
    """The page that lists them all."""
    lines = [_HEAD]
    for process in PROCESSES:
        lines += [f"## {_TITLES[process]}\n"]
        lines += ["| metric | type | unit | labels | is |", "|---|---|---|---|---|"]
        lines += [
            f"| `{family.name}` | {family.kind} | {family.unit} | {_code(family.labels)}"
            f" | {family.help} |"
            for family in known
            if family.process == process
        ]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _code(labels: tuple[str, ...]) -> str:
    return ", ".join(f"`{label}`" for label in labels)
