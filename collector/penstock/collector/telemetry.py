"""The collector's telemetry: stages, reconciliation, health, metrics."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as PrometheusCollector
from typing_extensions import override

from penstock.collector.agent.reload import Reloads
from penstock.collector.delivery.core import Delivery
from penstock.collector.delivery.publisher import producer_id
from penstock.collector.drops.journal import DropJournal
from penstock.collector.ledger import Account, Ledger
from penstock.collector.spool.journal import Journal
from penstock.collector.spool.memory_budget import Budget
from penstock.service import Health, Stage, Status, release, span_metrics
from penstock.specs.subjects import KINDS, kind_of

if TYPE_CHECKING:
    from penstock.collector.delivery.ordered_queue import OrderedQueue

_FULL_SHARE = 0.9
_REASONS_MAX = 5
_REASON_CHARACTERS = 120
OUTCOMES = (
    "received", "recovered", "copied", "delivered", "filtered", "sampled", "deduplicated",
    "aggregated", "quarantined",
)  # fmt: skip


def settle_accounts(ledger: Ledger, delivery: Delivery) -> None:
    """Bring what delivery counts per queue into the accounts of the sources."""
    totals: dict[str, list[int]] = {}
    for source, (delivered, quarantined, repeated) in delivery.retired.items():
        totals[source] = [delivered + repeated, quarantined, 0, repeated]
    for queue in delivery.queues.values():
        total = totals.setdefault(queue.key.source, [0, 0, 0, 0])
        total[0] += queue.delivered + queue.repeated
        total[1] += queue.quarantined
        total[2] += sum(len(batch) for batch in queue.pending())
        total[3] += queue.repeated
    for source, (delivered, quarantined, pending, repeated) in totals.items():
        account = ledger[source]
        account.delivered = delivered
        account.refused_by_logd = quarantined
        account.in_queues = pending
        account.repeated = repeated


def describe(  # noqa: PLR0913 - every part of the process has its say
    name: str,
    *,
    health: Health,
    reasons: Iterable[str],
    sources: dict[str, str],
    lag: dict[str, int],
    partial: dict[str, int],
    ledger: Ledger,
    budget: Budget,
    delivery: Delivery,
    spools: Mapping[str, Journal],
    quarantine: Journal,
    drops: DropJournal,
    reloads: Reloads,
    incarnation: UUID,
) -> Status:
    """The process's `/status`; run it where nothing changes meanwhile."""
    settle_accounts(ledger, delivery)
    stages = [
        _source_stage(kind, source, ledger[source], lag.get(source, 0), partial.get(source, 0))
        for source, kind in sources.items()
    ]
    stages.append(_spool_stage(ledger, spools))
    stages += _publish_stages(delivery)
    return Status(
        component="collector",
        name=name,
        version=release(),
        health=health,
        reasons=tuple(reasons),
        stages=tuple(stages),
        info={
            "reconciliation": {
                source: account.as_dict() for source, account in ledger.accounts.items()
            },
            "queues": {
                f"{queue.key.origin} {queue.key.source} {queue.key.subject}": {
                    "done": queue.done,
                    "pending": sum(len(batch) for batch in queue.pending()),
                    "state": queue.state.name.lower(),
                    "reason": queue.reason,
                    "producer": producer_id(incarnation, queue.key).hex(),
                }
                for queue in delivery.queues.values()
            },
            "receiving": _receiving(budget),
            **{name.replace("-", "_"): _spool(spool) for name, spool in spools.items()},
            "delivery": {
                "window_bytes": delivery.window.size,
                "in_flight_bytes": delivery.in_flight_bytes,
                "ack_shortest_s": delivery.window.base_ns / 1e9,
            },
            "reloads": reloads.as_dict(),
            "quarantine": {"bytes": quarantine.used_bytes, "max_bytes": quarantine.bytes_max},
            "drops": drops.facts(),
        },
    )


def _spool(journal: Journal) -> dict[str, int]:
    return {
        "bytes": journal.used_bytes,
        "max_bytes": journal.bytes_max,
        "units_end": journal.durable_offset,
        "commits": journal.commits,
        "failures": journal.failures,
    }


def _receiving(budget: Budget) -> dict[str, dict[str, int]]:
    return {
        source: {
            "bytes": share.used,
            "peak_bytes": share.peak,
            "max_bytes": share.bytes_max,
            "refused": share.refused,
        }
        for source, share in budget.shares.items()
        if share.peak or share.refused
    }


def troubles(delivery: Delivery, journals: Mapping[str, Journal], *, nats: str) -> list[str]:
    """Why the collector is degraded, `nats` first; empty when it is not."""
    found = [nats] if nats else []
    for name, journal in journals.items():
        if journal.failure:
            found.append(f"{name}: {journal.failure}")
        if journal.used_bytes > journal.bytes_max * _FULL_SHARE:
            found.append(f"{name} is nearly full")
    found += sorted(
        f"{key.subject} cannot be delivered: {reason}"
        for key, reason in delivery.troubles.items()
        if reason != "sequence_gap"
    )[:_REASONS_MAX]
    return found


def _source_stage(kind: str, source: str, account: Account, lag: int, partial: int) -> Stage:
    name = f"source/{kind}" if source == kind else f"source/{kind}:{source}"
    notes = {key: count for key, count in account.notes.items() if count}
    return Stage(
        name=name,
        received=account.received + account.recovered,
        sent=account.delivered,
        lag=account.held,
        errors=account.quarantined_total + account.dropped.total(),
        detail={
            **notes,
            **{f"dropped_{reason}": n for reason, n in account.dropped.items() if n},
            "quarantined": account.quarantined_total,
            **({"unread_bytes": lag, "partial_bytes": partial} if kind == "file" else {}),
        },
    )


def _spool_stage(ledger: Ledger, spools: Mapping[str, Journal]) -> Stage:
    held = sum(account.spooled for account in ledger.accounts.values())
    taken = sum(account.taken for account in ledger.accounts.values())
    return Stage(
        name="spool",
        received=taken,
        sent=taken - held,
        lag=held,
        errors=sum(spool.failures for spool in spools.values()),
        detail={
            "bytes": sum(spool.used_bytes for spool in spools.values()),
            "commits": sum(spool.commits for spool in spools.values()),
        },
    )


def _publish_stages(delivery: Delivery) -> list[Stage]:
    kinds: dict[str, list[OrderedQueue]] = {}
    for queue in delivery.queues.values():
        # Subjects made by templates may have no kind in them.
        kind = KINDS.get(kind_of(queue.key.subject) or "", "other")
        kinds.setdefault(kind, []).append(queue)
    stages: list[Stage] = []
    for kind, queues in sorted(kinds.items()):
        pending = sum(len(batch) for queue in queues for batch in queue.pending())
        delivered = sum(queue.delivered for queue in queues)
        refused = sum(queue.quarantined for queue in queues)
        waiting = Counter(queue.reason for queue in queues if queue.reason)
        stages.append(
            Stage(
                name=f"publish/{kind}",
                received=delivered + pending + refused,
                sent=delivered,
                lag=pending,
                errors=refused,
                detail={f"waiting_{reason}": n for reason, n in waiting.items()},
            )
        )
    return stages


class Metrics(PrometheusCollector):
    """The accounts as Prometheus metrics, read from the last status at every scrape."""

    def __init__(self, status: Callable[[], Status], registry: CollectorRegistry) -> None:
        self._status = status
        registry.register(self)

    @override
    def collect(self) -> Iterable[Metric]:
        status = self._status()
        records = CounterMetricFamily(
            "penstock_collector_records",
            "Records since start, by source and by what became of them.",
            labels=("source", "outcome", "reason"),
        )
        held = GaugeMetricFamily(
            "penstock_collector_held_records",
            "Records that were received and are not in the log yet.",
            labels=["source"],
        )
        scrubbed = CounterMetricFamily(
            "penstock_collector_scrubbed_records",
            "Records that had something sensitive taken out.",
            labels=["source"],
        )
        lost = CounterMetricFamily(
            "penstock_collector_sender_dropped_records",
            "Records that applications dropped before they sent them, as they report it.",
            labels=("source", "reason"),
        )
        sensitive = CounterMetricFamily(
            "penstock_collector_sensitive_values",
            "Values that a detector found (with `mode: count` they stayed), and pseudonyms redacted"
            " `without_key`.",
            labels=["source", "detector"],
        )
        refused = CounterMetricFamily(
            "penstock_collector_refused_records",
            "Records that break their spec or cannot be read, by what is wrong with them.",
            labels=("source", "reason"),
        )
        unexplained = GaugeMetricFamily(
            "penstock_collector_unreconciled_records",
            "Records that the account cannot explain; 0 unless the collector is wrong.",
            labels=["source"],
        )
        accounts = status.info.get("reconciliation", {})
        for source, account in accounts.items():
            for outcome in OUTCOMES:
                records.add_metric((source, outcome, ""), account[outcome])
            for reason, count in account["dropped"].items():
                records.add_metric((source, "dropped", reason), count)
            held.add_metric((source,), account["held"])
            scrubbed.add_metric((source,), account["scrubbed"])
            for reason, count in account["sender_dropped"].items():
                lost.add_metric((source, reason), count)
            for detector, count in account["sensitive"].items():
                sensitive.add_metric((source, detector), count)
            for reason, count in account["refused"].items():
                refused.add_metric((source, reason[:_REASON_CHARACTERS]), count)
            unexplained.add_metric((source,), account["difference"])
        steps = CounterMetricFamily(
            "penstock_collector_transform_records",
            "Records by transform and by what became of them there.",
            labels=("transform", "outcome"),
        )
        for name, counts in status.info.get("transforms", {}).items():
            for outcome, count in counts.items():
                steps.add_metric((name, outcome), count)
        return (
            *(records, held, scrubbed, lost, sensitive, refused, unexplained, steps),
            *_spool_and_delivery(status),
            *_receiving_metrics(status),
            *_quarantine_metrics(status),
            *_drop_metrics(status),
            *_descriptor_metrics(status),
            *span_metrics("collector", status.info.get("tracing", {})),
        )


RELOADS_HELP: Final = "Reloads of the configuration, by result."


def _spool_and_delivery(status: Status) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
    spool = GaugeMetricFamily(
        "penstock_collector_spool_bytes", "Bytes that the spool holds.", labels=["spool"]
    )
    most = GaugeMetricFamily(
        "penstock_collector_spool_max_bytes", "Bytes that the spool may hold.", labels=["spool"]
    )
    for name in ("spool", "spool_urgent"):
        facts = status.info.get(name, {})
        spool.add_metric((name,), facts.get("bytes", 0))
        most.add_metric((name,), facts.get("max_bytes", 0))
    flight = GaugeMetricFamily(
        "penstock_collector_in_flight_bytes",
        "Bytes that were sent to logd and are not acknowledged yet.",
    )
    window = GaugeMetricFamily(
        "penstock_collector_window_bytes",
        "Bytes that may be in flight, as adapted to the acks' delay.",
    )
    delivery = status.info.get("delivery", {})
    flight.add_metric((), delivery.get("in_flight_bytes", 0))
    window.add_metric((), delivery.get("window_bytes", 0))
    reloads = CounterMetricFamily(
        "penstock_collector_reloads",
        RELOADS_HELP,
        labels=["result"],
    )
    for result, count in status.info.get("reloads", {}).get("counts", {}).items():
        reloads.add_metric((result,), count)
    return spool, most, flight, window, reloads


def _descriptor_metrics(status: Status) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
    facts = status.info.get("descriptors", {})
    most = GaugeMetricFamily(
        "penstock_collector_max_descriptors",
        "File descriptors that files and connections may have.",
        labels=["kind"],
    )
    for kind in ("files", "connections"):
        most.add_metric((kind,), facts.get(f"max_{kind}", 0))
    files = GaugeMetricFamily("penstock_collector_open_files", "Files that file sources have open.")
    files.add_metric((), facts.get("files_open", 0))
    closed = CounterMetricFamily(
        "penstock_collector_files_closed_for_others",
        "Times a file was closed so that another could be opened.",
    )
    closed.add_metric((), facts.get("files_closed_for_others", 0))
    shortages = CounterMetricFamily(
        "penstock_collector_descriptor_shortages",
        "Files not opened and connections refused because no file descriptor was left.",
        labels=["kind"],
    )
    for kind in ("files", "connections"):
        shortages.add_metric((kind,), facts.get("shortages", {}).get(kind, 0))
    return most, files, closed, shortages


def _receiving_metrics(status: Status) -> tuple[GaugeMetricFamily, CounterMetricFamily]:
    receiving = GaugeMetricFamily(
        "penstock_collector_receiving_bytes",
        "Bytes that network sources read and that are not durable yet; bounded by `receive`.",
        labels=["source"],
    )
    no_room = CounterMetricFamily(
        "penstock_collector_receiving_refused",
        "Requests and connections refused because there was no room for their bytes.",
        labels=["source"],
    )
    for source, share in status.info.get("receiving", {}).items():
        receiving.add_metric((source,), share["bytes"])
        no_room.add_metric((source,), share["refused"])
    return receiving, no_room


def _quarantine_metrics(status: Status) -> Iterable[GaugeMetricFamily]:
    facts = status.info.get("quarantine", {})
    names = {
        "bytes": "Bytes that the quarantine holds.",
        "max_bytes": "Bytes that the quarantine may hold; more is dropped (`quarantine_full`).",
    }
    for (name, help_text), key in zip(names.items(), ("bytes", "max_bytes"), strict=True):
        gauge = GaugeMetricFamily(f"penstock_collector_quarantine_{name}", help_text)
        gauge.add_metric((), facts.get(key, 0))
        yield gauge


def _drop_metrics(status: Status) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
    facts = status.info.get("drops", {})
    held = GaugeMetricFamily("penstock_collector_drops_bytes", "Bytes that the drop journal holds.")
    held.add_metric((), facts.get("bytes", 0))
    records = CounterMetricFamily(
        "penstock_collector_drops_records",
        "Records that transforms dropped, by what the drop journal has of them: `recorded`,"
        " `not_recorded` because drops.max_rate was exceeded, `lost` because the disk failed.",
        labels=["result"],
    )
    for result in ("recorded", "not_recorded", "lost"):
        records.add_metric((result,), facts.get(result, 0))
    return held, records
