"""Ingest gaps as `/status`, `/metrics` and the reasons of health show them."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.logd.cluster.engine import ClusterEngine
from penstock.logd.cluster.streams import damaged_ranges
from penstock.logd.intake.gaps import Gap, GapLedger, GapReason, Instant

_STREAMS_SHOWN: Final = 10
_SAID_ELSEWHERE: Final = (GapReason.RECONNECTING, GapReason.DENIED, GapReason.STORAGE_FAILED)
_LABELS: Final = ["stream", "reason"]


def describe_gaps(gaps: GapLedger, now: Instant) -> dict[str, Any]:
    """Those that last, and the last that ended, oldest first."""
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
    """What of the gaps that last makes the daemon degraded and nothing else says."""
    for gap in gaps.lasting():
        if gap.reason is GapReason.UNSUBSCRIBED:
            yield f"stream {gap.streams[0]}: off its subject: {gap.detail}"
        elif gap.reason not in _SAID_ELSEWHERE:
            yield f"stream {gap.streams[0]}: drops messages ({gap.reason})"


def gap_metrics(gaps: GapLedger, now: Instant) -> Iterable[Metric]:
    """Counters by stream and reason, gaps that last included."""
    count = CounterMetricFamily(
        "penstock_logd_ingest_gaps", "Times a stream missed messages", labels=_LABELS
    )
    seconds = CounterMetricFamily(
        "penstock_logd_ingest_gap_seconds", "Time in which a stream missed messages", labels=_LABELS
    )
    messages = CounterMetricFamily(
        "penstock_logd_ingest_gap_messages",
        "Messages that were dropped without an answer to their publisher.",
        labels=_LABELS,
    )
    for (stream, reason), totals in sorted(gaps.totals(now).items()):
        labels = [stream, reason.value]
        count.add_metric(labels, totals.count)
        seconds.add_metric(labels, totals.duration_ns / 1e9)
        messages.add_metric(labels, totals.messages)
    lasting = GaugeMetricFamily("penstock_logd_ingest_gaps_lasting", "Gaps that last now")
    lasting.add_metric([], len(gaps.lasting()))
    return count, seconds, messages, lasting


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
