"""Telemetry of logd: counters for Prometheus, stages and health for `/status`.

A stage per stream, named `stream/<name>`, counts records since the process started:

    received   arrived on the subject; a batch counts its records, one refused unread counts as one
    sent       committed: below the high watermark, readable
    lag        accepted and not committed yet
    errors     refused for any reason, or accepted and then lost to a failed disk

and received = sent + duplicates + errors + lag. The counters are plain integers that only the event
loop changes; the admin thread may read a turn that is half counted. It goes over copies of what
grows: CPython copies or lists a dict without letting another thread in between.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from typing_extensions import override

from penstock.base.pluralize import pluralize
from penstock.logd.api.server import FetchServer
from penstock.logd.cluster.engine import ClusterEngine
from penstock.logd.cluster.streams import damaged_ranges
from penstock.logd.gap_report import describe_gaps, gap_metrics, gap_reasons
from penstock.logd.intake.admission import ByteBudget
from penstock.logd.listeners import Listeners
from penstock.logd.metrics import family, labeled_family, value_of
from penstock.logd.nats.jetstream_hints import JetStreamHints
from penstock.logd.nats.link import NatsLink
from penstock.logd.partition.acks import AckSender
from penstock.logd.partition.partition import OfflinePartition, Partition
from penstock.logd.security.reloader import CredentialReloader
from penstock.service import Health, Stage, Status, release, span_metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from penstock.logd.liftbridge.server import GrpcServer
else:
    Collector = object  # the registry asks for no base class


class Telemetry(Struct):
    """Reads the counters of a daemon's parts; `health` is set by the daemon as it goes."""

    node: str
    engine: ClusterEngine
    budget: ByteBudget
    acks: AckSender
    data_link: NatsLink
    ack_link: NatsLink
    server: FetchServer
    listeners: Listeners
    reloader: CredentialReloader
    data_dir: Path
    max_metrics_streams: int
    grpc: "GrpcServer | None" = None
    hints: JetStreamHints | None = None
    spans: Callable[[], dict[str, int]] = dict
    health: Health = Health.STARTING

    def probe(self) -> Status:
        """The process's account of itself without what it counts of each stream."""
        reasons = tuple(self._reasons())
        health = self.health
        if health is Health.READY and reasons:
            health = Health.DEGRADED
        return Status(
            component="logd", name=self.node, version=release(), health=health, reasons=reasons
        )

    def status(self) -> Status:
        """The process's account of itself."""
        subscription_manager = self.engine.subscription_manager
        return replace(
            self.probe(),
            stages=(
                *(stage(partition) for partition in self.engine.partitions()),
                *(
                    _unopened_stage(offline_partition)
                    for offline_partition in self.engine.offline_partition()
                ),
            ),
            info={
                "nats": self.data_link.shown(),
                "nats_reconnects": self.data_link.reconnects,
                "nats_unproven": self.data_link.unproven,
                "intake_bytes_held": self.budget.held,
                "ingest_gaps": describe_gaps(subscription_manager.gaps, subscription_manager.now()),
                "acks_sent": self.acks.sent,
                "acks_dropped": self.acks.dropped,
                "acks_withheld": self.acks.withheld,
                "acks_denied": self.ack_link.publishes_denied,
                "cursors": len(self.engine.cursors),
                "groups": self.engine.groups.figures().groups,
                "connections": self.server.listener.connections,
                "requests_outstanding": self.server.counts.outstanding,
                "requests_refused": sum(dict(self.server.counts.refused).values()),
                "readers_stalled": self.server.counts.stalled,
                "requests": self.server.counts.requests,
                "fetched_bytes": self.server.counts.bytes_sent,
                "listeners": self.listeners.info(),
                "tracing": self.spans(),
                **({} if self.grpc is None else {"grpc": self.grpc.info()}),
                **({} if self.hints is None else {"jetstream_hints": self.hints.info()}),
                **self.engine.info(),
            },
        )

    def registry(self) -> "CollectorRegistry":
        """A registry that reads the counters when it is scraped."""
        from prometheus_client import CollectorRegistry  # only a scrape needs it

        registry = CollectorRegistry()
        registry.register(_Scrape(self))
        return registry

    def _reasons(self) -> Iterable[str]:
        links = [("data", self.data_link), ("acks", self.ack_link)]
        if self.grpc is not None:
            links.append(("grpc", self.grpc.relay.link))
        for what, link in links:
            if not link.connected or link.problem:
                yield f"nats ({what}): {link.problem or 'not connected'}"
        for name, denial in sorted(self.engine.subscription_manager.denied().items()):
            yield f"stream {name}: nats-server says: {denial}"
        yield from self.reloader.reasons()
        yield from self.engine.reasons()
        yield from self.listeners.reasons()
        yield from gap_reasons(self.engine.subscription_manager.gaps)
        for offline_partition in self.engine.offline_partition():
            yield f"stream {offline_partition.name}: {offline_partition.reason}"
        now_ns = self.engine.subscription_manager.now().unix_ns
        yield from partition_reasons(self.engine.each_partition(), now_ns)


def partition_reasons(partitions: Iterable[Partition], now_ns: int) -> Iterable[str]:
    """Why partitions are not as well as they should be, by stream and number.

    A start is probed again and again, so little is done about each of thousands that are well.
    """
    ailing = [
        partition
        for partition in partitions
        if partition.failure
        or partition.log.damages.ranges
        or partition.intake.dedup.lost_until_ns > now_ns
    ]
    for partition in sorted(ailing, key=lambda one: (one.name, one.number)):
        if partition.failure:
            yield f"stream {partition.label}: {partition.failure}"
        if damaged := damaged_ranges(partition):
            count = pluralize(sum(upto - first for first, upto in damaged), "offset")
            what = f"{count} cannot be read: damaged from offset {damaged[0][0]} on"
            yield f"stream {partition.label}: {what}; see: penstock logd gaps"
        dedup = partition.intake.dedup
        if dedup.lost_until_ns > now_ns:
            what = f"its dedup state below offset {dedup.lost} is lost"
            yield f"stream {partition.label}: {what}; repeats may be stored again"


def stage(partition: Partition) -> Stage:
    """One stream's stage, as the module says."""
    counts = partition.intake.counts
    refused = {nack.name.lower(): count for nack, count in dict(counts.refused).items()}
    return Stage(
        name=f"stream/{partition.label}",
        received=counts.received,
        sent=partition.publish_queue.committed,
        lag=partition.publish_queue.uncommitted,
        errors=sum(refused.values()) + partition.publish_queue.lost,
        detail={
            "duplicates": counts.duplicates,
            "received_bytes": counts.received_bytes,
            "malformed_envelopes": counts.malformed_envelopes,
            "lost": partition.publish_queue.lost,
            "start_offset": partition.start_offset,
            "high_watermark": partition.high_watermark,
            "end_offset": partition.log.end_offset,
            "epoch": partition.epoch,
            "size_bytes": partition.log.size_bytes,
            "records_deleted": partition.retention_task.records_deleted,
            "segments_deleted": partition.retention_task.segments_deleted,
            "bytes_deleted": partition.retention_task.bytes_deleted,
            "intake_bytes_held": partition.budget.held,
            "skipped": partition.publish_queue.skipped,
            **_compaction(partition),
            "acks_pending": partition.publish_queue.pending_acks,
            "dedup_ids": len(partition.intake.dedup.message_ids),
            "dedup_producers": len(partition.intake.dedup.producers),
            "dedup_evicted": partition.intake.dedup.evicted,
        }
        | {f"refused_{name}": count for name, count in refused.items()},
    )


def _unopened_stage(offline_partition: OfflinePartition) -> Stage:
    counts = offline_partition.intake.counts
    refused = {nack.name.lower(): count for nack, count in dict(counts.refused).items()}
    return Stage(
        name=f"stream/{offline_partition.name}",
        received=counts.received,
        sent=0,
        lag=0,
        errors=sum(refused.values()),
        detail={f"refused_{name}": count for name, count in refused.items()},
    )


def _compaction(partition: Partition) -> dict[str, int]:
    counts = partition.compaction_scheduler.counts
    return {
        "compaction_bytes_read": counts.bytes_read,
        "compaction_bytes_written": counts.bytes_written,
        "compaction_bytes_freed": counts.bytes_freed,
        "compaction_records_removed": counts.records_removed,
        "compaction_segments_replaced": counts.segments_replaced,
        "compaction_passes": counts.passes,
        "compaction_failures": counts.failures,
        "compaction_last_ns": counts.last_ns,
        "compaction_last_duration_ns": counts.last_duration_ns,
    }


def most_telling(partitions: list[Partition], short: set[Partition], most: int) -> list[Partition]:
    """Some of the partitions, in the order in which they came.

    Those in trouble are chosen first, so that every alert finds its series, then those with most
    records since the start. A scrape calls it, so little is done about each of thousands.

    Args:
        partitions: All that are open.
        short: Those with fewer replicas in sync than they are to have.
        most: Number of partitions to choose.
    """

    def is_in_trouble(partition: Partition) -> bool:
        intake = partition.intake
        return bool(
            partition.failure
            or partition in short
            or any(intake.counts.refused.values())
            or partition.publish_queue.lost
            or intake.dedup.lost_until_ns
            or partition.compaction_scheduler.counts.failures
            or (partition.log.damages.ranges and damaged_ranges(partition))
        )

    ranked = sorted(partitions, key=lambda it: it.intake.counts.received, reverse=True)
    ranked.sort(key=is_in_trouble, reverse=True)
    chosen = set(ranked[:most])
    return [partition for partition in partitions if partition in chosen]


class _Shown:
    """The partitions that have series: all of them, or those where something is to be seen.

    A partition has 2 KB of series, which thousands of idle streams are not worth.

    Attributes:
        open: Number of partitions that are open here.
        left_out: Number of partitions that are left out.
    """

    def __init__(self, engine: ClusterEngine, most: int) -> None:
        self.partitions = engine.partitions()
        self.offline_partitions = engine.offline_partition()
        self.open = len(self.partitions)
        self.left_out = max(0, self.open + len(self.offline_partitions) - most)
        if self.left_out:
            self.offline_partitions = self.offline_partitions[:most]
            left = most - len(self.offline_partitions)
            self.partitions = most_telling(self.partitions, engine.under_replicated(), left)


class _Scrape(Collector):
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    @override
    def collect(self) -> Iterable["Metric"]:
        engine = self._telemetry.engine
        shown = _Shown(engine, self._telemetry.max_metrics_streams)
        yield from _stream_metrics(shown.partitions, shown.offline_partitions)
        yield value_of("streams_without_series", shown.left_out)
        yield from _process_metrics(self._telemetry, shown.open)
        yield from _disk_metrics(self._telemetry.data_dir)
        subscription_manager = engine.subscription_manager
        yield from gap_metrics(subscription_manager.gaps, subscription_manager.now())
        yield from engine.metrics(shown.partitions)
        yield from self._telemetry.reloader.metrics()
        yield from self._telemetry.listeners.metrics()
        yield from span_metrics("logd", self._telemetry.spans())
        if self._telemetry.grpc is not None:
            yield from self._telemetry.grpc.metrics()


_OF_STREAM: Final[Mapping[str, Callable[[Partition | OfflinePartition], float]]] = {
    "records_received": lambda it: it.intake.counts.received,
    "bytes_received": lambda it: it.intake.counts.received_bytes,
    "messages_skipped": lambda it: (it.publish_queue if isinstance(it, Partition) else it).skipped,
    "stream_failed": lambda it: isinstance(it, OfflinePartition) or bool(it.failure),
}
_OF_PARTITION: Final[Mapping[str, Callable[[Partition], float]]] = {
    "records_committed": lambda it: it.publish_queue.committed,
    "records_duplicate": lambda it: it.intake.counts.duplicates,
    "records_lost": lambda it: it.publish_queue.lost,
    "records_uncommitted": lambda it: it.publish_queue.uncommitted,
    "envelopes_malformed": lambda it: it.intake.counts.malformed_envelopes,
    "stream_intake_bytes": lambda it: it.budget.held,
    "start_offset": lambda it: it.start_offset,
    "high_watermark": lambda it: it.high_watermark,
    "size_bytes": lambda it: it.log.size_bytes,
    "records_deleted": lambda it: it.retention_task.records_deleted,
    "bytes_deleted": lambda it: it.retention_task.bytes_deleted,
    "damaged_offsets": lambda it: sum(upto - first for first, upto in damaged_ranges(it)),
    "producer_state_lost": lambda it: bool(it.intake.dedup.lost_until_ns),
    "compaction_bytes_read": lambda it: it.compaction_scheduler.counts.bytes_read,
    "compaction_bytes_written": lambda it: it.compaction_scheduler.counts.bytes_written,
    "compaction_bytes_freed": lambda it: it.compaction_scheduler.counts.bytes_freed,
    "compaction_records_removed": lambda it: it.compaction_scheduler.counts.records_removed,
    "compaction_segments_replaced": lambda it: it.compaction_scheduler.counts.segments_replaced,
    "compaction_passes": lambda it: it.compaction_scheduler.counts.passes,
    "compaction_failures": lambda it: it.compaction_scheduler.counts.failures,
    "compaction_last_seconds": lambda it: it.compaction_scheduler.counts.last_ns / 1e9,
    "compaction_last_duration_seconds": (
        lambda it: it.compaction_scheduler.counts.last_duration_ns / 1e9
    ),
}


def _stream_metrics(
    partitions: list[Partition], offline_partitions: list[OfflinePartition]
) -> Iterable["Metric"]:
    streams: list[Partition | OfflinePartition] = [*partitions, *offline_partitions]
    labels = [{"stream": it.label} for it in streams]
    for name, of_stream in _OF_STREAM.items():
        yield labeled_family(name, zip(labels, map(of_stream, streams), strict=True))
    open_labels = labels[: len(partitions)]
    for name, of_partition in _OF_PARTITION.items():
        yield labeled_family(name, zip(open_labels, map(of_partition, partitions), strict=True))
    refused = [
        ((it.label, nack.name.lower()), count)
        for it in streams
        for nack, count in dict(it.intake.counts.refused).items()
    ]
    yield family("records_refused", refused)
    yield from _dedup_metrics(partitions)


def _dedup_metrics(partitions: list[Partition]) -> Iterable["Metric"]:
    entries, most, evicted = [], [], []
    for partition in partitions:
        label = partition.label
        ids, producers = partition.intake.dedup.message_ids, partition.intake.dedup.producers
        for kind, table, limit in (
            ("ids", ids, ids.ids_max),
            ("producers", producers, producers.max_producers),
        ):
            labels = {"stream": label, "kind": kind}
            entries.append((labels, len(table)))
            most.append((labels, limit))
            evicted.append((labels, table.evicted))
    yield labeled_family("dedup_entries", entries)
    yield labeled_family("dedup_max_entries", most)
    yield labeled_family("dedup_evicted", evicted)


def _process_metrics(telemetry: Telemetry, open_partitions: int) -> Iterable["Metric"]:
    engine, server, acks = telemetry.engine, telemetry.server, telemetry.acks
    links = {"data": telemetry.data_link, "acks": telemetry.ack_link}
    yield family("nats_connected", [((name,), it.connected) for name, it in links.items()])
    refused = dict(server.counts.refused)
    yield family(
        "fetch_requests_refused", [((code.lower(),), count) for code, count in refused.items()]
    )
    groups = engine.groups.figures()
    events = dict(groups.counts)
    yield family(
        "group_events", [((event.replace(" ", "_"),), count) for event, count in events.items()]
    )
    for name, value in (
        ("acks_sent", acks.sent),
        ("acks_dropped", acks.dropped),
        ("acks_withheld", acks.withheld),
        ("acks_denied", telemetry.ack_link.publishes_denied),
        ("streams_reopened", engine.revived),
        ("fetch_requests", server.counts.requests),
        ("fetch_requests_open", server.counts.outstanding),
        ("fetch_bytes", server.counts.bytes_sent),
        ("fetch_readers_stalled", server.counts.stalled),
        ("fetch_connections", server.listener.connections),
        ("cursors", len(engine.cursors)),
        ("cursor_commits", engine.cursors.commits),
        ("groups", groups.groups),
        ("group_members", groups.members),
        ("nats_reconnects", telemetry.data_link.reconnects),
        ("nats_unproven", telemetry.data_link.unproven),
        ("intake_bytes", telemetry.budget.held),
        ("intake_max_bytes", telemetry.budget.bytes_max),
        ("streams", open_partitions),
        ("max_streams", engine.max_streams),
    ):
        yield value_of(name, value)


def _disk_metrics(data_dir: Path) -> Iterable["Metric"]:
    with suppress(OSError):  # a disk that is gone shows in the streams
        usage = shutil.disk_usage(data_dir)
        yield value_of("disk_free_bytes", usage.free)
        yield value_of("disk_size_bytes", usage.total)
