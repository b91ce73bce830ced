"""A plan that is interrupted: nothing of it goes on, and nothing is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def soak(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A soak that keeps its files below a directory; its output is in the file `out` there."""
    with (directory / "out").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness", "soak", "--seed", "3", *arguments],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in others(directory):
            os.kill(pid, signal.SIGKILL)


def others(directory: Path) -> list[int]:
    """Processes that run with files below a directory, or in it."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != os.getpid():
            try:
                own = str(directory) in str((path / "cwd").readlink())
            except OSError:  # ended, or somebody else's
                continue
            if own:
                found.append(int(path.name))
    return found


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGTERM, "soak: seed 3"), (signal.SIGINT, "run 1, ")],
    ids=["SIGTERM while logd starts", "SIGINT after a run"],
)
def test_an_interrupted_soak_ends_what_it_started_and_removes_it(
    tmp_path: Path, number: signal.Signals, said: str
) -> None:
    with soak(tmp_path, "--runs", "99") as process:
        output = tmp_path / "out"
        wait_until(lambda: said in output.read_text() and len(others(tmp_path)) > 2)
        process.send_signal(number)
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number, output.read_text()[-3000:]
        assert others(tmp_path) == []
    assert list((tmp_path / ".work").iterdir()) == []
    assert f"soak: ended by {number.name}" in output.read_text()
