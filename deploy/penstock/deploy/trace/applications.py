"""Records that applications did not hand over: how many, and why; nobody knows which.

The spec library keeps no record that it drops. It counts them by reason, and reports its counts
with each batch to a collector, whose status has them (`penstock.deploy.account`). The counts begin
when a process starts and are from its last batch. The time that a question names does not bound
them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.base.pluralize import pluralize
from penstock.deploy.account.figures import AppFigures, AppKind, CollectorFigures

APPLICATIONS_MAX: Final = 20
"""Applications that an answer names; further ones are added up."""


@dataclass(slots=True)
class NotHandedOver:
    """Records that applications did not hand over to a collector.

    Attributes:
        collector: The collector that they report to; empty: several.
        whose: Whose records they are, for people.
        service: The service, as records have it; None: it is not one alone.
        dropped: Records that the library dropped, by reason.
        queued: Records that waited in memory at the last report.
        spooled: Records that waited in a file then.
        lost: Records that waited in the memory of a process that ended.
        unexplained: Records that the applications' accounts cannot explain beside these.
        reported_ns: Unix time of the newest report; 0: not known.
    """

    collector: str
    whose: str
    service: str | None
    dropped: Counter[str] = field(default_factory=Counter)
    queued: int = 0
    spooled: int = 0
    lost: int = 0
    unexplained: int = 0
    reported_ns: int = 0

    @property
    def total(self) -> int:
        """Number of the records."""
        waiting = self.queued + self.spooled
        return self.dropped.total() + waiting + self.lost + self.unexplained

    def add(self, other: "NotHandedOver") -> None:
        """Add the records of another application."""
        self.dropped.update(other.dropped)
        self.queued += other.queued
        self.spooled += other.spooled
        self.lost += other.lost
        self.unexplained += other.unexplained
        self.reported_ns = max(self.reported_ns, other.reported_ns)

    def as_json(self) -> dict[str, Any]:
        """The counts for programs."""
        return {
            "collector": self.collector or None,
            "whose": self.whose,
            "service": self.service,
            "dropped": dict(self.dropped),
            "queued": self.queued,
            "spooled": self.spooled,
            "lost": self.lost,
            "unexplained": self.unexplained,
            "reported_ns": self.reported_ns or None,
        }

    @property
    def sentence(self) -> str:
        """The counts for people."""
        parts = []
        if self.dropped:
            most = ", ".join(f"{why} {count:,}" for why, count in self.dropped.most_common())
            parts.append(f"{self.dropped.total():,} dropped by the library ({most})")
        if self.lost:
            parts.append(f"{self.lost:,} lost with a process that ended")
        if self.queued:
            parts.append(f"{self.queued:,} in memory")
        if self.spooled:
            parts.append(f"{self.spooled:,} in a file")
        if self.unexplained:
            parts.append(f"{self.unexplained:,} not explained")
        place = f", which reports to {self.collector}," if self.collector else ""
        return f"{self.whose}{place} did not hand over {', '.join(parts)}"


def not_handed_over(
    collectors: Mapping[str, Mapping[str, Any]], service: str = ""
) -> list[NotHandedOver]:
    """The applications that did not hand over all records, those with the most first.

    Args:
        collectors: Status of each collector, by the part's name.
        service: The service in question; empty: any. Counts that may be its are included.
    """
    found = [one for one in _all(collectors) if service in ("", one.service) or not one.service]
    found.sort(key=lambda one: -one.total)
    rest = found[APPLICATIONS_MAX:]
    return [*found[:APPLICATIONS_MAX], *_added(rest)]


def _all(collectors: Mapping[str, Mapping[str, Any]]) -> Iterator[NotHandedOver]:
    for part, status in collectors.items():
        figures = CollectorFigures.read(status)
        for app in [] if figures is None else figures.apps:
            counted = _read(part, app)
            if counted.total:
                yield counted


_WHOSE: Final = {
    AppKind.OTHERS: "ended applications beyond max_senders",
    AppKind.UNTRACKED: "applications beyond max_senders",
    AppKind.UNREPORTED: "applications that report no account",
}
"""The applications that a collector does not tell apart."""


def _read(collector: str, app: AppFigures) -> NotHandedOver:
    whose = _WHOSE.get(app.kind, app.service or "an application without a service")
    service = app.service or None
    return NotHandedOver(
        collector,
        whose,
        service,
        app.dropped,
        app.queued,
        app.spooled,
        app.lost,
        max(0, app.difference - app.lost),
        app.reported_ns,
    )


def _added(rest: Iterable[NotHandedOver]) -> Iterator[NotHandedOver]:
    together, number = NotHandedOver("", "", None), 0
    for number, one in enumerate(rest, 1):  # noqa: B007 - the number of all
        together.add(one)
    if number:
        together.whose = pluralize(number, "more application", form=",")
        yield together
