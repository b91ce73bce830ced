"""`make router-kills`: many kills of a real job under load, and what its three sinks hold then.

Exit codes: 0 every promise was kept, 1 one was broken; its data then stays where it is.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import orjson

from tests.router_kills.kills import KillRun


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="make router-kills", description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="kills (default 50)")
    parser.add_argument("--seed", type=int, help="default: drawn, and printed")
    parser.add_argument("--cluster", action="store_true", help="on a Spark cluster of this host")
    parser.add_argument("--store", action="store_true", help="lose the directory, not the store")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000  # noqa: TID251 - any
    where = "a cluster" if arguments.cluster else "one machine"
    print(f"kills: {arguments.runs} on {where}, seed {seed}", flush=True)
    root = Path(".work")
    root.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="router-kills-", dir=root)).resolve()
    began = time.monotonic()  # noqa: TID251
    kills = KillRun(
        directory,
        runs=arguments.runs,
        seed=seed,
        cluster=arguments.cluster,
        store=arguments.store,
        tell=lambda text: print(text, flush=True),
    )
    try:
        kills.run()
    finally:
        summary = {"seconds": round(time.monotonic() - began), **kills.outcome.summary()}  # noqa: TID251
        print(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode(), flush=True)
    if kills.outcome.broken:
        print(f"kills: BROKEN, seed {seed}; see {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
