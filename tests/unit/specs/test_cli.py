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


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("new", "Bad.Name"),
            65,
            "'Bad.Name/1.0' is no schema id: it looks like shop.order_placed",
        ),
        (("diff", "log/1.0", "nope"), 65, "no file of JSON Schema; known: "),
        (
            ("export", "markdown", "log/1.0", "--out", "/dev/null/x"),
            74,
            "error: /dev/null/x: Not a directory\n  fix: name a path",
        ),
    ],
)
def test_an_error_says_what_was_wrong_and_what_there_is(
    arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr


def test_a_module_that_cannot_be_imported_is_the_users_and_no_bug_of_penstock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "boom_at_import.py").write_text("raise RuntimeError('no database')")
    monkeypatch.syspath_prepend(tmp_path)
    result = run("export", "markdown", "log/1.0", "--module", "boom_at_import")
    assert result.exit_code == 2  # 64 below `penstock`
    assert "boom_at_import cannot be imported: RuntimeError: no database" in result.stderr


@pytest.mark.parametrize("command", ["contract", "export"])
def test_an_example_that_is_long_can_be_copied_as_it_is_shown(command: str) -> None:
    lines = run(command, "--help").output.splitlines()
    first = next(n for n, line in enumerate(lines) if line.strip().startswith("penstock specs"))
    assert lines[first - 1].strip() == "Example:"
    assert all(line.endswith("\\") for line in lines[first:-1])
