"""What logd says of itself: counters for Prometheus, stages and health for `/status`.

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
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from penstock.base.pluralize import pluralize
from penstock.logd.api.server import FetchServer
from penstock.logd.cluster.engine import ClusterEngine
from penstock.logd.cluster.streams import damaged_ranges
from penstock.logd.gap_report import describe_gaps, gap_metrics, gap_reasons
from penstock.logd.intake.admission import ByteBudget
from penstock.logd.listeners import Listeners
from penstock.logd.nats.jetstream_hints import JetStreamHints
from penstock.logd.nats.link import NatsLink
from penstock.logd.partition.acks import AckSender
from penstock.logd.partition.partition import OfflinePartition, Partition
from penstock.logd.security.reloader import CredentialReloader
from penstock.service import Health, Stage, Status, release, span_metrics

if TYPE_CHECKING:
    from penstock.logd.liftbridge.server import GrpcServer


@dataclass(slots=True)
class Telemetry:
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
    metrics_streams_max: int
    grpc: "GrpcServer | None" = None
    hints: JetStreamHints | None = None
    spans: Callable[[], dict[str, int]] = dict
    health: Health = Health.STARTING

    def status(self) -> Status:
        """The process's account of itself."""
        reasons = tuple(self._reasons())
        subscription_manager = self.engine.subscription_manager
        health = self.health
        if health is Health.READY and reasons:
            health = Health.DEGRADED
        return Status(
            component="logd",
            name=self.node,
            version=release(),
            health=health,
            reasons=reasons,
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
                "connections": self.server.connections,
                "requests_outstanding": self.server.counts.outstanding,
                "requests_refused": sum(dict(self.server.counts.refused).values()),
                "readers_stalled": self.server.counts.stalled,
                "requests": self.server.counts.requests,
                "fetched_bytes": self.server.counts.bytes_sent,
                "doors": self.listeners.info(),
                "tracing": self.spans(),
                **({} if self.grpc is None else {"grpc": self.grpc.info()}),
                **({} if self.hints is None else {"jetstream_hints": self.hints.info()}),
                **self.engine.info(),
            },
        )

    def registry(self) -> CollectorRegistry:
        """A registry that reads the counters when it is scraped."""
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
        for partition in self.engine.partitions():
            if partition.failure:
                yield f"stream {partition.label}: {partition.failure}"
            if damaged := damaged_ranges(partition):
                count = pluralize(sum(upto - first for first, upto in damaged), "offset")
                what = f"{count} cannot be read: damaged from offset {damaged[0][0]} on"
                yield f"stream {partition.label}: {what}; see: penstock logd gaps"
            dedup = partition.intake.dedup
            if dedup.lost_until_ns > self.engine.subscription_manager.now().unix_ns:
                what = f"what it remembered below offset {dedup.lost} is lost"
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
            "passed_over": partition.publish_queue.passed_over,
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


def _compaction_metrics(partitions: list[Partition]) -> Iterable[Metric]:
    label = ["stream"]
    counters = {
        "bytes_read": "Bytes that compaction read",
        "bytes_written": "Bytes that compaction wrote",
        "bytes_freed": "Bytes that segments became smaller by compaction",
        "records_removed": "Superseded records and old tombstones removed",
        "segments_replaced": "Segments whose place others took",
        "passes": "Passes over the keys",
        "failures": "Rewritings that failed",
    }
    for name, text in counters.items():
        counter = _counter(f"compaction_{name}", text, label)
        for partition in partitions:
            counter.add_metric(
                [partition.label], getattr(partition.compaction_scheduler.counts, name)
            )
        yield counter
    last = _gauge("compaction_last_seconds", "Unix time of the last compaction; 0: never", label)
    took = _gauge("compaction_last_duration_seconds", "How long the last compaction took", label)
    for partition in partitions:
        last.add_metric([partition.label], partition.compaction_scheduler.counts.last_ns / 1e9)
        took.add_metric(
            [partition.label], partition.compaction_scheduler.counts.last_duration_ns / 1e9
        )
    yield from (last, took)


class _Shown:
    """The partitions that have series: all of them, or those where something is to be seen.

    A partition has 2 KB of series, which thousands of idle streams are not worth. Those in trouble
    come first, so that every alert finds its series, then those with most records since the start.

    Attributes:
        left_out: How many have none.
    """

    def __init__(self, engine: ClusterEngine, most: int) -> None:
        self.partitions = engine.partitions()
        self.offline_partitions = engine.offline_partition()
        count = len(self.partitions) + len(self.offline_partitions)
        self.left_out = max(0, count - most)
        if not self.left_out:
            return
        short = engine.under_replicated()

        def rank(partition: Partition) -> tuple[bool, int]:
            counts = partition.intake.counts
            is_in_trouble = bool(
                partition.failure
                or partition.label in short
                or counts.refused.total()
                or partition.publish_queue.lost
                or partition.intake.dedup.lost_until_ns
                or partition.compaction_scheduler.counts.failures
                or damaged_ranges(partition)
            )
            return is_in_trouble, counts.received

        self.offline_partitions = self.offline_partitions[:most]
        ranked = sorted(self.partitions, key=rank, reverse=True)
        chosen = set(ranked[: most - len(self.offline_partitions)])
        self.partitions = [partition for partition in self.partitions if partition in chosen]


class _Scrape(Collector):
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    @override
    def collect(self) -> Iterable[Metric]:
        engine = self._telemetry.engine
        shown = _Shown(engine, self._telemetry.metrics_streams_max)
        yield from _stream_metrics(shown.partitions, shown.offline_partitions)
        yield _damage_metric(shown.partitions)
        yield from _compaction_metrics(shown.partitions)
        hidden = _gauge("streams_without_series", "Streams that have no series here", [])
        hidden.add_metric([], shown.left_out)
        yield hidden
        yield from _process_metrics(self._telemetry)
        yield from _disk_metrics(self._telemetry.data_dir)
        subscription_manager = engine.subscription_manager
        yield from gap_metrics(subscription_manager.gaps, subscription_manager.now())
        yield from engine.metrics(shown.partitions)
        yield from self._telemetry.reloader.metrics()
        yield from self._telemetry.listeners.metrics()
        yield from span_metrics("logd", self._telemetry.spans())
        if self._telemetry.grpc is not None:
            yield from self._telemetry.grpc.metrics()


def _stream_metrics(
    partitions: list[Partition], offline_partition: list[OfflinePartition]
) -> Iterable[Metric]:
    label = ["stream"]
    received = _counter("records_received", "Records that arrived", label)
    received_bytes = _counter("bytes_received", "Payload bytes that arrived", label)
    committed = _counter("records_committed", "Records committed", label)
    duplicates = _counter("records_duplicate", "Records that were stored before", label)
    lost = _counter("records_lost", "Records accepted and lost to a failed disk", label)
    deleted = _counter("records_deleted", "Records deleted by retention", label)
    deleted_bytes = _counter("bytes_deleted", "Bytes of segments deleted by retention", label)
    malformed = _counter("envelopes_malformed", "Envelopes stored as plain messages", label)
    uncommitted = _gauge("records_uncommitted", "Records accepted, not committed yet", label)
    high_watermark = _gauge("high_watermark", "Offset of the last committed record", label)
    start = _gauge("start_offset", "First offset that can be read", label)
    size = _gauge("size_bytes", "Bytes of segments", label)
    held = _gauge("stream_bytes_held", "Bytes of its messages that wait for the disk", label)
    passed_over = _counter("messages_passed_over", "Messages on reserved subjects", label)
    failed = _gauge("stream_failed", "1 when the stream takes no writes, or is not open", label)
    streams: list[Partition | OfflinePartition] = [*partitions, *offline_partition]
    for each in streams:
        counts = each.intake.counts
        received.add_metric([each.label], counts.received)
        received_bytes.add_metric([each.label], counts.received_bytes)
        handler = each.publish_queue if isinstance(each, Partition) else each
        passed_over.add_metric([each.label], handler.passed_over)
        failed.add_metric(
            [each.label], int(isinstance(each, OfflinePartition) or bool(each.failure))
        )
    for partition in partitions:
        name, counts = [partition.label], partition.intake.counts
        committed.add_metric(name, partition.publish_queue.committed)
        duplicates.add_metric(name, counts.duplicates)
        lost.add_metric(name, partition.publish_queue.lost)
        deleted.add_metric(name, partition.retention_task.records_deleted)
        deleted_bytes.add_metric(name, partition.retention_task.bytes_deleted)
        malformed.add_metric(name, counts.malformed_envelopes)
        uncommitted.add_metric(name, partition.publish_queue.uncommitted)
        high_watermark.add_metric(name, partition.high_watermark)
        start.add_metric(name, partition.start_offset)
        size.add_metric(name, partition.log.size_bytes)
        held.add_metric(name, partition.budget.held)
    yield _refused_metric(streams)
    yield from _dedup_metrics(partitions)
    yield from (received, received_bytes, committed, duplicates, lost, malformed)
    yield from (deleted, deleted_bytes)
    yield from (uncommitted, high_watermark, start, size, held, passed_over, failed)


def _refused_metric(streams: list[Partition | OfflinePartition]) -> Metric:
    refused = _counter("records_refused", "Records refused", ["stream", "reason"])
    for each in streams:
        for nack, count in dict(each.intake.counts.refused).items():
            refused.add_metric([each.label, nack.name.lower()], count)
    return refused


def _damage_metric(partitions: list[Partition]) -> Metric:
    damaged = _gauge(
        "damaged_offsets", "Offsets known to be damaged, which cannot be read.", ["stream"]
    )
    for partition in partitions:
        ranges = damaged_ranges(partition)
        damaged.add_metric([partition.label], sum(upto - first for first, upto in ranges))
    return damaged


def _dedup_metrics(partitions: list[Partition]) -> Iterable[Metric]:
    label = ["stream", "what"]
    entries = _gauge("dedup_entries", "Message ids and producers remembered", label)
    most = _gauge("dedup_entries_max", "How many of them there may be", label)
    evicted = _counter("dedup_evicted", "Forgotten before their time, for too many", label)
    forgotten = _gauge("memory_lost", "1 when the file of what it remembers was lost", ["stream"])
    for partition in partitions:
        dedup = partition.intake.dedup
        forgotten.add_metric([partition.label], int(bool(dedup.lost_until_ns)))
        for what, count, limit, lost in (
            ("ids", len(dedup.message_ids), dedup.message_ids.ids_max, dedup.message_ids.evicted),
            ("producers", len(dedup.producers), dedup.producers.producers_max,
             dedup.producers.evicted),
        ):  # fmt: skip
            entries.add_metric([partition.label, what], count)
            most.add_metric([partition.label, what], limit)
            evicted.add_metric([partition.label, what], lost)
    yield from (entries, most, evicted, forgotten)


def _process_metrics(telemetry: Telemetry) -> Iterable[Metric]:
    links = _gauge("nats_connected", "1 while the connection stands", ["link"])
    links.add_metric(["data"], int(telemetry.data_link.connected))
    links.add_metric(["acks"], int(telemetry.ack_link.connected))
    yield links
    refused = _counter("fetch_requests_refused", "Requests refused", ["code"])
    for code, count in dict(telemetry.server.counts.refused).items():
        refused.add_metric([code.lower()], count)
    yield refused
    groups = telemetry.engine.groups.figures()
    coordinated = _counter("group_events", "What this node did as coordinator of groups", ["what"])
    for what, count in dict(groups.counts).items():
        coordinated.add_metric([what.replace(" ", "_")], count)
    yield coordinated
    for name, text, value in (
        ("acks_sent", "Acks and refusals sent", telemetry.acks.sent),
        ("acks_dropped", "Acks and refusals that NATS did not take", telemetry.acks.dropped),
        ("acks_withheld", "Acks wanted where a stream stores them", telemetry.acks.withheld),
        ("acks_denied", "Acks and refusals not permitted", telemetry.ack_link.publishes_denied),
        ("streams_reopened", "Logs opened again after want of space", telemetry.engine.revived),
        ("fetch_requests", "Fetch and control requests", telemetry.server.counts.requests),
        ("fetch_bytes", "Payload bytes sent to readers", telemetry.server.counts.bytes_sent),
        ("fetch_readers_stalled", "Readers cut off", telemetry.server.counts.stalled),
        ("cursor_commits", "Cursors committed or deleted", telemetry.engine.cursors.commits),
        ("nats_reconnects", "Times the data link came back", telemetry.data_link.reconnects),
        ("nats_unproven", "NATS servers not proven to be heard", telemetry.data_link.unproven),
    ):
        counter = _counter(name, text, [])
        counter.add_metric([], value)
        yield counter
    for name, text, value in (
        ("intake_bytes_held", "Bytes that wait for the disk", telemetry.budget.held),
        ("intake_bytes_max", "How many of them there may be", telemetry.budget.bytes_max),
        ("streams", "Streams", len(telemetry.engine.partitions())),
        ("streams_max", "How many of them there may be", telemetry.engine.streams_max),
        ("fetch_connections", "Connections of readers", telemetry.server.connections),
        ("cursors", "Consumers' cursors", len(telemetry.engine.cursors)),
        ("groups", "Consumer groups with members", groups.groups),
        ("group_members", "Members of all of them", groups.members),
        ("fetch_outstanding", "Requests under way", telemetry.server.counts.outstanding),
    ):
        gauge = _gauge(name, text, [])
        gauge.add_metric([], value)
        yield gauge


def _disk_metrics(data_dir: Path) -> Iterable[Metric]:
    free = _gauge("disk_free_bytes", "Bytes that the file system of data_dir has left", [])
    size = _gauge("disk_size_bytes", "Bytes of the file system of data_dir", [])
    with suppress(OSError):  # a disk that is gone shows in the streams
        usage = shutil.disk_usage(data_dir)
        free.add_metric([], usage.free)
        size.add_metric([], usage.total)
    return free, size


def _counter(name: str, text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(f"penstock_logd_{name}", text, labels=labels)


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_logd_{name}", text, labels=labels)
