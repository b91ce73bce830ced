"""Verdict of the demo: each stage has received what the one before it accepted.

The rows are those of `penstock.deploy.account.rows`. The demo has ended its parts when it compares,
and knows more than their counters: what the app says, the log before and after, and the files.

    app → collector       acked by the app = received from it
    collector             its own account
    collectors → log      delivered = added to the log
    log → Parquet         offsets of each stream = rows, dense and unique
    log → console         rows that tell of a problem = records that the route `problems` led there
    app → Parquet         acked by the app = rows of this run of it
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.deploy.account.figures import CollectorFigures
from penstock.deploy.account.rows import COLLECTORS_TO_LOG, Row, State, collector_row, hop_row

Counts = Mapping[str, int]

_RESTARTED = "not compared: restarted, so its counts began again"
_NO_ACCOUNT = "the collector left no account of its records"
_NOTHING_SENT = "the app was stopped before it sent anything"


class Span(NamedTuple):
    """Offsets of a stream: `start` inclusive, `end` exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Landed:
    """One stream's rows in the Parquet files.

    Attributes:
        rows: All of them.
        offsets: Distinct ones among them.
        first: The lowest offset; 0 without rows.
        last: The highest offset; -1 without rows.
    """

    rows: int = 0
    offsets: int = 0
    first: int = 0
    last: int = -1


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of each stage of one run.

    Attributes:
        app_acked: Records that the example app saw acknowledged; None when it did not say.
        app_landed: Rows in the Parquet files that this run of the app emitted.
        from_app: Records that the collector received from the app; None when not known.
        collector: Its account of this run; None when not known.
        log_before: The log before the collector started, by stream.
        log_after: The log after the collector ended.
        landed: The Parquet files, all runs, by stream.
        problems_landed: Rows among them that tell of a problem.
        problems_shown: Records that the console sink has counted, all runs.
        restarted: Parts that were restarted: their counts began again in between.
        shared_log: Others may publish to the streams too.
    """

    app_acked: int | None
    app_landed: int
    from_app: int | None
    collector: CollectorFigures | None
    log_before: Mapping[str, Span]
    log_after: Mapping[str, Span]
    landed: Mapping[str, Landed]
    problems_landed: int = 0
    problems_shown: int = 0
    restarted: frozenset[str] = field(default_factory=frozenset)
    shared_log: bool = False


def reconcile(figures: Figures) -> list[Row]:
    """Compare the stages in the order of the data path."""
    return [
        _app(figures),
        _collector(figures),
        _log(figures),
        *(_lake(name, figures) for name in figures.log_after),
        _console(figures),
        _end_to_end(figures),
    ]


def _compared(stage: str, part: str, came: Counts, went: Counts, note: str = "") -> Row:
    """A row of two figures that must be equal."""
    difference = sum(came.values()) - sum(went.values())
    state = State.OFF if difference else State.BALANCED
    return Row(stage, part, came, went, difference, state, note)


def _said(stage: str, state: State, note: str, part: str = "") -> Row:
    """A row that has nothing to compare."""
    return Row(stage, part, {}, {}, state=state, note=note)


def _console(figures: Figures) -> Row:
    landed, shown = figures.problems_landed, figures.problems_shown
    return _compared("log → console", "problems", {"rows": landed}, {"shown": shown})


def _end_to_end(figures: Figures) -> Row:
    """Holds across restarts of every part but the app: rows are told apart by its instance."""
    stage, acked = "app → Parquet", figures.app_acked
    if "app" in figures.restarted:
        return _said(stage, State.UNKNOWN, _RESTARTED)
    if acked is None and figures.from_app == 0:
        return _said(stage, State.BALANCED, _NOTHING_SENT)
    if acked is None:
        return _said(stage, State.OFF, "the app did not say how many records were acked")
    return _compared(stage, "", {"acked": acked}, {"rows": figures.app_landed})


def _app(figures: Figures) -> Row:
    stage, acked, received = "app → collector", figures.app_acked, figures.from_app
    if figures.restarted & {"app", "collector"}:
        return _said(stage, State.UNKNOWN, _RESTARTED)
    if acked is None and received == 0:
        return _said(stage, State.BALANCED, _NOTHING_SENT)
    if acked is None or received is None:
        return _said(stage, State.OFF, "one side did not say how many records there were")
    return _compared(stage, "", {"acked": acked}, {"received": received})


def _collector(figures: Figures) -> Row:
    if figures.collector is None:
        return _said("collector", State.OFF, _NO_ACCOUNT)
    return collector_row("", figures.collector)


def _log(figures: Figures) -> Row:
    stage = COLLECTORS_TO_LOG
    if not figures.log_after:
        note = "the end of the log was not read: the drain was cut short"
        return _said(stage, State.OFF, note)
    if "collector" in figures.restarted:
        return _said(stage, State.UNKNOWN, _RESTARTED)
    if figures.collector is None:
        return _said(stage, State.OFF, _NO_ACCOUNT)
    before = {stream: span.end for stream, span in figures.log_before.items()}
    added = sum(span.end - before.get(stream, 0) for stream, span in figures.log_after.items())
    # Records of an earlier run may have been stored before their ack was lost: counted again here.
    return hop_row(
        {"collector": figures.collector.sent},
        added,
        held=figures.collector.recovered,
        waiting=0,
        is_shared=figures.shared_log,
    )


def _lake(stream: str, figures: Figures) -> Row:
    stage, (start, end) = "log → Parquet", figures.log_after[stream]
    landed = figures.landed.get(stream, Landed())
    came, went = {"in the log": end - start}, {"rows": landed.rows}

    def off(difference: int, note: str) -> Row:
        return Row(stage, stream, came, went, difference, State.OFF, note)

    if landed.rows != landed.offsets:
        repeated = landed.rows - landed.offsets
        return off(-repeated, f"{repeated:,} repeated")
    if landed.rows and landed.last - landed.first + 1 != landed.offsets:
        missing = landed.last - landed.first + 1 - landed.offsets
        return off(missing, f"{missing:,} missing between the first and last")
    expected = Span(start, end) if end > start else Span(0, 0)
    found = Span(landed.first, landed.last + 1)
    if found.end != expected.end or found.start > expected.start:
        span = f"offsets {expected.start:,}-{expected.end - 1:,}"
        note = f"{span} expected, {landed.first:,}-{landed.last:,} found"
        return off(end - start - landed.rows, note)
    return Row(stage, stream, came, went, note="each offset once")
