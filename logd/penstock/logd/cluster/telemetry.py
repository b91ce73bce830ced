"""What a node says of its part in a cluster, for Prometheus and `/status`.

The admin thread calls these; it goes over copies of what grows.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.logd.cluster.hosting import HostedReplica
from penstock.logd.cluster.node import ClusterNode

_Samples = list[tuple[list[str], int]]

_PREFIX = "penstock_logd_cluster_"


def describe_node(node: ClusterNode, replicas: list[HostedReplica]) -> dict[str, Any]:
    """The entry `cluster` of `/status`."""
    return {
        "name": node.cluster,
        "controller": node.group.leader,
        "term": node.member.term,
        "applied_index": node.group.state.index,
        "lease": node.controlling.leads,
        "leads": sum(replica.leading for replica in replicas),
        "replicas": len(replicas),
        "unclean_elections": _unclean_elections(node, replicas),
        "unreachable": sorted(link.peer for link in node.mesh.links() if not link.up),
    }


def _unclean_elections(node: ClusterNode, replicas: list[HostedReplica]) -> dict[str, int]:
    """Of the partitions here, those that were ever led by a replica that lacked records."""
    found = ((replica, node.group.state.partition(replica.place)) for replica in replicas)
    counts = {
        replica.partition.label: known[1].unclean_elections for replica, known in found if known
    }
    return {label: count for label, count in counts.items() if count}


def cluster_metrics(node: ClusterNode, replicas: list[HostedReplica]) -> Iterable[Metric]:
    """Everything that a lone logd has not."""
    yield from _node_metrics(node)
    yield from _peer_metrics(node)
    yield from _replica_metrics(node, replicas)
    yield from _standby_metrics(replicas)


def _node_metrics(node: ClusterNode) -> Iterable[Metric]:
    for name, text, value in (
        ("controller", "1 on the node that decides", int(node.controlling.controller.decides)),
        ("lease", "1 while the node may lead", int(node.controlling.leads)),
        ("term", "Of the metadata group", node.member.term),
        ("applied_index", "Of the metadata group's log", node.group.state.index),
    ):
        yield _gauge(name, text, [], [([], value)])
    decided = dict(node.controlling.controller.counts)
    samples = [([kind.replace(" ", "_")], count) for kind, count in decided.items()]
    yield _counter("decisions", "What this node decided as the controller", ["kind"], samples)


def _peer_metrics(node: ClusterNode) -> Iterable[Metric]:
    links, fed, fetched = node.mesh.links(), dict(node.replication.fed), node.replication.fetched
    up = [([link.peer], int(link.up)) for link in links]
    yield _gauge("peer_connected", "1 while messages get to the node", ["peer"], up)
    dropped = [([link.peer], link.counts.dropped) for link in links]
    yield _counter("messages_dropped", "Messages of the metadata group", ["peer"], dropped)
    sent = [([peer], counts.frames_bytes) for peer, counts in fed.items()]
    yield _counter("replicated_bytes_sent", "Of frames", ["peer"], sent)
    received = [([peer], counts.frames_bytes) for peer, counts in fetched.items()]
    yield _counter("replicated_bytes_received", "Of frames", ["peer"], received)
    broken = [([peer], counts.broken) for peer, counts in fetched.items()]
    yield _counter("fetch_sessions_broken", "Though there was more to fetch", ["peer"], broken)


def _replica_metrics(node: ClusterNode, replicas: list[HostedReplica]) -> Iterable[Metric]:
    label = ["stream"]
    leads, epochs, in_sync, wanted = _Samples(), _Samples(), _Samples(), _Samples()
    least, unclean = _Samples(), _Samples()
    ignored, undecided, findings = _Samples(), _Samples(), _Samples()
    for replica in replicas:
        name, leadership = [replica.partition.label], replica.partition.leadership
        found = node.group.state.partition(replica.place)
        leads.append((name, int(replica.leading)))
        epochs.append((name, replica.epoch))
        if found is not None:
            in_sync.append((name, len(found[1].isr)))
            wanted.append((name, len(found[1].replicas)))
            least.append((name, found[0].min_isr))
            unclean.append((name, found[1].unclean_elections))
        ignored.append((name, leadership.ignored))
        undecided.append((name, leadership.undecided))
        for finding, count in dict(replica.findings).items():
            findings.append(([*name, finding.name.lower()], count))
    yield _gauge("leads", "1 where this node leads", label, leads)
    yield _gauge("leader_epoch", "As this node knows it", label, epochs)
    yield _gauge("in_sync_replicas", "As this node knows it", label, in_sync)
    yield _gauge("replicas", "As many as are wanted", label, wanted)
    text = "Replicas in sync below which nothing is stored"
    yield _gauge("in_sync_replicas_min", text, label, least)
    yield _counter("unclean_elections", "Leaders there were that lacked records", label, unclean)
    yield _counter("messages_ignored", "Came while it did not lead", label, ignored)
    yield _counter("records_undecided", "Accepted, and left to later leaders", label, undecided)
    yield _counter("findings", "What an operator should look at", [*label, "finding"], findings)


def _standby_metrics(replicas: list[HostedReplica]) -> Iterable[Metric]:
    held, size, counted = _Samples(), _Samples(), _Samples()
    for replica in replicas:
        standby, name = replica.partition.leadership.standby, [replica.partition.label]
        if standby is None:
            continue
        window = standby.window
        held.append((name, len(window)))
        size.append((name, window.held_bytes))
        counts = asdict(window.counts)
        counted += [([*name, what], count) for what, count in counts.items()]
    label = ["stream"]
    yield _gauge("standby_messages", "Heard, and not known to be stored", label, held)
    yield _gauge("standby_bytes", "Held for what was heard", label, size)
    text = "What became of messages that a standby heard"
    yield _counter("standby", text, [*label, "what"], counted)


def _gauge(name: str, text: str, labels: list[str], samples: _Samples) -> Metric:
    gauge = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    for values, value in samples:
        gauge.add_metric(values, value)
    return gauge


def _counter(name: str, text: str, labels: list[str], samples: _Samples) -> Metric:
    counter = CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for values, value in samples:
        counter.add_metric(values, value)
    return counter
