"""What `make check`, `make test` and `make sim` run: every step, timed, the first failure last.

`check` runs all its steps even when one fails, so that one run shows every finding.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
TREES = ("specs", "collector", "logd", "router", "deploy", "tests", "examples")

CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("format", ("ruff", "format", "--check", "--quiet", ".")),
    ("lint", ("ruff", "check", "--quiet", ".")),
    ("types", ("mypy",)),
    ("imports", ("lint-imports",)),
    ("tidy, docs, wheel", ("pytest", "-q", "tests/unit/test_tidy.py", "tests/unit/test_docs.py",
                           "tests/live/test_packaging.py")),
)  # fmt: skip

SUITES = {
    "unit": ("tests/unit", "tests/raft"),
    "sim": ("tests/sim",),
    "live": ("tests/live",),
    "all": ("tests/unit", "tests/raft", "tests/sim", "tests/live"),
}


def main(arguments: Sequence[str]) -> int:
    """Run what is named; further arguments go to pytest."""
    os.chdir(ROOT)
    if seed := os.environ.get("SEED"):  # one seed of one simulation, as its failure printed it
        os.environ |= {"PENSTOCK_SIM_SEED": seed, "PENSTOCK_SIM_SEEDS": "1"}
    match list(arguments):
        case ["check", *_]:
            return _check()
        case [suite, *extra] if suite in SUITES:
            return _step(suite, ("pytest", *_parallel(suite), *SUITES[suite], *extra))
        case _:
            sys.stderr.write(f"usage: python -m tests.run check|{'|'.join(SUITES)} [pytest args]\n")
            return 64


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
    """Live tests wait for processes most of the time: two workers, a file stays on one of them."""
    return ("-n", "2", "--dist", "loadfile") if suite in ("all", "live") else ()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
