"""Counters of parts, as their statuses have them; a figure that is none counts as 0."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

Status = Mapping[str, Any]
"""The answer of a part at `/status`."""

CAME: Final = ("recovered", "received", "copied")
"""Counts of a collector's account on the left of the equation."""

WENT: Final = (
    "delivered", "filtered", "sampled", "deduplicated", "aggregated", "quarantined", "dropped",
    "held",
)  # fmt: skip
"""Counts of a collector's account on the right of the equation; `dropped` is by reason."""

_DROPPED: Final = "dropped_"
"""Begin of the names of drops in sums, before the reason."""


def number(value: object) -> int:
    """A count as a part says it; 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value < 2**63 else 0


def counts(value: object) -> dict[str, int]:
    """Counts by name; none for what is no object."""
    if not isinstance(value, Mapping):
        return {}
    return {str(name): number(count) for name, count in value.items()}


class AppKind(StrEnum):
    """The processes whose counts are added up."""

    SERVICE = "service"
    OTHERS = "others"
    """Processes that ended, of services beyond the collector's `max_senders`."""

    UNTRACKED = "untracked"
    """Connected processes beyond `max_senders`: what they emitted is not known."""

    UNREPORTED = "unreported"
    """Senders that report no account: what they emitted is not known."""


@dataclass(slots=True)
class AppFigures:
    """What processes report to a collector of their records, added up.

    Attributes:
        service: Their service; empty: its records have none, or they are of several.
        kind: The processes that they are.
        emitted: Records offered to the library.
        acked: Records that a collector has acknowledged.
        dropped: Records that the library dropped, by reason.
        queued: Records that waited in memory at the last report.
        spooled: Records that waited in a file then.
        difference: Records that the processes' accounts cannot explain; too many in one do not make
            up for too few in another.
        lost: Number of these that waited in the memory of a process that ended.
        acked_more: Records that processes count as acknowledged and that the collector did not
            acknowledge to them.
        acked_fewer: Records that it acknowledged to them and that they do not count so.
        reported_ns: Unix time of the newest report; 0: not known.
    """

    service: str = ""
    kind: AppKind = AppKind.SERVICE
    emitted: int = 0
    acked: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    queued: int = 0
    spooled: int = 0
    difference: int = 0
    lost: int = 0
    acked_more: int = 0
    acked_fewer: int = 0
    reported_ns: int = 0

    @classmethod
    def read(cls, account: Mapping[str, Any]) -> "list[AppFigures]":
        """The services in a source's account of applications, by name; then all others."""
        found = dict[str, AppFigures]()
        for facts in filter(None, map(_mapping, _mapping(account.get("senders")).values())):
            service = str(facts.get("service") or "")
            found.setdefault(service, cls(service)).add_sender(facts)
        for service, ended in _mapping(account.get("ended")).items():
            found.setdefault(service, cls(service)).add_sums(counts(ended))
        figures = [found[service] for service in sorted(found)]
        for kind in (AppKind.OTHERS, AppKind.UNTRACKED, AppKind.UNREPORTED):
            sums = counts(account.get(kind.value))
            if any(sums.values()):
                figures.append(cls(kind=kind))
                figures[-1].add_sums(sums)
        return figures

    def add_sender(self, facts: Mapping[str, Any]) -> None:
        """Add what a collector knows of one process."""
        self.emitted += number(facts.get("emitted"))
        self.acked += number(facts.get("acked"))
        self.dropped.update(counts(facts.get("dropped")))
        self.queued += number(facts.get("queued"))
        self.spooled += number(facts.get("spooled"))
        self.difference += abs(_signed(facts.get("difference")))
        self.lost += number(facts.get("lost"))
        unseen = _signed(facts.get("unseen"))
        self.acked_more += max(0, unseen)
        self.acked_fewer += max(0, -unseen)
        self.reported_ns = max(self.reported_ns, number(facts.get("time_ns")))

    def add_sums(self, sums: Mapping[str, int]) -> None:
        """Add sums of processes that a collector does not tell apart."""
        dropped = {
            name.removeprefix(_DROPPED): count
            for name, count in sums.items()
            if name.startswith(_DROPPED)
        }
        self.acked += sums.get("acked", 0)
        self.dropped.update(dropped)
        self.emitted += sums.get("emitted", sums.get("acked", 0) + sum(dropped.values()))

    @property
    def went(self) -> dict[str, int]:
        """Records by what became of them, of those dropped by reason."""
        waiting = {"queued": self.queued, "spooled": self.spooled}
        dropped = {f"dropped ({reason})": count for reason, count in self.dropped.items()}
        return {"acked": self.acked} | (waiting if self.is_reported else {}) | dropped

    @property
    def is_reported(self) -> bool:
        """True if the figures are those that the processes report, and not sums beside them."""
        return self.kind is AppKind.SERVICE


def _signed(value: object) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if is_whole else 0  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class CollectorFigures:
    """A collector's account of its records since it started, of all sources together.

    Attributes:
        came: Records by the names of `CAME`.
        went: Records by the names of `WENT`; of those dropped also ``dropped (REASON)`` in place of
            their sum.
        difference: Records that the sources' accounts cannot explain; too many in one account do
            not make up for too few in another.
        acked: Records that came from applications over the Unix socket.
        apps: What applications report of all their records; those that report nothing are last.
        repeated: Number of the delivered records that an earlier run had brought to the log.
        is_current: They are of the moment of the reading, and not from before it.
    """

    came: Mapping[str, int]
    went: Mapping[str, int]
    difference: int
    acked: int
    apps: Sequence[AppFigures] = ()
    repeated: int = 0
    is_current: bool = True

    @classmethod
    def read(cls, status: Status) -> "CollectorFigures | None":
        """The figures of a status; None: it has no account yet."""
        info = _mapping(status.get("info"))
        accounts = _mapping(info.get("reconciliation"))
        if not accounts:
            return None
        came, went = Counter[str](), Counter[str]()
        difference = acked = repeated = 0
        types = _types(status)
        for source, account in accounts.items():
            if not isinstance(account, Mapping):
                continue
            came.update({name: number(account.get(name)) for name in CAME})
            went.update({name: number(account.get(name)) for name in WENT if name != "dropped"})
            dropped = counts(account.get("dropped"))
            went.update({f"dropped ({reason})": count for reason, count in dropped.items()})
            repeated += number(account.get("repeated"))
            off = account.get("difference")
            difference += abs(int(off)) if isinstance(off, int | float) else 0
            if types.get(str(source), str(source)) == "unix":
                acked += number(account.get("received"))
        apps = list[AppFigures]()
        for account in _mapping(info.get("apps")).values():
            apps += AppFigures.read(_mapping(account))
        processes = [info, *map(_mapping, _mapping(info.get("workers")).values())]
        is_current = not any(number(process.get("age_ms")) for process in processes)
        return cls(dict(came), dict(went), difference, acked, apps, repeated, is_current)

    @property
    def sent(self) -> int:
        """Records that were delivered since it started, without those repeated."""
        return self.went.get("delivered", 0) - self.repeated

    @property
    def recovered(self) -> int:
        return self.came.get("recovered", 0)

    @property
    def held(self) -> int:
        return self.went.get("held", 0)


@dataclass(frozen=True, slots=True)
class LogFigures:
    """A logd's counts since it started, of all its streams but its own.

    Attributes:
        received: Records that arrived.
        went: Records by what became of them: stored, duplicates, refused by reason, lost, and those
            that are not committed yet.
        ends: Offset after the last committed record of each partition, by its label.
    """

    received: int
    went: Mapping[str, int]
    ends: Mapping[str, int]

    @classmethod
    def read(cls, status: Status) -> "LogFigures":
        """The figures of a status."""
        received, went, ends = 0, Counter[str](), dict[str, int]()
        for label, stage in _stages(status, "stream/"):
            if label.startswith("__"):
                continue
            detail = counts(stage.get("detail"))
            received += number(stage.get("received"))
            went["stored"] += number(stage.get("sent"))
            went["uncommitted"] += number(stage.get("lag"))
            for name in ("duplicates", "lost"):
                went[name] += detail.get(name, 0)
            for name, count in detail.items():
                if name.startswith("refused_"):
                    went[f"refused ({name.removeprefix('refused_')})"] += count
            watermark = _mapping(stage.get("detail")).get("high_watermark", -1)
            ends[label] = max(0, _signed(watermark) + 1)
        return cls(received, dict(went), ends)

    @property
    def stored(self) -> int:
        return self.went.get("stored", 0)


@dataclass(frozen=True, slots=True)
class SinkFigures:
    """A sink's counts since its job started.

    Attributes:
        received: Records that it read from the log; counted when their batch is finished.
        went: Records delivered, dead letters, and those that a route or transform left out.
        committed: Offsets up to which it is done, by stream; of several partitions their sum.
        log: Ends of the log by stream, as the job knows them.
    """

    received: int
    went: Mapping[str, int]
    committed: Mapping[str, int]
    log: Mapping[str, int]

    @classmethod
    def read(cls, status: Status) -> "dict[str, SinkFigures]":
        """The figures of every sink in a job's status."""
        info = _mapping(status.get("info"))
        sinks, log = _mapping(info.get("sinks")), counts(info.get("log"))
        found = {}
        for sink, stage in _stages(status, "sink/"):
            detail = counts(stage.get("detail"))
            went = {"delivered": number(stage.get("sent"))}
            went["dead letters"] = detail.get("dead_letters", 0)
            for name, count in detail.items():
                if name.startswith("left_out_"):
                    went[f"left out ({name.removeprefix('left_out_')})"] = count
            committed = counts(_mapping(sinks.get(sink)).get("committed"))
            found[sink] = cls(number(stage.get("received")), went, committed, log)
        return found


@dataclass(frozen=True, slots=True)
class Reading:
    """The statuses of all parts, asked within a moment.

    Attributes:
        statuses: Statuses by part; None: the part did not answer.
        problems: Why a part did not answer.
    """

    statuses: Mapping[str, Status | None]
    problems: Mapping[str, str] = field(default_factory=dict)

    def of(self, component: str) -> Iterator[tuple[str, Status]]:
        """Parts of a component that answered."""
        for part, status in self.statuses.items():
            if status is not None and status.get("component") == component:
                yield part, status

    def collectors(self) -> dict[str, CollectorFigures]:
        found = {part: CollectorFigures.read(status) for part, status in self.of("collector")}
        return {part: figures for part, figures in found.items() if figures is not None}

    def logs(self) -> dict[str, LogFigures]:
        return {part: LogFigures.read(status) for part, status in self.of("logd")}

    def sinks(self) -> dict[str, dict[str, SinkFigures]]:
        return {part: SinkFigures.read(status) for part, status in self.of("router")}

    def ends(self) -> dict[str, int]:
        """The committed end of each partition, as the node that is furthest knows it."""
        found: dict[str, int] = {}
        for figures in self.logs().values():
            for label, end in figures.ends.items():
                found[label] = max(end, found.get(label, 0))
        return found

    def started_ms(self, component: str) -> dict[str, list[int]]:
        """When the process of each part, and its workers, started; 0 where one does not say so."""
        found = {}
        for part, status in self.of(component):
            workers = _mapping(_mapping(status.get("info")).get("workers")).values()
            processes = [status, *map(_mapping, workers)]
            found[part] = [number(process.get("started_ms")) for process in processes]
        return found


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _stages(status: Status, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Stages whose names begin so, by the rest of the name."""
    stages = status.get("stages")
    for stage in stages if isinstance(stages, list | tuple) else ():
        name = str(_mapping(stage).get("name", ""))
        if name.startswith(prefix):
            yield name.removeprefix(prefix), stage


def _types(status: Status) -> dict[str, str]:
    """The types of a collector's sources by their names, as its stages say them."""
    found = {}
    stages = status.get("stages")
    for stage in stages if isinstance(stages, list | tuple) else ():
        name = str(_mapping(stage).get("name", "")).rpartition("source/")
        if name[1]:
            kind, _, source = name[2].partition(":")
            found[source or kind] = kind
    return found
