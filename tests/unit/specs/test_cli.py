"""The command: `penstock specs`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.specs.cli import cli
from tests.unit.specs import records


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


def test_list_names_every_spec() -> None:
    result = run("list")
    assert result.exit_code == 0
    assert "log/1.0" in result.output
    assert "audit/1.0" in result.output


def test_validate_says_a_verdict_for_each_line(tmp_path: Path) -> None:
    file = tmp_path / "records.ndjson"
    lines = [json.dumps(make()).encode() for make in (records.log, records.span)]
    file.write_bytes(b"\n".join([*lines, b"{}", b""]))
    result = run("validate", str(file))
    assert result.exit_code == 65
    assert result.stdout.splitlines() == [
        "1: accepted: log/1.0 checkout",
        "2: accepted: span/1.0 checkout",
        "3: refused: bad_kind",
    ]
    assert result.stderr == "2 accepted, 1 refused\n"


def test_validate_reads_standard_input_and_succeeds_quietly() -> None:
    result = run("validate", "--quiet", "-", stdin=json.dumps(records.event()).encode())
    assert (result.exit_code, result.stdout) == (0, "")


def test_schema_prints_json_schema() -> None:
    result = run("schema", "metric/1.1")
    assert json.loads(result.output)["x-kind"] == "metric"
    unknown = run("schema", "metric/9.9")
    assert unknown.exit_code == 2
    assert "log/1.0" in unknown.output


def test_fields_prints_columns() -> None:
    result = run("fields", "span")
    assert "service_name" in result.output
    assert "resource > service.name" in result.output


@pytest.mark.parametrize("command", ["list", "validate", "schema", "fields"])
def test_help_shows_an_example(command: str) -> None:
    assert f"Example: penstock specs {command}" in run(command, "--help").output
