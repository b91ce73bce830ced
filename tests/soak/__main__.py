"""`make soak`: many kills of a real logd under acked load, and a table of what came of it.

Exit codes: 0 every promise was kept, 1 one was broken, 128 and the signal's number when it was
interrupted.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import orjson

from tests.soak.soak import Soak

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """Run it; when a promise was broken the data stays where it is."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="kills (default 20)")
    parser.add_argument("--seed", type=int, help="default: drawn, and printed")
    parser.add_argument("--stopped-s", type=float, default=2.0, help="seconds of a SIGSTOP")
    parser.add_argument("--twin", help="a logd broken on purpose; see tests/soak/twins.py")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000  # noqa: TID251 - any
    _tell(f"soak: {arguments.runs} runs, seed {seed}")
    root = Path(".work")
    root.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="soak-", dir=root))
    program = [sys.executable, "-m", "tests.soak.twins", arguments.twin] if arguments.twin else None
    soak = Soak(
        directory,
        runs=arguments.runs,
        seed=seed,
        stopped_s=arguments.stopped_s,
        program=program,
        tell=_tell,
    )
    try:
        ended_by = asyncio.run(_until_signal(soak))
    except BaseException:
        _summarise(soak)
        print(f"soak: FAILED, seed {seed}; everything is left in {directory}", file=sys.stderr)
        raise
    _summarise(soak)
    shutil.rmtree(directory)
    if ended_by is None:
        return 0
    _tell(f"soak: ended by {ended_by.name} after {soak.figures.runs} runs; nothing is left of it")
    return 128 + ended_by


async def _until_signal(soak: Soak) -> signal.Signals | None:
    """Run it to its end, or to a signal; which one. Either way its processes have ended."""
    running = asyncio.create_task(soak.run())
    caught: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        caught.append(number)
        if len(caught) == 1:  # a second one must not end the ending
            running.cancel()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    await asyncio.wait({running})
    if caught:
        if not running.cancelled() and (error := running.exception()) is not None:
            _tell(f"soak: while it was ended: {error!r}")
        return caught[0]
    running.result()
    return None


def _summarise(soak: Soak) -> None:
    _tell(orjson.dumps(soak.figures.summary(), option=orjson.OPT_INDENT_2).decode())


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
