"""The tutorial of examples/tutorial, command by command."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

TUTORIAL = "examples.tutorial"


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, timeout=90, check=False
    )


def specs(verb: str, registry: Path, module: str) -> "subprocess.CompletedProcess[str]":
    return run(
        "penstock.specs", verb, "--registry", str(registry), "--module", f"{TUTORIAL}.{module}"
    )


def test_the_service_passes_its_own_tests(tmp_path: Path) -> None:
    done = run(
        "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'b'}",
        "examples/tutorial/test_service.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_service_needs_ten_lines_at_most() -> None:
    text = Path("examples/tutorial/service.py").read_text()
    marked = [line for line in text.splitlines() if line.rpartition("# ")[2].isdecimal()]
    assert len(marked) <= 10


def test_an_event_evolves_and_a_breaking_change_is_refused(tmp_path: Path) -> None:
    first = specs("publish", tmp_path, "telemetry")
    assert (first.returncode, first.stdout) == (0, "published bookshop.order_placed/1.0\n")
    assert specs("check", tmp_path, "telemetry").returncode == 0
    forgotten = specs("check", tmp_path, "telemetry_evolved")
    assert forgotten.returncode == 65
    assert "publish" in forgotten.stdout
    assert specs("publish", tmp_path, "telemetry_evolved").returncode == 0
    assert specs("check", tmp_path, "telemetry_evolved").returncode == 0
    broken = specs("check", tmp_path, "telemetry_broken")
    assert broken.returncode == 65
    assert "total" in broken.stdout
    assert "fix:" in broken.stdout
    assert specs("publish", tmp_path, "telemetry_broken").returncode == 65
    published = {path.parent.name for path in tmp_path.rglob("*.json")}
    assert published == {"bookshop.order_placed"}
