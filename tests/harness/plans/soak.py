"""kill -9 of a logd under acked load, again and again, over one data directory.

    make soak RUNS=200                  # half an hour
    make soak RUNS=20 ARGS="--twin epoch-kept"

Publishers of each kind retry as their protocol allows, on streams with small segments, retention,
compaction with keys and tombstones, and every sync. Now and then logd is stopped (SIGSTOP,
SIGTERM), killed while it starts, or its nats-server is killed. After each kill what was acked must
be at its offset, once, in order, byte for byte; retention and compaction delete what they may and
no more; epochs rise; `logd check` finds the data sound; the counters add up.
"""

import random
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any, Final

from tests.harness.checkers.stream import CompactedChecker, Deletes, StreamChecker
from tests.harness.faults import process
from tests.harness.ledger import Keys
from tests.harness.plan import Plan, Run
from tests.harness.publishers import Batches, Publisher, WithId, WithoutId, WithoutReply
from tests.harness.systems.logd import LogdUnderLoad
from tests.harness.twins.logd import TWINS

_MIB: Final = 1 << 20

_KEPT_BYTES: Final = 4 * _MIB
_KEPT_MESSAGES: Final = 2000
_KEPT_S: Final = 3
_TOMBSTONE_S: Final = 20
"""Longer than a restart takes, so that a tombstone that goes early is missed at the next look."""

_GROWS: Final = {"max_segment_bytes": _MIB // 4}
"""For streams that keep everything: a start opens each segment, and there come to be thousands."""

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": _GROWS,
    "ids": _GROWS,
    "batches": _GROWS,
    "lazy": _GROWS | {"fsync": "interval", "fsync_interval_ms": 50},
    "kept": {"retention": {"bytes": _KEPT_BYTES}},
    "aged": {"retention": {"age_s": _KEPT_S}},
    "counted": {"retention": {"messages": _KEPT_MESSAGES}},
    "compacted": {"compact": True, "tombstone_retention_s": _TOMBSTONE_S},
    "both": {
        "compact": True,
        "tombstone_retention_s": _TOMBSTONE_S,
        "retention": {"messages": _KEPT_MESSAGES},
    },
}
_STREAMS: Final[list[dict[str, Any]]] = [
    {"name": name, "subject": f"soak.{name}.>", "max_segment_bytes": 64 * 1024} | options
    for name, options in _OPTIONS.items()
]
"""Small segments, so that they are closed, deleted, cleaned and merged during the kills."""

_DAEMON: Final[dict[str, Any]] = {
    "retention_interval_s": 0.1,
    "compaction_interval_s": 0.1,
    "compaction_dirty_ratio": 0.1,
}
"""Options of the daemon, likewise."""

_SHRINKS: Final = 4
"""How much smaller frames become that are put together after retention counted their bytes."""

_UNDER_WAY_BYTES: Final = _MIB // 4
"""What may be written and not committed, and so counts for retention and cannot be read yet."""

_DELETES: Final = {
    "kept": Deletes(bytes=_KEPT_BYTES // _SHRINKS - _UNDER_WAY_BYTES),
    "aged": Deletes(age_s=_KEPT_S),
    "counted": Deletes(messages=_KEPT_MESSAGES),
    "both": Deletes(messages=_KEPT_MESSAGES),
}


_CLEAN_EVERY: Final = 25
_LOAD_S: Final = (0.05, 1.2)


def _publishers(seed: int) -> Sequence[Publisher]:
    rng = random.Random(seed)

    def dice() -> random.Random:
        return random.Random(rng.random())

    return [
        WithoutId("plain", "retried", dice()),
        WithoutReply("plain", "unanswered", dice()),
        WithId("ids", "single", dice()),
        WithId("ids", "many", dice(), window=8),
        WithId("ids", "keyed", dice(), keys=Keys.FEW),
        Batches("batches", "single", dice()),
        Batches("batches", "many", dice(), window=4),
        WithId("lazy", "single", dice()),
        Batches("lazy", "batches", dice(), window=2),
        WithId("kept", "many", dice(), window=4),
        Batches("kept", "batches", dice()),
        WithId("aged", "single", dice()),
        Batches("aged", "batches", dice()),
        WithId("counted", "many", dice(), window=4),
        Batches("counted", "batches", dice()),
        WithId("compacted", "single", dice(), keys=Keys.CHANGING),
        WithId("compacted", "many", dice(), window=4, keys=Keys.CHANGING),
        WithId("compacted", "keyless", dice(), slow=True),
        Batches("compacted", "batches", dice(), keys=Keys.CHANGING),
        WithId("both", "single", dice(), keys=Keys.CHANGING),
        Batches("both", "batches", dice(), window=2, keys=Keys.CHANGING),
    ]


def _checker(stream: dict[str, Any], publishers: Sequence[Publisher]) -> StreamChecker:
    name = str(stream["name"])
    mine = [publisher for publisher in publishers if publisher.stream == name]
    rules = {publisher.name: publisher.rule for publisher in mine}
    keys = {publisher.name: publisher.keys for publisher in mine}
    deletes = _DELETES.get(name)
    if stream.get("compact"):
        return CompactedChecker(
            name, rules, keys, deletes, tombstone_retention_s=stream["tombstone_retention_s"]
        )
    return StreamChecker(name, rules, keys, deletes)


def _system(run: Run) -> LogdUnderLoad:
    publishers = _publishers(run.seed)
    checkers = [_checker(stream, publishers) for stream in _STREAMS]
    return LogdUnderLoad(run, _STREAMS, publishers, checkers, **_DAEMON)


def _kill(system: LogdUnderLoad) -> str:
    """kill -9, at any time; now and then not before compaction has done something."""
    if system.run.number % _CLEAN_EVERY == 0:
        system.let_clean()
    return process.kill(system)


def _stop_and_check(system: LogdUnderLoad) -> str:
    told = process.stop_and_start(system)
    system.check()
    return told


_RARE: Final = (
    process.freeze_for_a_while,
    process.kill_nats,
    process.stop_nats,
    _stop_and_check,
)


def _rare(system: LogdUnderLoad) -> str:
    """Some of what may happen before the kill: each in the share of runs that `--rare` says."""
    told = []
    for fault in _RARE:
        if system.run.rng.random() < system.run.options.rare:
            told.append(fault(system))
            system.run.pause_between(*_LOAD_S)
    return ", ".join(told) or "nothing before"


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--frozen", type=float, default=2.0, help="seconds of a SIGSTOP (2)")
    parser.add_argument(
        "--rare",
        type=float,
        default=0.04,
        metavar="SHARE",
        help="of the runs in which a rarer fault comes before the kill (0.04 for each)",
    )


PLAN: Final = Plan(
    about=__doc__ or "",
    system=_system,
    calm_s=lambda run: run.rng.uniform(*_LOAD_S),
    also={_rare: 1.0},
    faults=lambda _: [_kill],
    runs=20,
    options=_options,
    twins={name: (sys.executable, "-m", "tests.harness.twins.logd", name) for name in TWINS},
)
