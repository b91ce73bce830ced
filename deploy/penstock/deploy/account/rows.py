"""The account as rows: what came, what became of it, the difference, and what it means.

A part counts its own records in one process, and its counts belong together. Counts of two parts
are read at different moments, so that a difference may be what is on its way. The rules, which
never call what is in flight a fault:

    apps                 emitted = acked + dropped by reason + queued + spooled, of each service at
                         a collector. Each process reports its counts with every batch, and they
                         belong together; its last batch is queued until the collector has it. What
                         waited in the memory of a process that ended is missing, for an hour; then
                         it counts as dropped (`process_ended`). Senders that report no account have
                         a row with what they dropped and the collector acked.
    collector            came = went + held, at one moment of its event loop: any difference is a
                         fault.
    collectors → log     A record counts as delivered once logd has acked it, so what was delivered
                         by the first reading is in the log by the second. Records that were held
                         when the comparison began may have been stored before, which is the only
                         slack. Records that a collector meets again after a restart, and that it
                         had delivered before, are left out. More in the log than was delivered
                         comes from other publishers, or from before a restart; it is a fault only
                         where there can be neither.
    log                  received = stored + duplicates + refused + lost + uncommitted. logd may be
                         read between two of its counters: a difference up to what it received
                         between the readings is settling.
    log → sink           No sink is beyond the log's end: what a sink had read by the first reading
                         is in the log at the second.
    sink                 read = delivered + dead letters + left out. Records of a batch in work are
                         delivered before they count as read, and some are delivered again after a
                         failure, so delivered may be more; less is a fault.

Counts begin when a process starts. Where a comparison reaches over a restart it is not made, or
begins again, and the row says so: `unknown` is neither a fault nor a proof.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, Final

from penstock.base.pluralize import pluralize
from penstock.deploy.account.figures import (
    AppFigures,
    AppKind,
    CollectorFigures,
    LogFigures,
    Reading,
    SinkFigures,
    counts,
)

APPS: Final = "apps"
APPS_MAX: Final = 20
"""Applications of a collector that have a row each; further ones share one."""

LOG_TO_SINK: Final = "log → sink"
COLLECTORS_TO_LOG: Final = "collectors → log"
_SILENT: Final = "part"
_ALWAYS: Final = frozenset({"received", "delivered", "stored", "emitted", "acked", "read"})
"""Counts that a row's statement names though they are 0."""


class State(StrEnum):
    """The meaning of a row's difference."""

    BALANCED = "balanced"
    SETTLING = "settling"
    """It differs by no more than what is on its way; the next reading decides."""

    UNKNOWN = "unknown"
    """It cannot be compared; the note says why."""

    OFF = "off"


@dataclass(frozen=True, slots=True)
class Row:
    """One equation of the account.

    Attributes:
        stage: The equation, as in `collector` or `collectors → log`.
        part: The part, or the host, whose counts it has; empty: it is about several.
        came: Records by where they came from.
        went: Records by what became of them.
        difference: Records that `went` lacks; negative: it has too many.
        state: Meaning of the difference.
        note: What there is to say beside the counts.
    """

    stage: str
    part: str
    came: Mapping[str, int]
    went: Mapping[str, int]
    difference: int = 0
    state: State = State.BALANCED
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.stage} {self.part}".rstrip()

    @property
    def statement(self) -> str:
        """The equation in words."""
        if not self.came and not self.went:
            return self.note
        left, right = _terms(self.came), _terms(self.went)
        equation = f"{left} = {right}" if self.state is State.BALANCED else f"{left} : {right}"
        if self.state is State.OFF or (self.difference and self.state is State.SETTLING):
            missing = f"{abs(self.difference):,}"
            equation += f"; {missing} {'missing' if self.difference > 0 else 'too many'}"
        return f"{equation}; {self.note}" if self.note else equation

    @property
    def is_silent(self) -> bool:
        """True if the row is about a part that did not answer."""
        return self.stage == _SILENT

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "statement": self.statement}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Row":
        """Read what `as_dict` wrote."""
        return cls(
            str(document["stage"]),
            str(document["part"]),
            counts(document["came"]),
            counts(document["went"]),
            int(document["difference"]),
            State(document["state"]),
            str(document["note"]),
        )


def _terms(counts: Mapping[str, int]) -> str:
    shown = {name: count for name, count in counts.items() if count or name in _ALWAYS}
    return " + ".join(f"{count:,} {name}" for name, count in (shown or counts).items())


@dataclass(frozen=True, slots=True)
class Start:
    """The moment at which the comparison of collectors and log began.

    Attributes:
        ends: Committed ends of partitions, read first.
        sent: Records that each collector had delivered, read after that.
        started_ms: When the processes of each collector started, whose counts these are.
        held: Records that collectors held then.
    """

    ends: Mapping[str, int]
    sent: Mapping[str, int]
    started_ms: Mapping[str, Sequence[int]]
    held: int = 0

    @classmethod
    def between(cls, before: Reading, after: Reading) -> "Start | None":
        """A start of two readings; None: nothing is known of the log or of any collector.

        Nor is there one where a collector was too busy to count: what it had delivered by the
        second reading is not known.
        """
        ends, collectors = before.ends(), after.collectors()
        if not ends or not collectors or not all(one.is_current for one in collectors.values()):
            return None
        return cls(
            ends,
            {part: figures.sent for part, figures in collectors.items()},
            after.started_ms("collector"),
            sum(figures.held for figures in collectors.values()),
        )

    def holds(self, reading: Reading) -> bool:
        """Return whether no process has started again since, and no part has come or gone."""
        collectors, ends = reading.collectors(), reading.ends()
        return (
            collectors.keys() == self.sent.keys()
            and reading.started_ms("collector") == self.started_ms
            and all(one.sent >= self.sent[part] for part, one in collectors.items())
            and all(ends.get(label, 0) >= end for label, end in self.ends.items())
        )


def rows_of(before: Reading | None, after: Reading, start: Start | None = None) -> list[Row]:
    """The account, in the order of the data path.

    Args:
        before: The reading before `after`, of which each part answered before any was asked again;
            None: there is none, and nothing is compared that needs two.
        after: The last reading.
        start: Where collectors and log are compared from; None: from the start of the processes.
    """
    rows = [*_silent(after)]
    collectors = after.collectors()
    rows += [row for part, figures in collectors.items() for row in apps_rows(part, figures)]
    rows += [collector_row(part, figures) for part, figures in collectors.items()]
    earlier = {} if before is None else before.logs()
    logs = after.logs()
    if collectors and logs:
        rows.append(_collectors_to_log(before, after, start))
    rows += [log_row(part, earlier.get(part), figures) for part, figures in logs.items()]
    sinks_before = {} if before is None else before.sinks()
    for part, sinks in after.sinks().items():
        for sink, figures in sinks.items():
            name = f"{part}/{sink}"
            if logs and (earlier_sink := sinks_before.get(part, {}).get(sink)) is not None:
                rows.append(log_to_sink_row(name, earlier_sink, figures, after.ends()))
            rows.append(sink_row(name, figures))
    return rows


def _silent(reading: Reading) -> Iterator[Row]:
    for part, status in reading.statuses.items():
        if status is None:
            why = reading.problems.get(part) or "it does not answer"
            yield Row(_SILENT, part, {}, {}, state=State.UNKNOWN, note=f"not asked: {why}")


def apps_rows(part: str, figures: CollectorFigures) -> Iterator[Row]:
    """The applications of a collector, as these report: those that are off, and the first others.

    Applications beyond `APPS_MAX` share a row, and so do those that are not told apart.
    """
    rows = [_app_row(part, app) for app in figures.apps if app.is_reported]
    rows.sort(key=lambda row: row.state is not State.OFF)
    yield from rows[:APPS_MAX]
    if others := rows[APPS_MAX:]:
        came, went = _added(row.came for row in others), _added(row.went for row in others)
        off = [row for row in others if row.state is State.OFF]
        difference = sum(row.difference for row in off)
        state = State.OFF if off else State.BALANCED
        note = pluralize(len(others), "more application", form=",")
        if off:
            note += f", of which {len(off)} do not balance"
        yield Row(APPS, f"{part}/…", came, went, difference, state, note)
    for kind, (name, note) in _TOGETHER.items():
        if apps := [app for app in figures.apps if app.kind is kind]:
            emitted = {"emitted": sum(app.emitted for app in apps)}
            said = note if rows or name else ""
            yield Row(APPS, f"{part}{name}", emitted, _added(app.went for app in apps), note=said)


_TOGETHER: Final = {
    AppKind.OTHERS: (
        "/ended processes",
        "of ended processes of further services; the source's max_senders tells as many apart",
    ),
    AppKind.UNTRACKED: (
        "/further processes",
        "of processes beyond the source's max_senders, whose own accounts are not kept",
    ),
    AppKind.UNREPORTED: ("", "of others, that do not report"),
}
"""Processes that are not told apart: how their row is called, and what it says."""


def _added(counted: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of counts by name."""
    sums = Counter[str]()
    for one in counted:
        sums.update(one)
    return dict(sums)


def _app_row(part: str, app: AppFigures) -> Row:
    notes = []
    if app.lost:
        notes.append(f"{app.lost:,} were in the memory of a process that ended")
    for count, which in ((app.acked_more, "more"), (app.acked_fewer, "fewer")):
        if count:
            notes.append(
                f"the application counts {pluralize(count, 'record', form=',')} {which} as"
                " acknowledged than this collector acknowledged to it"
            )
    difference = app.difference or app.acked_more + app.acked_fewer
    state = State.OFF if difference else State.BALANCED
    name = f"{part}/{app.service or 'without a service'}"
    return Row(APPS, name, {"emitted": app.emitted}, app.went, difference, state, "; ".join(notes))


def collector_row(part: str, figures: CollectorFigures) -> Row:
    """A collector's own account."""
    state = State.OFF if figures.difference else State.BALANCED
    return Row("collector", part, figures.came, figures.went, figures.difference, state)


def log_row(part: str, before: LogFigures | None, after: LogFigures) -> Row:
    """A logd's own account."""
    difference = after.received - sum(after.went.values())
    moved = 0 if before is None else abs(after.received - before.received)
    if not difference:
        state = State.BALANCED
    elif before is None or abs(difference) <= moved:
        state = State.SETTLING
    else:
        state = State.OFF
    return Row("log", part, {"received": after.received}, after.went, difference, state)


def sink_row(name: str, figures: SinkFigures) -> Row:
    """A sink's own account."""
    over = sum(figures.went.values()) - figures.received
    note = f"{pluralize(over, 'record', form=',')} in work or delivered again" if over > 0 else ""
    state = State.OFF if over < 0 else State.BALANCED
    return Row("sink", name, {"read": figures.received}, figures.went, max(0, -over), state, note)


def log_to_sink_row(
    name: str, before: SinkFigures, after: SinkFigures, ends: Mapping[str, int]
) -> Row:
    """A sink's place in the log.

    Args:
        name: Job and sink.
        before: The sink's figures, read before `ends`.
        after: The sink's figures.
        ends: Committed ends of partitions.
    """
    found = Counter[str]()
    for label, end in ends.items():
        stream, _, partition = label.rpartition("/")
        found[stream if partition.isdecimal() and stream else label] += end
    streams = after.committed.keys()
    if any(before.log.get(stream, 0) > found[stream] for stream in streams):
        note = "not compared: not every node that has its streams answered, or one is behind"
        return Row(LOG_TO_SINK, name, {}, {}, state=State.UNKNOWN, note=note)
    beyond = sum(max(0, before.committed.get(stream, 0) - found[stream]) for stream in streams)
    read = sum(min(after.committed[stream], found[stream]) for stream in streams)
    total = sum(found[stream] for stream in streams)
    note = "the log has lost records that the sink has" if beyond else ""
    state = State.OFF if beyond else State.BALANCED
    went = {"read": read, "waiting": total - read}
    return Row(LOG_TO_SINK, name, {"in the log": total}, went, -beyond, state, note)


def _collectors_to_log(before: Reading | None, after: Reading, start: Start | None) -> Row:
    if before is None:
        return _not_compared("there is one reading yet")
    if start is not None:
        return _since(start, before, after)
    first = min(chain(*after.started_ms("collector").values()))
    last = max(chain(*after.started_ms("logd").values()))
    logs, collectors, earlier = after.logs(), after.collectors(), before.collectors()
    why = ""
    if len(logs) > 1:
        why = "of several nodes only a console that runs compares them"
    elif not first or not last or last > first:
        why = "logd started after a collector; a console compares them since its own start"
    elif not earlier.keys() <= collectors.keys():
        why = "a collector went away meanwhile"
    if why:
        return _not_compared(why)
    delivered = {part: figures.sent for part, figures in earlier.items()}
    stored = sum(figures.stored for figures in logs.values())
    recovered = sum(figures.recovered for figures in collectors.values())
    return hop_row(delivered, stored, held=recovered, waiting=_waiting(before, after))


def _since(start: Start, before: Reading, after: Reading) -> Row:
    if not start.holds(before) or not start.holds(after):
        return _not_compared("a part came, went or was restarted; it begins again")
    delivered = {
        part: figures.sent - start.sent[part] for part, figures in before.collectors().items()
    }
    stored = sum(end - start.ends.get(label, 0) for label, end in after.ends().items())
    return hop_row(delivered, stored, held=start.held, waiting=_waiting(before, after))


def _not_compared(why: str) -> Row:
    return Row(COLLECTORS_TO_LOG, "", {}, {}, state=State.UNKNOWN, note=f"not compared: {why}")


def _waiting(before: Reading, after: Reading) -> int:
    """Records that collectors hold now, or have delivered between the readings."""
    earlier = before.collectors()
    return sum(
        figures.held + max(0, figures.sent - earlier[part].sent if part in earlier else 0)
        for part, figures in after.collectors().items()
    )


def hop_row(
    delivered: Mapping[str, int], stored: int, *, held: int, waiting: int, is_shared: bool = True
) -> Row:
    """Compare what collectors delivered with what the log has stored since.

    Args:
        delivered: Records by collector, without those repeated, read before `stored`.
        stored: Records that the log got meanwhile.
        held: Records that collectors held at the start: the log may have had them before.
        waiting: Records that collectors hold now, or have delivered since `delivered` was read: the
            log may have them already.
        is_shared: Whether others may publish, too.
    """
    total = sum(delivered.values())
    missing, over = total - held - stored, stored - total
    part = next(iter(delivered)) if len(delivered) == 1 else ""
    note, state, difference = "", State.BALANCED, 0
    if missing > 0:
        state, difference = State.OFF, missing
    elif over > waiting and not is_shared:
        state, difference = State.OFF, -over
    elif over > waiting:
        more = pluralize(over - waiting, "record", form=",")
        note = (
            f"{more} more than these collectors delivered: of other publishers, or from before a"
            " restart"
        )
    elif over:
        note = f"{abs(over):,} on the way" if over > 0 else f"{-over:,} were there before"
    return Row(
        COLLECTORS_TO_LOG, part, {"delivered": total}, {"stored": stored}, difference, state, note
    )


def worst(rows: Sequence[Row]) -> State:
    """The state of the account: off before unknown before settling before balanced."""
    order = (State.OFF, State.UNKNOWN, State.SETTLING)
    found = {row.state for row in rows}
    return next((state for state in order if state in found), State.BALANCED)
