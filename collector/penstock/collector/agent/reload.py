"""Reload: the result of reading the configuration again while the collector runs.

A reload checks the whole configuration, refuses changes of keys that need a restart, and starts and
stops the sources that changed. When all of that has succeeded, one step of the event loop exchanges
the rest. A failure before that step closes the new sources and starts the stopped ones again.

Spools, sequences and the checkpoint belong to no source and stay. A unit that was received before
keeps the validator it began with. A file source that changed gets a successor once delivery is done
with what the old one read; the successor begins at that position.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from penstock.collector.config import CollectorConfig
from penstock.service import ConfigError

RESTART: Final = (
    "name", "data_dir", "admin", "admin_access", "admin_hosts", "admin_socket", "tracing",
    "log_level",
)  # fmt: skip
"""Keys that hold from a start to the next."""

Result = Literal["applied", "unchanged", "refused", "partial"]
"""`partial`: some workers run by what was read, others by the configuration before."""


@dataclass(frozen=True, slots=True)
class Report:
    """One reload.

    Attributes:
        generation: Number of the configuration that runs now; 1 is that of the start.
        error: Why it was refused.
        exit_code: Exit code of a command that requested the reload: 78 for a wrong configuration.
        sources: Names by what became of them: added, changed, removed.
        keys: Others that changed.
        workers: Result of each worker that was to be restarted; `kept`: it was left as it was.
    """

    result: Result
    generation: int
    time_unix_nano: int
    error: str = ""
    exit_code: int = 0
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    workers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Reloads:
    """Reloads so far, for the status and the metrics."""

    generation: int = 1
    counts: Counter[Result] = field(default_factory=Counter)
    last: Report | None = None

    def note(self, report: Report) -> None:
        """A reload ended so."""
        self.generation = report.generation
        self.counts[report.result] += 1
        self.last = report

    def as_dict(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "counts": dict(self.counts),
            "last": None if self.last is None else asdict(self.last),
        }


def changed_keys(before: CollectorConfig, after: CollectorConfig) -> tuple[str, ...]:
    """Names of the keys that differ, `sources` left out.

    Raises:
        ConfigError: One of them holds until the process ends.
    """
    names = [
        name
        for name in CollectorConfig.model_fields
        if name != "sources" and getattr(before, name) != getattr(after, name)
    ]
    fixed = [name for name in names if name in RESTART]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)} cannot change while the collector runs",
            fix="restart it, or set back what it was",
        )
    return tuple(names)
