"""`make crash`: many kills of a real collector under load, and what came of it.

Exit codes: 0 every promise was kept, 1 one was broken; its data then stays where it is.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import orjson

from tests.collector_crash.crash import CrashRun


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="make crash", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="crashes (default 100)")
    parser.add_argument("--seed", type=int, help="default: drawn, and printed")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000  # noqa: TID251 - any
    print(f"crash: {arguments.runs} runs, seed {seed}", flush=True)
    root = Path(".work")
    root.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="collector-crash-", dir=root))
    began = time.monotonic()  # noqa: TID251
    crash = CrashRun(
        directory, runs=arguments.runs, seed=seed, tell=lambda text: print(text, flush=True)
    )
    try:
        crash.run()
    finally:
        summary = {"seconds": round(time.monotonic() - began), **crash.outcome.summary()}  # noqa: TID251
        print(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode(), flush=True)
    if crash.outcome.broken:
        print(f"crash: BROKEN, seed {seed}; see {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
