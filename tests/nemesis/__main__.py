"""`make nemesis`: faults of every kind, drawn at random, on a real cluster under load.

Operators move, drain and alter meanwhile, and a consumer group reads.

Exit codes: 0 every promise was kept, 1 one was broken; then everything is left where it is.
"""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from penstock.base.clock import SystemClock
from tests.nemesis.cluster import arena
from tests.nemesis.faults import Nemesis
from tests.nemesis.history import Verdict
from tests.nemesis.load import few, mixed
from tests.nemesis.operations import Operator

_STREAMS: Final = ("s", "t")
_FAULT_S: Final = (0.2, 4.0)
_MORE: Final = 0.35
"""Of a further fault before the ones before it end."""
_OPERATED: Final = 0.4
"""Of a command of an operator, before or beside a fault."""


def main() -> int:
    """Run it for a time, and judge what came of it."""
    parser = argparse.ArgumentParser(prog="make nemesis", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of faults (default 120)")
    parser.add_argument("--seed", type=int, help="default: drawn, and printed")
    parser.add_argument("--nodes", type=int, default=4)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000  # noqa: TID251 - any
    _tell(f"nemesis: {arguments.seconds:g} s, {arguments.nodes} nodes, seed {seed}")
    root = Path(".work")
    root.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="nemesis-", dir=root)).resolve()
    try:
        verdicts = _run(directory, arguments.seconds, arguments.nodes, random.Random(seed))
    except BaseException:
        _tell(f"nemesis: FAILED, seed {seed}; everything is left in {directory}")
        raise
    for stream, verdict in verdicts.items():
        _tell(f"{stream}: {dict(verdict.counts)}")
        for line in verdict.told:
            _tell(f"{stream}: {line}")
    if not all(verdict.sound for verdict in verdicts.values()):
        _tell(f"nemesis: a promise was broken, seed {seed}; everything is left in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


def _run(directory: Path, seconds: float, nodes: int, rng: random.Random) -> dict[str, Verdict]:
    clock = SystemClock()
    publishers = [*mixed("s", rng.getrandbits(32)), *few("t", rng.getrandbits(32))]
    with (
        arena(directory, size=nodes) as it,
        it.load(*_STREAMS, publishers=publishers, grouped="s") as load,
    ):
        nemesis, operator = Nemesis(it, "s", rng), Operator(it, "s", rng)
        begun_ns = clock.monotonic_ns()
        while (passed_s := (clock.monotonic_ns() - begun_ns) / 1e9) < seconds:
            load.goes_on()
            faults = [operator.operate()] if rng.random() < _OPERATED else []
            faults.append(nemesis.strike())
            _pause(rng.uniform(*_FAULT_S))
            while it.standing() and rng.random() < _MORE:
                operated = rng.random() < _OPERATED
                faults.append(operator.operate() if operated else nemesis.strike())
                _pause(rng.uniform(*_FAULT_S))
            it.recover()
            load.goes_on(1)
            silence_s = load.ledger.take_silence_s()
            _tell(
                f"{passed_s:6.1f} s: {'; '.join(faults)}; {load.ledger.records} records acked,"
                f" silent for {silence_s:.1f} s"
            )
        it.recover()
        operator.rest()
        _tell(f"{operator.done} commands of operators were done")
        return it.settle(load, *_STREAMS)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
