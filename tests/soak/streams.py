"""The streams of a soak: each asks for something else, and what must hold of it is checked."""

from collections.abc import Sequence
from typing import Any, Final

from tests.soak.checker import Deletes, StreamChecker
from tests.soak.compacted import CompactedChecker
from tests.soak.publishers import Publisher

MIB: Final = 1 << 20

_KEPT_BYTES: Final = 4 * MIB
_KEPT_MESSAGES: Final = 2000
_KEPT_S: Final = 3
_TOMBSTONE_S: Final = 20
"""Longer than a restart takes, so that a tombstone that goes early is missed at the next look."""

_GROWS: Final = {"segment_bytes_max": MIB // 4}
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
STREAMS: Final[list[dict[str, Any]]] = [
    {"name": name, "subject": f"soak.{name}.>", "segment_bytes_max": 64 * 1024} | options
    for name, options in _OPTIONS.items()
]
"""Small segments, so that they are closed, deleted, cleaned and merged during the kills."""

COMPACTED: Final = [str(stream["name"]) for stream in STREAMS if stream.get("compact")]

DAEMON: Final[dict[str, Any]] = {
    "retention_interval_s": 0.1,
    "compaction_interval_s": 0.1,
    "compaction_dirty_ratio": 0.1,
}
"""Options of the daemon, likewise."""

_SHRINKS: Final = 4
"""How much smaller frames become that are put together after retention counted their bytes."""

_UNDER_WAY_BYTES: Final = MIB // 4
"""What may be written and not committed, and so counts for retention and cannot be read yet."""

_DELETES: Final = {
    "kept": Deletes(bytes=_KEPT_BYTES // _SHRINKS - _UNDER_WAY_BYTES),
    "aged": Deletes(age_s=_KEPT_S),
    "counted": Deletes(messages=_KEPT_MESSAGES),
    "both": Deletes(messages=_KEPT_MESSAGES),
}


def make_checkers(publishers: Sequence[Publisher]) -> list[StreamChecker]:
    """One for each stream."""
    return [_checker(stream, publishers) for stream in STREAMS]


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
