"""Every metric of logd, declared once: name, type, labels, and a sentence that says what it is.

The parts of logd give samples to `family`, which makes what a scrape gets of the declaration. The
names follow Prometheus: base units, counters end in `_total` when they are served. A counter counts
since the process started.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from penstock.base.lazy_module import LazyModule

if TYPE_CHECKING:
    from prometheus_client import core
else:
    core = LazyModule("prometheus_client.core")  # only a scrape needs it

PREFIX: Final = "penstock_logd_"

Samples = Iterable[tuple[Sequence[str], float]]
"""Values, each with those of the labels."""

LabeledSamples = Iterable[tuple[dict[str, str], float]]
"""Values, each with its labels by name; many may share these, which are only read."""


class _Declared(NamedTuple):
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...]


def _counter(text: str, *labels: str) -> _Declared:
    return _Declared("counter", text, labels)


def _gauge(text: str, *labels: str) -> _Declared:
    return _Declared("gauge", text, labels)


METRICS: Final = {
    # Streams: records and messages.
    "records_received": _counter("Records that arrived on a stream's subject.", "stream"),
    "bytes_received": _counter("Payload bytes that arrived on a stream's subject.", "stream"),
    "records_committed": _counter("Records that a stream committed.", "stream"),
    "records_duplicate": _counter(
        "Records that a stream did not store because it has them already.", "stream"
    ),
    "records_refused": _counter("Records that a stream refused, by reason.", "stream", "reason"),
    "records_lost": _counter(
        "Records that a stream accepted and then lost because the disk failed.", "stream"
    ),
    "records_uncommitted": _gauge(
        "Records that a stream has accepted and not committed yet.", "stream"
    ),
    "envelopes_malformed": _counter(
        "Batch envelopes that logd could not read and stored as plain messages.", "stream"
    ),
    "messages_skipped": _counter(
        "Messages on reserved subjects, which a stream does not store.", "stream"
    ),
    "stream_failed": _gauge("1 when a stream takes no records or is not open, else 0.", "stream"),
    "stream_intake_bytes": _gauge("Bytes of a stream's messages that wait for the disk.", "stream"),
    # Streams: what is on the disk.
    "start_offset": _gauge("Offset of a stream's first readable record.", "stream"),
    "high_watermark": _gauge("Offset of a stream's last committed record.", "stream"),
    "size_bytes": _gauge("Bytes that the segments of a stream take.", "stream"),
    "records_deleted": _counter("Records that retention deleted.", "stream"),
    "bytes_deleted": _counter("Bytes of the segments that retention deleted.", "stream"),
    "damaged_offsets": _gauge("Offsets that are known to be damaged and cannot be read.", "stream"),
    "streams": _gauge("Partitions that are open on this node."),
    "max_streams": _gauge("Partitions that this node may have, as `max_streams` says."),
    "streams_reopened": _counter("Logs that logd opened again after the disk had been full."),
    "streams_without_series": _gauge(
        "Partitions that have no series here, because there are more than `max_metrics_streams`."
    ),
    # Streams: duplicates.
    "dedup_entries": _gauge(
        "Message ids (`kind` is `ids`) and producers in a stream's dedup state.", "stream", "kind"
    ),
    "dedup_max_entries": _gauge(
        "Message ids and producers that a stream's dedup state may hold.", "stream", "kind"
    ),
    "dedup_evicted": _counter(
        "Message ids and producers dropped early from a stream's dedup state because it was full.",
        "stream",
        "kind",
    ),
    "producer_state_lost": _gauge(
        "1 after the file of a stream's producer state was lost, until the window is over.",
        "stream",
    ),
    # Streams: compaction.
    "compaction_bytes_read": _counter("Bytes that compaction read.", "stream"),
    "compaction_bytes_written": _counter("Bytes that compaction wrote.", "stream"),
    "compaction_bytes_freed": _counter(
        "Bytes by which compaction made segments smaller.", "stream"
    ),
    "compaction_records_removed": _counter(
        "Superseded records and old tombstones that compaction removed.", "stream"
    ),
    "compaction_segments_replaced": _counter("Segments that compaction replaced.", "stream"),
    "compaction_passes": _counter("Passes of compaction over the keys of a stream.", "stream"),
    "compaction_failures": _counter("Passes of compaction that failed.", "stream"),
    "compaction_last_seconds": _gauge(
        "Unix time of the last compaction; 0 when there was none.", "stream"
    ),
    "compaction_last_duration_seconds": _gauge("Duration of the last compaction.", "stream"),
    # Ingest gaps.
    "ingest_gaps": _counter("Ingest gaps of a stream that began, by reason.", "stream", "reason"),
    "ingest_gap_seconds": _counter(
        "Time in which a stream may have missed messages, by reason.", "stream", "reason"
    ),
    "ingest_gap_messages": _counter(
        "Messages that logd dropped without an answer to their publisher.", "stream", "reason"
    ),
    "ingest_gaps_lasting": _gauge("Ingest gaps that are not over yet."),
    # Intake and acks.
    "intake_bytes": _gauge("Bytes of messages that wait for the disk, over all streams."),
    "intake_max_bytes": _gauge("Bytes of messages that may wait, as `max_intake_bytes` says."),
    "acks_sent": _counter("Acks and refusals that logd sent to publishers."),
    "acks_dropped": _counter("Acks and refusals that the connection to NATS did not take."),
    "acks_withheld": _counter(
        "Acks that logd did not send because a stream would have stored them."
    ),
    "acks_denied": _counter("Acks and refusals that nats-server did not permit logd to send."),
    # NATS.
    "nats_connected": _gauge(
        "1 while logd's connection to NATS for `data` or `acks` is up, else 0.", "link"
    ),
    "nats_reconnects": _counter("Times that the connection for data came back."),
    "nats_unproven": _counter(
        "NATS servers from which logd could not prove that it gets their messages."
    ),
    # Readers.
    "fetch_requests": _counter("Requests to the fetch port, control requests included."),
    "fetch_requests_refused": _counter("Requests to the fetch port that failed, by code.", "code"),
    "fetch_requests_open": _gauge("Requests to the fetch port that are under way."),
    "fetch_bytes": _counter("Payload bytes that logd sent to readers."),
    "fetch_connections": _gauge("Connections to the fetch port."),
    "fetch_readers_stalled": _counter(
        "Readers whose connection logd closed because they did not take what they asked for."
    ),
    "cursors": _gauge("Cursors of consumers."),
    "cursor_commits": _counter("Cursors that consumers committed or deleted."),
    "groups": _gauge("Consumer groups that have members."),
    "group_members": _gauge("Members of all consumer groups."),
    "group_events": _counter("Events of this node as coordinator of consumer groups.", "event"),
    # The cluster.
    "cluster_controller": _gauge("1 on the node that is the controller, else 0."),
    "cluster_lease": _gauge("1 while this node's lease lets it lead partitions, else 0."),
    "cluster_term": _gauge("Raft term of the metadata group."),
    "cluster_applied_index": _gauge("Index of the last metadata command that this node applied."),
    "cluster_decisions": _counter("Decisions of this node as the controller.", "kind"),
    "cluster_peer_connected": _gauge(
        "1 while this node's connection to a peer is up, else 0.", "peer"
    ),
    "cluster_messages_dropped": _counter(
        "Messages of the metadata group that could not be sent to a peer.", "peer"
    ),
    "cluster_replicated_bytes_sent": _counter("Bytes of frames that a peer fetched.", "peer"),
    "cluster_replicated_bytes_received": _counter(
        "Bytes of frames that this node fetched from a peer.", "peer"
    ),
    "cluster_fetch_sessions_broken": _counter(
        "Replication sessions with a peer that ended while there was more to fetch.", "peer"
    ),
    "cluster_leads": _gauge("1 where this node leads the partition, else 0.", "stream"),
    "cluster_leader_epoch": _gauge("Leader epoch that this node knows.", "stream"),
    "cluster_replicas": _gauge("Replicas that a partition is to have.", "stream"),
    "cluster_in_sync_replicas": _gauge("Replicas in sync, as this node knows them.", "stream"),
    "cluster_min_in_sync_replicas": _gauge(
        "Replicas in sync below which a partition stores nothing.", "stream"
    ),
    "cluster_unclean_elections": _counter(
        "Elections of a leader that lacked committed records.", "stream"
    ),
    "cluster_messages_ignored": _counter(
        "Messages that came to a replica that does not lead.", "stream"
    ),
    "cluster_records_undecided": _counter(
        "Records that this node accepted as leader and that a later leader decides on.", "stream"
    ),
    "cluster_findings": _counter(
        "Findings of replication that an operator should look at.", "stream", "finding"
    ),
    # Security.
    "authentications": _counter("Clients that authenticated.", "endpoint"),
    "authentications_failed": _counter(
        "Clients that failed to authenticate, by reason.", "endpoint", "reason"
    ),
    "tls_handshakes_failed": _counter("Connections whose TLS handshake failed.", "endpoint"),
    "connections_refused": _counter(
        "Connections that logd refused because max_connections was reached.", "endpoint"
    ),
    "tls_reloads": _counter("Times that changed TLS files were read again.", "section", "outcome"),
    "tls_not_after_seconds": _gauge("Unix time at which a certificate ends.", "section"),
    "requests_denied": _counter("Requests that no rule of the access list allowed."),
    "activity": _counter("Events of the activity stream, by outcome.", "outcome"),
    "activity_waiting": _gauge("Events of the activity stream that are not written yet."),
    "quota_used": _counter("Use of a quota, in its unit.", "principal", "quota"),
    "quota_delay_seconds": _counter(
        "Time by which answers were delayed because of a quota.", "principal", "quota"
    ),
    "quota_refused": _counter("Requests refused because of a quota.", "principal", "quota"),
    # Liftbridge's API.
    "grpc_calls": _counter("Calls of Liftbridge's API that ended.", "method", "code"),
    "grpc_calls_open": _gauge("Calls of Liftbridge's API that are under way."),
    "grpc_publishes": _counter("Messages published through gRPC, by outcome.", "outcome"),
    "grpc_publish_streams": _gauge("Open calls that publish a stream of messages."),
    "grpc_publish_bytes": _gauge("Bytes of messages published through gRPC that wait for acks."),
    "grpc_request_bytes": _gauge("Bytes of gRPC requests that are under way."),
    "grpc_subscriptions": _gauge("Open subscriptions."),
    "grpc_messages_sent": _counter("Messages that logd sent to subscribers."),
    # The disk.
    "disk_free_bytes": _gauge("Free bytes of the file system of `data_dir`."),
    "disk_size_bytes": _gauge("Bytes of the file system of `data_dir`."),
}
"""Declared metrics by name, without the prefix."""


def family(name: str, samples: Samples) -> "core.Metric":
    """One metric as a scrape gets it.

    Args:
        name: Name in `METRICS`.
        samples: Its values.
    """
    names = METRICS[name].labels
    return labeled_family(
        name, ((dict(zip(names, labels, strict=True)), value) for labels, value in samples)
    )


def labeled_family(name: str, samples: LabeledSamples) -> "core.Metric":
    """One metric as a scrape gets it, in a quarter of the time if its samples share their labels.

    Args:
        name: Name in `METRICS`.
        samples: Its values.
    """
    declared, sample = METRICS[name], core.Sample
    is_counter = declared.kind == "counter"
    kind = core.CounterMetricFamily if is_counter else core.GaugeMetricFamily
    found = kind(PREFIX + name, declared.help, labels=declared.labels)
    served = f"{found.name}_total" if is_counter else found.name
    found.samples = [sample(served, labels, value) for labels, value in samples]
    return found


def value_of(name: str, value: float) -> "core.Metric":
    """A metric without labels as a scrape gets it."""
    return family(name, [((), value)])
