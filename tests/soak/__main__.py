"""`make soak`: many kills of a real logd under acked load, and a table of what came of it."""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

import orjson

from tests.soak.soak import Soak


def main() -> int:
    """Run it; 1 when a promise was broken, and the data then stays where it is."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="kills (default 20)")
    parser.add_argument("--seed", type=int, help="default: drawn, and printed")
    parser.add_argument("--stopped-s", type=float, default=2.0, help="seconds of a SIGSTOP")
    parser.add_argument("--twin", help="a logd broken on purpose; see tests/soak/twins.py")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000  # noqa: TID251 - any
    print(f"soak: {arguments.runs} runs, seed {seed}")
    root = Path(".work")
    root.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="soak-", dir=root))
    program = [sys.executable, "-m", "tests.soak.twins", arguments.twin] if arguments.twin else None
    soak = Soak(
        directory, runs=arguments.runs, seed=seed, stopped_s=arguments.stopped_s, program=program
    )
    try:
        figures = asyncio.run(soak.run())
    except BaseException:
        print(f"soak: FAILED, seed {seed}; everything is left in {directory}", file=sys.stderr)
        raise
    shutil.rmtree(directory)
    print(orjson.dumps(figures.summary(), option=orjson.OPT_INDENT_2).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
