"""What `make check`, `make test`, `make test-all` and `make sim` run: every step, timed.

`check` looks at the tree itself: lint, types, and `tests/tree`. It runs all its steps even when one
fails, so that one run shows every finding. `test` takes every unit test, each simulation under
`TEST_SEEDS` seeds, and of the live tests those that docs/guarantees.md names first for a promise;
`rest` takes the other live tests; `all` takes everything. `--shard K/N` takes a part. No test gets
a second try.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.router.spark.session import ARCHIVE_PATH

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
TREES = ("specs", "collector", "logd", "router", "deploy", "tests", "examples")

CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("format", ("ruff", "format", "--check", "--quiet", ".")),
    ("lint", ("ruff", "check", "--quiet", ".")),
    ("types", ("mypy",)),
    ("imports", ("lint-imports",)),
    ("tidy, docs, contracts, wheel", ("pytest", "-q", "-n", "2", "--dist", "loadfile",
                                      "tests/tree")),
)  # fmt: skip

_ALL = ("tests/unit", "tests/raft", "tests/sim", "tests/live")
SUITES = {
    "unit": ("tests/unit", "tests/raft"),
    "sim": ("tests/sim",),
    "live": ("tests/live",),
    "test": (*_ALL, "--promised"),
    "rest": ("tests/live", "--rest"),
    "all": (*_ALL, "tests/tree"),
}
_SLOWEST = ("--durations", "20", "--durations-min", "1")


TEST_SEEDS = 200
"""So many seeds of each simulation run in `test`, from `PENSTOCK_SIM_SEED` on."""

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
"""A Spark that lives for seconds is over before what the second compiler makes faster has paid."""

_WORKERS_MAX = 6
"""More would want more memory than a small machine has: some hold a Spark of their own."""

NO_ENGINE = 69
"""The exit code with which deploy/local-images.sh says so."""


def main(arguments: Sequence[str]) -> int:
    """Run what is named; further arguments go to pytest."""
    os.chdir(ROOT)
    if seed := os.environ.get("SEED"):  # one seed of one simulation, as its failure printed it
        os.environ |= {"PENSTOCK_SIM_SEED": seed, "PENSTOCK_SIM_SEEDS": "1"}
    match list(arguments):
        case ["check", *_]:
            return _check()
        case ["containers", *extra]:
            return _containers(extra)
        case [suite, *extra] if suite in SUITES:
            return _suite(suite, extra)
        case _:
            sys.stderr.write(
                f"usage: python -m tests.run check|containers|{'|'.join(SUITES)} [pytest args]\n"
            )
            return 64


def _suite(suite: str, extra: Sequence[str]) -> int:
    """Run a suite."""
    if suite == "test":
        os.environ.setdefault("PENSTOCK_SIM_SEEDS", str(TEST_SEEDS))
    if "tests/live" in SUITES[suite]:
        if not ARCHIVE_PATH.exists():  # Spark starts without it, too
            _step("prepare", ("penstock", "router", "prepare"))
        os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
    return _step(suite, ("pytest", *_parallel(suite), *_SLOWEST, *SUITES[suite], *extra))


def _containers(extra: Sequence[str]) -> int:
    """Images and compose for real; where no engine can be had that is said, and is no failure."""
    code = subprocess.call(["deploy/local-images.sh"], stdin=subprocess.DEVNULL)
    if code == NO_ENGINE:
        sys.stdout.write("containers: NOT TESTED: no engine can run here, see above\n")
        return 0
    told = ("-p", "no:randomly", "-s", "tests/appliance")  # one story, and its figures
    return code or _step("containers", ("pytest", *told, *extra))


def _check() -> int:
    failed = [name for name, command in CHECKS if _step(name, command) != 0]
    sys.stdout.write(f"check: {'failed: ' + ', '.join(failed) if failed else 'all passed'}\n")
    return 1 if failed else 0


def _step(name: str, command: Sequence[str]) -> int:
    sys.stdout.write(f"── {name}: {' '.join(command)}\n")
    sys.stdout.flush()
    begun = time.monotonic()  # noqa: TID251 - how long a person waited
    code = subprocess.call([BIN / command[0], *command[1:]], stdin=subprocess.DEVNULL)
    took_s = time.monotonic() - begun  # noqa: TID251 - how long a person waited
    sys.stdout.write(f"── {name}: {'ok' if code == 0 else f'FAILED ({code})'} in {took_s:.1f} s\n")
    return code


def _parallel(suite: str) -> tuple[str, ...]:
    """Live tests wait for processes most of the time: there are more workers than cores.

    A file stays on one worker. Files are given out in the order in which `tests/conftest.py` puts
    them: the longest come first, so that no worker is left with one at the end.
    """
    if suite in ("unit", "sim"):
        return ()
    waiting = 2 if suite == "rest" else 1
    workers = min((os.cpu_count() or 1) + waiting, _WORKERS_MAX)
    return ("-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
