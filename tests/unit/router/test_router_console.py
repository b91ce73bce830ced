"""The console sink's counts."""

import json
from pathlib import Path

import pytest

from penstock.router.sinks.console import Console, ConsoleSink
from tests.unit.router.sink_rows import context, row, table

ROWS = [
    row(0),
    row(1, severity_text="ERROR"),
    row(2, kind="span", severity_text=None, status_code="ERROR", service="pay"),
    row(3, kind="metric", severity_text=None, service=None),
]


def totals(directory: Path) -> dict[tuple[str, str], int]:
    document = json.loads((directory / "state" / "summary.json").read_text())
    return {(item["service"], item["severity"]): item["records"] for item in document["totals"]}


def open_console(directory: Path, *, as_json: bool = False) -> Console:
    console = Console(
        ConsoleSink(type="console", format="json" if as_json else "text"), context(directory)
    )
    console.open()
    return console


def test_it_counts_by_service_and_severity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_console(tmp_path).write(table(ROWS))
    assert totals(tmp_path) == {
        ("checkout", "INFO"): 1,
        ("checkout", "ERROR"): 1,
        ("pay", "span ERROR"): 1,
        ("-", "metric"): 1,
    }
    assert "+4 records, 4 in all" in capsys.readouterr().out


def test_a_batch_that_comes_again_is_counted_once(tmp_path: Path) -> None:
    open_console(tmp_path).write(table(ROWS[:3]))
    again = open_console(tmp_path)
    again.write(table(ROWS[:3]))
    again.write(table(ROWS[3:]))
    assert sum(totals(tmp_path).values()) == 4


def test_its_json_form_is_one_line_a_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = open_console(tmp_path, as_json=True)
    console.write(table(ROWS))
    console.write(table(ROWS).slice(0, 0))
    console.write(table([row(9)]))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [sum(item["records"] for item in line["batch"]) for line in lines] == [4, 1]
    assert [sum(item["records"] for item in line["totals"]) for line in lines] == [4, 5]
