"""What a soak came to: for people, who watch it, and as JSON at the end."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

_ROW: Final = re.compile(r"row='(\w)'")
"""Of the recovery table (`penstock.logd.store.recovery`), in a finding as it is logged."""


@dataclass
class Figures:
    """Counts and times.

    Attributes:
        runs: That were made.
        start_s: From the start of each process until it was ready.
        events: What was done to the processes, and what checks found, how often.
        exits: Exit codes of the processes.
        publishers: What publishers were told.
        records: Acked records by what became of them, and others.
        upkeep: What compaction and retention did, by the log of the processes.
    """

    runs: int = 0
    start_s: list[float] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    publishers: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    upkeep: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """For people and for JSON; seconds."""
        ordered = sorted(self.start_s)
        return {
            "runs": self.runs,
            "restarts": len(ordered),
            "restart_p50_s": round(ordered[len(ordered) // 2], 3) if ordered else None,
            "restart_max_s": round(ordered[-1], 3) if ordered else None,
            "records": dict(sorted(self.records.items())),
            "publishers": dict(sorted(self.publishers.items())),
            "upkeep": dict(sorted(self.upkeep.items())),
            "events": dict(sorted(self.events.items())),
            "exit_codes": dict(sorted(self.exits.items())),
        }


def upkeep_of(log: Path) -> Counter[str]:
    """What retention and compaction did, as logd's log tells it over all its lives."""
    counts: Counter[str] = Counter()
    for line in _json_lines(log):
        match str(line.get("event")):
            case "segments rewritten":
                counts["segments rewritten or merged"] += int(line["segments"])
                counts["records compacted away"] += int(line["records_removed"])
            case "segment deleted":
                counts["segments deleted by retention"] += 1
            case "log recovered":
                for row in _ROW.findall(str(line["finding"])):
                    counts[f"recovery, row {row}"] += 1
            case "compaction failed" | "compaction met a bug" | "damaged frame" | "stream failed":
                counts[f"complaint: {line['event']}"] += 1
            case _:
                pass
    return counts


def _json_lines(path: Path) -> Iterable[dict[str, Any]]:
    """The lines that are whole: a kill may cut one short."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(found, dict):
            yield found
