"""What a daemon imports at its start, and a command for its help.

Each module of a daemon is memory that it keeps until it ends; each one of a command is time that
somebody waits for it, and for the completion of its name in a shell.
"""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from penstock.deploy.cli import cli

STARTED = """
import runpy, sys
module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code, end.code
if module == "penstock.collector":
    import penstock.collector.agent.agent  # which a check has no use for
print()
print(*sys.modules)
"""
WITHIN = """
import os, sys
from penstock.base.daemon_imports import daemon_imports
with daemon_imports():
    import structlog
    from pydantic import BaseModel
    class Model(BaseModel): ...
assert "PYDANTIC_DISABLE_PLUGINS" not in os.environ
print(*sys.modules)
import rich
"""
AFTERWARDS = """
import sys
from penstock.base.daemon_imports import daemon_imports, without_plugins
with daemon_imports():
    from pydantic import BaseModel
    class Within(BaseModel):
        field: int
    assert "penstock_plugged" not in sys.modules
with without_plugins():
    class Without(BaseModel):
        field: int
assert "penstock_plugged" not in sys.modules
class Model(BaseModel):
    field: int
print(*sys.modules)
"""
FROZEN = """
import gc
from penstock.base.daemon_imports import daemon_imports
with daemon_imports():
    import structlog
kept = gc.get_freeze_count()
gc.collect()
print(*["frozen"] * (kept > 10_000 and gc.get_freeze_count() == kept and gc.isenabled()))
"""
POOL = """
from penstock.base.daemon_imports import daemon_imports
with daemon_imports():
    import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""
HELP = """
import sys
from penstock.deploy.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print()
print(*sys.modules)
"""
LAUNCHED = """
import sys
from penstock.deploy.main import main
try:
    main()
except SystemExit as end:
    assert end.code == 78, end.code
print()
print(*sys.modules)
"""
LIBRARIES = {
    "asyncio", "duckdb", "grpc", "nats", "opentelemetry", "pyarrow", "pydantic", "pyspark", "rich",
    "structlog", "yaml",
}  # fmt: skip
PARTS = {
    "specs": {"opentelemetry", "pydantic"},
    "collector": {"asyncio", "nats", "opentelemetry", "pyarrow", "pydantic", "structlog", "yaml"},
    "logd": {"asyncio", "nats", "pyarrow", "pydantic", "rich", "structlog"},
    "router": {
        "asyncio", "opentelemetry", "pyarrow", "pydantic", "pyspark", "structlog", "yaml"
    },
}  # fmt: skip
"""Libraries that the commands of a part may import for its help."""
UNUSED = {"duckdb", "grpc", "pyarrow.compute", "pyarrow.parquet", "pydoc", "pyspark", "rich"}
LOGD_UNUSED = {
    "cryptography", "difflib", "jwt", "nats", "opentelemetry", "prometheus_client"
}  # fmt: skip

NAME = "ARROW_DEFAULT_MEMORY_POOL"

CONSOLE = """
parts: {logd: "http://127.0.0.1:9294"}
"""
COLLECTOR = """
data_dir: collector
sources: [{type: host_metrics}]
"""
OTLP = """
data_dir: collector
sources: [{type: otlp}]
"""
LOGD = """
data_dir: logd
streams: [{name: logs, subject: "telemetry.logs.>"}]
"""


def _modules(program: str, *arguments: str, **variables: str) -> set[str]:
    """The modules that a process has imported, by what its last line names."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("module", "text", "unused"),
    [
        ("penstock.logd", LOGD, UNUSED | LOGD_UNUSED),
        ("penstock.collector", COLLECTOR, UNUSED | {"google.protobuf"}),
        ("penstock.collector", OTLP, UNUSED | {"google.protobuf"}),
        ("penstock.deploy.console", CONSOLE, UNUSED | {"nats", "opentelemetry"}),
    ],
    ids=["logd", "collector", "collector of OTLP", "console"],
)
def test_a_daemon_imports_nothing_that_its_configuration_does_not_ask_for(
    tmp_path: Path, module: str, text: str, unused: set[str]
) -> None:
    path = tmp_path / "part.yaml"
    path.write_text(text)
    imported = _modules(STARTED, module, "--config", str(path), "--check")
    assert "structlog" in imported
    assert sorted(unused & imported) == []


def test_a_launcher_has_rich_for_its_tables_and_not_for_tracebacks(tmp_path: Path) -> None:
    wrong = tmp_path / "up.yaml"
    wrong.write_text("nobody: {}\n")
    imported = _modules(LAUNCHED, "up", "--dir", str(tmp_path), "--config", str(wrong))
    assert {"rich.table", "structlog"} < imported
    assert not {"pygments", "rich.traceback"} & imported


@pytest.mark.parametrize("command", [None, *cli.list_commands(click.Context(cli))])
def test_the_help_of_a_command_imports_no_library_that_only_its_work_needs(
    command: str | None,
) -> None:
    imported = _modules(HELP, *filter(None, [command]), "--help")
    assert "click" in imported
    assert sorted((LIBRARIES - PARTS.get(command or "", set())) & imported) == []


def test_an_installed_plugin_of_pydantic_and_rich_are_left_out_and_may_be_imported_later(
    tmp_path: Path,
) -> None:
    _install_plugin(tmp_path)
    imported = _modules(WITHIN, PYTHONPATH=str(tmp_path))
    assert {"structlog", "pydantic"} < imported
    assert not {"penstock_plugged", "rich"} & imported


def test_a_model_that_is_made_later_has_its_plugins(tmp_path: Path) -> None:
    _install_plugin(tmp_path)
    assert "penstock_plugged" in _modules(AFTERWARDS, PYTHONPATH=str(tmp_path))


def _install_plugin(directory: Path) -> None:
    metadata = directory / "plugged-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pydantic]\nplugged = penstock_plugged:plugin\n")
    (directory / "penstock_plugged.py").write_text("""
class Plugin:
    def new_schema_validator(self, *args, **kwargs):
        return None, None, None
plugin = Plugin()
""")


def test_no_collection_looks_at_what_was_imported() -> None:
    assert _modules(FROZEN) == {"frozen"}


@pytest.mark.parametrize(("asked", "found"), [({}, "system"), ({NAME: "mimalloc"}, "mimalloc")])
def test_arrow_takes_memory_by_malloc_unless_the_environment_says_otherwise(
    asked: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    assert _modules(POOL, **asked) == {found}
