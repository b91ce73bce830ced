"""Verdict of the demo: each stage has received what the one before it accepted.

app acked == collector received from it
collector: recovered + received == delivered + filtered + quarantined + dropped + held
collector delivered == records added to the log
log records == Parquet rows, each stream's offsets dense and unique
Parquet rows that tell of a problem == records that the route `problems` led to the console
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.base.pluralize import pluralize

_RESTARTED = "not compared: restarted, so its counts began again"
_NOTHING_SENT = "the app was stopped before it sent anything"


@dataclass(frozen=True, slots=True)
class Account:
    """A collector's account of its records since it started: docs/collector/guarantees.md.

    The collector of the demo copies no record.
    """

    recovered: int = 0
    received: int = 0
    delivered: int = 0
    filtered: int = 0
    quarantined: int = 0
    dropped: int = 0
    held: int = 0

    @property
    def difference(self) -> int:
        """Records the account cannot explain."""
        explained = self.delivered + self.filtered + self.quarantined + self.dropped + self.held
        return self.recovered + self.received - explained


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
    collector: Account | None
    log_before: Mapping[str, Span]
    log_after: Mapping[str, Span]
    landed: Mapping[str, Landed]
    problems_landed: int = 0
    problems_shown: int = 0
    restarted: frozenset[str] = field(default_factory=frozenset)
    shared_log: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison: `holds` is None where it cannot be made, `statement` says why or what."""

    name: str
    holds: bool | None
    statement: str


def reconcile(figures: Figures) -> list[Comparison]:
    """Compare the stages in the order of the data path."""
    return [
        _app(figures),
        _collector(figures),
        _log(figures),
        *(_lake(name, figures) for name in figures.log_after),
        _console(figures),
        _end_to_end(figures),
    ]


def _console(figures: Figures) -> Comparison:
    landed, shown = figures.problems_landed, figures.problems_shown
    statement = f"{pluralize(landed, 'problem', form=',')} among the rows, {shown:,} on the console"
    return Comparison("log → console, problems", landed == shown, statement)


def _end_to_end(figures: Figures) -> Comparison:
    """Holds across restarts of every part but the app: rows are told apart by its instance."""
    name = "app → Parquet"
    acked = figures.app_acked
    if "app" in figures.restarted:
        return Comparison(name, None, _RESTARTED)
    if acked is None and figures.from_app == 0:
        return Comparison(name, True, _NOTHING_SENT)
    if acked is None:
        return Comparison(name, False, "the app did not say how many records were acked")
    return Comparison(
        name,
        acked == figures.app_landed,
        f"{acked:,} acked, {pluralize(figures.app_landed, 'row', form=',')}",
    )


def _app(figures: Figures) -> Comparison:
    name = "app → collector"
    acked, received = figures.app_acked, figures.from_app
    if figures.restarted & {"app", "collector"}:
        return Comparison(name, None, _RESTARTED)
    if acked is None and received == 0:
        return Comparison(name, True, _NOTHING_SENT)
    if acked is None or received is None:
        return Comparison(name, False, "one side did not say how many records there were")
    return Comparison(name, acked == received, f"{acked:,} acked, {received:,} received")


def _collector(figures: Figures) -> Comparison:
    name = "collector"
    account = figures.collector
    if account is None:
        return Comparison(name, False, "it left no account of its records")
    came = f"{account.received:,} received"
    if account.recovered:
        came += f" + {account.recovered:,} from before"
    labels = ("filtered", "quarantined", "dropped", "held")
    went = [f"{account.delivered:,} delivered"]
    went += [f"{count:,} {label}" for label in labels if (count := getattr(account, label))]
    if account.difference:
        went.append(f"{account.difference:,} unexplained")
    return Comparison(name, account.difference == 0, f"{came} = {' + '.join(went)}")


def _log(figures: Figures) -> Comparison:
    name = "collector → log"
    if not figures.log_after:
        return Comparison(name, False, "the end of the log was not read: the drain was cut short")
    if "collector" in figures.restarted:
        return Comparison(name, None, _RESTARTED)
    if figures.collector is None:
        return Comparison(name, False, "the collector left no account of its records")
    before = {stream: span.end for stream, span in figures.log_before.items()}
    added = sum(span.end - before.get(stream, 0) for stream, span in figures.log_after.items())
    delivered = figures.collector.delivered
    # Records of an earlier run may have been stored before their ack was lost: counted again here.
    least = delivered - figures.collector.recovered
    holds = least <= added if figures.shared_log else least <= added <= delivered
    return Comparison(name, holds, f"{delivered:,} delivered, {added:,} added to the log")


def _lake(stream: str, figures: Figures) -> Comparison:
    name = f"log → Parquet, {stream}"
    start, end = figures.log_after[stream]
    landed = figures.landed.get(stream, Landed())
    statement = f"{end - start:,} in the log, {pluralize(landed.rows, 'row', form=',')}"
    if landed.rows != landed.offsets:
        return Comparison(name, False, f"{statement}, {landed.rows - landed.offsets:,} repeated")
    if landed.rows and landed.last - landed.first + 1 != landed.offsets:
        missing = landed.last - landed.first + 1 - landed.offsets
        return Comparison(
            name, False, f"{statement}, {missing:,} missing between the first and last"
        )
    expected = Span(start, end) if end > start else Span(0, 0)
    found = Span(landed.first, landed.last + 1)
    if found.end != expected.end or found.start > expected.start:
        span = f"offsets {expected.start:,}-{expected.end - 1:,}"
        return Comparison(
            name, False, f"{statement}; {span} expected, {found.start:,}-{landed.last:,}"
        )
    return Comparison(name, True, f"{statement}, each offset once")
