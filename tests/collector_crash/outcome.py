"""What came of killing a collector: figures that add up over rounds, and what was not kept."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any, Final

_RUNS_PER_FAILPOINT: Final = 6
"""From so many on for each of them, one that never ended the process is one that is not passed."""


@dataclass
class Outcome:
    """Of one round, or of several.

    Attributes:
        runs: How often the collector was to end without a drain.
        judged: Those of them after which everything that arrived was held against the promises.
        deaths: How often it ended without a drain, for whatever reason.
        fired: How often each failpoint ended the collector.
        kills: SIGKILL at a random time, while it runs or starts.
        reloads: How often the configuration was read again, under load.
        torn: Tails that were torn after a kill.
        ready_s: From start to ready, the longest.
    """

    runs: int = 0
    judged: int = 0
    deaths: int = 0
    kills: int = 0
    kills_in_recovery: int = 0
    reloads: int = 0
    torn: int = 0
    ready_s: float = 0.0
    delivered: int = 0
    promised: int = 0
    quarantined: int = 0
    repeats: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        """Take in what came of another round."""
        for each in fields(self):
            mine, its = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(mine, its) if each.name == "ready_s" else mine + its)

    def silent(self, names: Collection[str]) -> list[str]:
        """Failpoints that should have fired in so many runs, and did not."""
        if self.runs < _RUNS_PER_FAILPOINT * len(names):
            return []
        return sorted(set(names) - self.fired.keys())

    def summary(self) -> dict[str, Any]:
        """For people."""
        return {**vars(self), "ready_s": round(self.ready_s, 1), "fired": dict(self.fired)}
