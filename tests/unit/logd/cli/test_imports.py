"""What a command imports: a person waits for it each time."""

import subprocess
import sys

import pytest

LOADED = """
import sys
from click.testing import CliRunner
from penstock.logd.cli import cli
done = CliRunner().invoke(cli, sys.argv[1:])
assert done.exit_code == 0, done.output
print(*sys.modules)
"""
SLOW = {
    "asyncio", "duckdb", "nats", "pyarrow.compute", "pyarrow.parquet", "pydantic", "rich",
    "structlog",
}  # fmt: skip


@pytest.mark.parametrize("command", ["tail", "fetch"])
def test_a_command_that_reads_records_does_not_import_what_it_has_no_use_for(command: str) -> None:
    arguments = [sys.executable, "-c", LOADED, command, "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert sorted(SLOW & set(done.stdout.split())) == []


def test_a_command_that_shows_the_options_of_a_stream_reads_their_models() -> None:
    arguments = [sys.executable, "-c", LOADED, "streams", "create", "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "pydantic" in done.stdout.split()
