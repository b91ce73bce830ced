"""Alert rules, each with series on which it must fire and series on which it must not.

Annotations are plain text: the labels say which stream, sink or instance it is about.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Series = tuple[tuple[str, str], ...]
"""Of each: series, and its values minute by minute as promtool writes them."""

GUIDE = "docs/OPERATING.md"
MINUTE = 60


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One rule.

    Attributes:
        lasts: How long the expression holds before it fires.
        fires: Series on which it fires at `at_min`, with labels `labels`.
        quiet: Series on which it does not.
    """

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str
    what_to_do: str
    fires: Series
    labels: dict[str, str]
    quiet: Series
    at_min: int = 20


ALERTS = (
    Alert(
        name="PenstockPartDown", expr='up{job=~"penstock.*"} == 0', lasts="1m", severity="critical",
        summary="A process of Penstock does not answer.",
        what_to_do="See its log; penstock status says which parts answer.",
        fires=(('up{job="penstock-logd",instance="a"}', "1 0x30"),),
        labels={"job": "penstock-logd", "instance": "a"},
        quiet=(('up{job="penstock-logd",instance="a"}', "1x30"), ('up{job="other"}', "0x30")),
    ),
    Alert(
        name="PenstockStreamWithoutLeader",
        expr="sum by (stream) (penstock_logd_cluster_leads) == 0", lasts="1m", severity="critical",
        summary="A stream has no leader: nothing is stored.",
        what_to_do="Start the nodes that have its replicas; penstock logd streams ls names them.",
        fires=(('penstock_logd_cluster_leads{stream="logs",instance="a"}', "0x30"),
               ('penstock_logd_cluster_leads{stream="logs",instance="b"}', "1 1 0x28")),
        labels={"stream": "logs"},
        quiet=(('penstock_logd_cluster_leads{stream="logs",instance="a"}', "0x30"),
               ('penstock_logd_cluster_leads{stream="logs",instance="b"}', "1x30")),
    ),
    Alert(
        name="PenstockStreamBelowMinIsr",
        expr="penstock_logd_cluster_in_sync_replicas < penstock_logd_cluster_min_in_sync_replicas"
        " and penstock_logd_cluster_leads == 1",
        lasts="1m", severity="critical",
        summary="A stream has fewer replicas in sync than it needs: publishers are refused.",
        what_to_do="Bring a replica back; penstock logd streams info names those that are missing.",
        fires=(('penstock_logd_cluster_in_sync_replicas{stream="logs",instance="a"}', "1x30"),
               ('penstock_logd_cluster_min_in_sync_replicas{stream="logs",instance="a"}', "2x30"),
               ('penstock_logd_cluster_leads{stream="logs",instance="a"}', "1x30")),
        labels={"stream": "logs", "instance": "a"},
        quiet=(('penstock_logd_cluster_in_sync_replicas{stream="logs",instance="a"}', "2x30"),
               ('penstock_logd_cluster_min_in_sync_replicas{stream="logs",instance="a"}', "2x30"),
               ('penstock_logd_cluster_leads{stream="logs",instance="a"}', "1x30")),
    ),
    Alert(
        name="PenstockStreamUnderReplicated",
        expr="penstock_logd_cluster_in_sync_replicas < penstock_logd_cluster_replicas"
        " and penstock_logd_cluster_leads == 1",
        lasts="10m", severity="warning",
        summary="A stream has a replica that is behind or away.",
        what_to_do="penstock logd streams ls names it; see that node's log.",
        fires=(('penstock_logd_cluster_in_sync_replicas{stream="logs",instance="a"}', "2x30"),
               ('penstock_logd_cluster_replicas{stream="logs",instance="a"}', "3x30"),
               ('penstock_logd_cluster_leads{stream="logs",instance="a"}', "1x30")),
        labels={"stream": "logs", "instance": "a"},
        quiet=(('penstock_logd_cluster_in_sync_replicas{stream="logs",instance="a"}', "2x13 3x16"),
               ('penstock_logd_cluster_replicas{stream="logs",instance="a"}', "3x30"),
               ('penstock_logd_cluster_leads{stream="logs",instance="a"}', "1x30")),
    ),
    Alert(
        name="PenstockUncleanElection",
        expr="increase(penstock_logd_cluster_unclean_elections_total[1h]) > 0", lasts="0m",
        severity="critical", summary="A leader was elected that lacks acknowledged records.",
        what_to_do="It was asked for; readers that had got further are refused (RECORDS_LOST).",
        fires=(('penstock_logd_cluster_unclean_elections_total{stream="logs"}', "0x10 1x20"),),
        labels={"stream": "logs"},
        quiet=(('penstock_logd_cluster_unclean_elections_total{stream="logs"}', "1x30"),),
    ),
    Alert(
        name="PenstockStreamFailed", expr="penstock_logd_stream_failed == 1", lasts="1m",
        severity="critical", summary="A stream takes no writes on a node, or could not be opened.",
        what_to_do="The node's /status says why; afterwards: penstock logd streams open.",
        fires=(('penstock_logd_stream_failed{stream="logs"}', "0 1x30"),),
        labels={"stream": "logs"},
        quiet=(('penstock_logd_stream_failed{stream="logs"}', "0x30"),),
    ),
    Alert(
        name="PenstockRecordsDamaged", expr="penstock_logd_damaged_offsets > 0", lasts="5m",
        severity="critical", summary="Stored records are damaged and cannot be read.",
        what_to_do="penstock logd gaps names them. In a cluster they are fetched from another "
        "replica; else read past them with --skip-damaged, and see to that disk.",
        fires=(('penstock_logd_damaged_offsets{stream="logs"}', "0 7x30"),),
        labels={"stream": "logs"},
        quiet=(('penstock_logd_damaged_offsets{stream="logs"}', "0x30"),),
    ),
    Alert(
        name="PenstockRecordsLost", expr="increase(penstock_logd_records_lost_total[15m]) > 0",
        lasts="0m", severity="critical", summary="Accepted records were lost to a failed disk.",
        what_to_do="See the node's log and its disk.",
        fires=(('penstock_logd_records_lost_total{stream="logs"}', "0x14 9x15"),),
        labels={"stream": "logs"},
        quiet=(('penstock_logd_records_lost_total{stream="logs"}', "9x30"),),
    ),
    Alert(
        name="PenstockIngestGaps", expr="increase(penstock_logd_ingest_gaps_total[10m]) > 0",
        lasts="0m", severity="warning", summary="A stream missed messages for some time.",
        what_to_do="penstock logd gaps says when, why and how many; the label reason names why.",
        fires=(('penstock_logd_ingest_gaps_total{stream="logs",reason="reconnecting"}',
                "0x14 1x15"),),
        labels={"stream": "logs", "reason": "reconnecting"},
        quiet=(('penstock_logd_ingest_gaps_total{stream="logs",reason="reconnecting"}', "1x30"),),
    ),
    Alert(
        name="PenstockNatsDisconnected", expr="penstock_logd_nats_connected == 0", lasts="1m",
        severity="critical", summary="A logd has no connection to NATS: it hears no publisher.",
        what_to_do="See nats-server, the network, and the node's /status for the reason.",
        fires=(('penstock_logd_nats_connected{link="data"}', "1 0x30"),), labels={"link": "data"},
        quiet=(('penstock_logd_nats_connected{link="data"}', "1x30"),),
    ),
    Alert(
        name="PenstockDiskNearlyFull",
        expr="penstock_logd_disk_free_bytes / penstock_logd_disk_size_bytes < 0.1", lasts="5m",
        severity="warning", summary="Less than a tenth of a node's disk is free.",
        what_to_do="Give streams limits (docs/logd/streams.md), or the node a larger disk.",
        fires=(('penstock_logd_disk_free_bytes{instance="a"}', "9x30"),
               ('penstock_logd_disk_size_bytes{instance="a"}', "100x30")),
        labels={"instance": "a"},
        quiet=(('penstock_logd_disk_free_bytes{instance="a"}', "11x30"),
               ('penstock_logd_disk_size_bytes{instance="a"}', "100x30")),
    ),
    Alert(
        name="PenstockCertificateExpiring",
        expr="penstock_logd_tls_not_after_seconds - time() < 14 * 86400", lasts="10m",
        severity="warning", summary="A certificate ends in less than 14 days.",
        what_to_do="Replace its file: it is read again within a second.",
        fires=(('penstock_logd_tls_not_after_seconds{section="fetch.tls"}', "1000000x30"),),
        labels={"section": "fetch.tls"},
        quiet=(('penstock_logd_tls_not_after_seconds{section="fetch.tls"}', "2000000x30"),),
    ),
    Alert(
        name="PenstockSpoolNearlyFull",
        expr="penstock_collector_spool_bytes / (penstock_collector_spool_max_bytes > 0) > 0.8",
        lasts="2m", severity="warning",
        summary="A collector's spool is more than four fifths full; when it is, sources wait.",
        what_to_do="penstock status says whether logd stores, and why what waits is not delivered.",
        fires=(('penstock_collector_spool_bytes{spool="spool"}', "85x30"),
               ('penstock_collector_spool_max_bytes{spool="spool"}', "100x30")),
        labels={"spool": "spool"},
        quiet=(('penstock_collector_spool_bytes{spool="spool"}', "75x30"),
               ('penstock_collector_spool_max_bytes{spool="spool"}', "100x30")),
    ),
    Alert(
        name="PenstockReconciliationBroken", expr="penstock_collector_unreconciled_records != 0",
        lasts="2m", severity="critical",
        summary="A collector's account of records is not even.",
        what_to_do="Keep its directory and log: it is a bug.",
        fires=(('penstock_collector_unreconciled_records{source="unix"}', "0 -3x30"),),
        labels={"source": "unix"},
        quiet=(('penstock_collector_unreconciled_records{source="unix"}', "0x30"),),
    ),
    Alert(
        name="PenstockAccountOff", expr='penstock_console_account_state{state="off"} == 1',
        lasts="2m", severity="critical",
        summary="Records are not accounted for in a stage of the pipeline.",
        what_to_do="Run penstock account; keep the logs of the part that it names.",
        fires=(('penstock_console_account_state{stage="sink",part="router/lake",state="off"}',
                "0 1x30"),),
        labels={"stage": "sink", "part": "router/lake", "state": "off"},
        quiet=(('penstock_console_account_state{stage="sink",part="router/lake",state="off"}',
                "1 0x30"),
               ('penstock_console_account_state{stage="log",part="logd",state="settling"}',
                "1x30")),
    ),
    Alert(
        name="PenstockRecordsDropped",
        expr='increase(penstock_collector_records_total{outcome="dropped"}[10m]) > 0', lasts="0m",
        severity="warning", summary="A collector gave records up.",
        what_to_do="The label reason names why; see docs/collector/operating.md.",
        fires=(('penstock_collector_records_total{source="udp",outcome="dropped",reason="full"}',
                "0x14 5x15"),),
        labels={"source": "udp", "outcome": "dropped", "reason": "full"},
        quiet=(('penstock_collector_records_total{source="udp",outcome="delivered",reason=""}',
                "0+9x30"),),
    ),
    Alert(
        name="PenstockApplicationDropsRecords",
        expr="increase(penstock_collector_sender_dropped_records_total"
             '{reason!~"sampled|repeated"}[10m]) > 0',
        lasts="0m", severity="warning",
        summary="An application drops records before they reach its collector.",
        what_to_do="queue_full: it emits faster than the collector takes; specs/README.md has the"
                   " limits. The application says more on its standard error.",
        fires=(('penstock_collector_sender_dropped_records_total{source="unix",reason="queue_full"}',
                "0x14 5x15"),),
        labels={"source": "unix", "reason": "queue_full"},
        quiet=(('penstock_collector_sender_dropped_records_total{source="unix",reason="sampled"}',
                "0+9x30"),),
    ),
    Alert(
        name="PenstockSinkLag",
        expr="penstock_router_lag > 10000 and delta(penstock_router_lag[10m]) > 0", lasts="10m",
        severity="warning", summary="A sink falls behind the log.",
        what_to_do="See its problem in penstock status; give Spark more cores, or the sink less.",
        fires=(('penstock_router_lag{sink="lake"}', "10000+500x60"),), labels={"sink": "lake"},
        quiet=(('penstock_router_lag{sink="lake"}', "90000-500x60"),), at_min=40,
    ),
    Alert(
        name="PenstockDeadLetters",
        expr="increase(penstock_router_dead_letters_total[15m]) > 0", lasts="0m",
        severity="warning", summary="A sink gave records up: they are dead letters.",
        what_to_do="penstock router dlq ls JOB says why; replay them once that is seen to.",
        fires=(('penstock_router_dead_letters_total{sink="loki"}', "0x14 7x15"),),
        labels={"sink": "loki"},
        quiet=(('penstock_router_dead_letters_total{sink="loki"}', "7x30"),),
    ),
)  # fmt: skip


def rules() -> dict[str, Any]:
    """The file of rules."""
    return {"groups": [{"name": "penstock", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": _annotations(alert),
    }


def _annotations(alert: Alert) -> dict[str, str]:
    return {"summary": alert.summary, "description": alert.what_to_do, "guide": GUIDE}


def cases(rule_file: str) -> dict[str, Any]:
    """What promtool tests: each alert fires on its series, and is silent on the others."""
    return {
        "rule_files": [rule_file],
        "evaluation_interval": "1m",
        "tests": [test for alert in ALERTS for test in _tests(alert)],
    }


def _tests(alert: Alert) -> Iterator[dict[str, Any]]:
    told = {
        "exp_labels": alert.labels | {"severity": alert.severity},
        "exp_annotations": _annotations(alert),
    }
    for series, expected in ((alert.fires, [told]), (alert.quiet, [])):
        yield {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series],
            "alert_rule_test": [
                {"eval_time": f"{alert.at_min}m", "alertname": alert.name, "exp_alerts": expected}
            ],
        }
