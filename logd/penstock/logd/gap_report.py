"""Ingest gaps as `/status`, `/metrics` and the reasons of health show them."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.logd.cluster.engine import ClusterEngine
from penstock.logd.cluster.streams import damaged_ranges
from penstock.logd.intake.gaps import Gap, GapLedger, GapReason, Instant
from penstock.logd.metrics import family, value_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_STREAMS_SHOWN: Final = 10
_SAID_ELSEWHERE: Final = (GapReason.RECONNECTING, GapReason.DENIED, GapReason.STORAGE_FAILED)
_LABELS: Final = ["stream", "reason"]


def describe_gaps(gaps: GapLedger, now: Instant) -> dict[str, Any]:
    """Return the open gaps, and the last closed ones, oldest first."""
    lasting = gaps.lasting()
    return {
        "lasting": [_describe(gap, now) | {"end": None} for gap in lasting],
        "ended": [_describe(gap, now) for gap in list(gaps.ended)],
    }


def gap_document(engine: ClusterEngine) -> dict[str, Any]:
    """The gaps of a daemon, and what is known to be damaged of its logs."""
    subscription_manager = engine.subscription_manager
    damaged = [
        {"stream": partition.name, "partition": partition.number, "first": first, "upto": upto}
        for partition in engine.partitions()
        for first, upto in damaged_ranges(partition)
    ]
    return describe_gaps(subscription_manager.gaps, subscription_manager.now()) | {
        "damaged": damaged
    }


def gap_reasons(gaps: GapLedger) -> Iterable[str]:
    """Yield the lasting gaps that degrade the daemon and that nothing else reports."""
    for gap in gaps.lasting():
        if gap.reason is GapReason.UNSUBSCRIBED:
            yield f"stream {gap.streams[0]}: off its subject: {gap.detail}"
        elif gap.reason not in _SAID_ELSEWHERE:
            yield f"stream {gap.streams[0]}: drops messages ({gap.reason})"


def gap_metrics(gaps: GapLedger, now: Instant) -> Iterable["Metric"]:
    """Counters by stream and reason, gaps that last included."""
    totals = [
        ((stream, reason.value), found)
        for (stream, reason), found in sorted(gaps.totals(now).items())
    ]
    yield family("ingest_gaps", [(labels, it.count) for labels, it in totals])
    yield family("ingest_gap_seconds", [(labels, it.duration_ns / 1e9) for labels, it in totals])
    yield family("ingest_gap_messages", [(labels, it.messages) for labels, it in totals])
    yield value_of("ingest_gaps_lasting", len(gaps.lasting()))


def _describe(gap: Gap, now: Instant) -> dict[str, Any]:
    return {
        "streams": list(gap.streams[:_STREAMS_SHOWN]),
        "stream_count": len(gap.streams),
        "reason": gap.reason.value,
        "detail": gap.detail,
        "start": _date(gap.start),
        "end": None if gap.end is None else _date(gap.end),
        "seconds": round(gap.duration_ns(now) / 1e9, 3),
        "messages": gap.messages,
    }


def _date(instant: Instant) -> str:
    return datetime.fromtimestamp(instant.unix_ns / 1e9, UTC).isoformat(timespec="milliseconds")
