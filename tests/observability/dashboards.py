"""Grafana dashboards: rows of panels, each with its queries."""

from dataclasses import dataclass
from typing import Any, Final

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24
_HEIGHT: Final = 8


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        unit: As Grafana names it.
        queries: PromQL, and what each line is called.
        kind: `timeseries` or `stat`.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    help: str = ""
    kind: str = "timeseries"


@dataclass(frozen=True)
class Dashboard:
    """One page: rows of panels, as wide as there are panels in the row."""

    uid: str
    title: str
    rows: tuple[tuple[Panel, ...], ...]


_EACH: Final = "[$__rate_interval]"


def _rate(metric: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{where}{_EACH}))"


DASHBOARDS = (
    Dashboard(
        "penstock-pipeline",
        "Penstock: pipeline",
        (
            (
                Panel("Parts up", "short", (('sum(up{job=~"penstock.*"})', ""),), kind="stat"),
                Panel("Streams without a leader", "short", (
                    ("count(sum by (stream) (penstock_logd_cluster_leads) == 0) or vector(0)", ""),
                ), kind="stat"),
                Panel("Records not accounted for", "short", (
                    ("sum(abs(penstock_collector_unreconciled_records))", ""),
                ), kind="stat"),
                Panel("Dead letters", "short", (
                    ("sum(penstock_router_dead_letters_total)", ""),
                ), kind="stat"),
            ),
            (
                Panel("Collected", "rps", (
                    (_rate("penstock_collector_records_total", "source", '{outcome="received"}'),
                     "{{source}}"),
                )),
                Panel("Stored", "rps", (
                    (_rate("penstock_logd_records_committed_total", "stream"), "{{stream}}"),
                )),
                Panel("Delivered", "rps", (
                    (_rate("penstock_router_sent_total", "sink"), "{{sink}}"),
                )),
            ),
            (
                Panel("Held by collectors", "short", (
                    ("sum by (source) (penstock_collector_held_records)", "{{source}}"),
                )),
                Panel("Not committed yet", "short", (
                    ("sum by (stream) (penstock_logd_records_uncommitted)", "{{stream}}"),
                )),
                Panel("Sinks behind the log", "short", (
                    ("max by (sink) (penstock_router_lag)", "{{sink}}"),
                )),
            ),
        ),
    ),
    Dashboard(
        "penstock-logd",
        "Penstock: log",
        (
            (
                Panel("Received", "Bps", (
                    (_rate("penstock_logd_bytes_received_total", "stream"), "{{stream}}"),
                )),
                Panel("Refused", "rps", (
                    (_rate("penstock_logd_records_refused_total", "stream, reason"),
                     "{{stream}}: {{reason}}"),
                )),
                Panel("Sent to readers", "Bps", (
                    (_rate("penstock_logd_fetch_bytes_total", "instance"), "{{instance}}"),
                )),
            ),
            (
                Panel("In-sync replicas missing", "short", (
                    (("penstock_logd_cluster_replicas - penstock_logd_cluster_in_sync_replicas"
                     " and penstock_logd_cluster_leads == 1"), "{{stream}}"),
                )),
                Panel("Partitions led", "short", (
                    ("sum by (instance) (penstock_logd_cluster_leads)", "{{instance}}"),
                )),
                Panel("Replicated", "Bps", (
                    (_rate("penstock_logd_cluster_replicated_bytes_sent_total", "instance, peer"),
                     "{{instance}} to {{peer}}"),
                )),
            ),
            (
                Panel("Size of streams", "bytes", (
                    ("max by (stream) (penstock_logd_size_bytes)", "{{stream}}"),
                )),
                Panel("Disk free", "percentunit", (
                    ("penstock_logd_disk_free_bytes / penstock_logd_disk_size_bytes",
                     "{{instance}}"),
                )),
                Panel("Waiting for the disk", "bytes", (
                    ("penstock_logd_intake_bytes", "{{instance}}"),
                    ("penstock_logd_intake_max_bytes", "{{instance}}: most"),
                )),
            ),
            (
                Panel("Messages missed", "s", (
                    (("sum by (stream, reason)"
                     " (increase(penstock_logd_ingest_gap_seconds_total[$__rate_interval]))"),
                     "{{stream}}: {{reason}}"),
                ), "Seconds in which a stream missed messages"),
                Panel("Connected to NATS", "short", (
                    ("min by (instance) (penstock_logd_nats_connected)", "{{instance}}"),
                )),
                Panel("Certificates end in", "s", (
                    ("penstock_logd_tls_not_after_seconds - time()", "{{instance}}: {{section}}"),
                )),
            ),
        ),
    ),
    Dashboard(
        "penstock-edges",
        "Penstock: collectors and routers",
        (
            (
                Panel("Spools", "percentunit", (
                    ("penstock_collector_spool_bytes / (penstock_collector_spool_max_bytes > 0)",
                     "{{instance}}: {{spool}}"),
                )),
                Panel("What became of records", "rps", (
                    (_rate("penstock_collector_records_total", "outcome"), "{{outcome}}"),
                )),
                Panel("Dropped", "rps", (
                    (_rate("penstock_collector_records_total", "source, reason",
                           '{outcome="dropped"}'), "{{source}}: {{reason}}"),
                )),
            ),
            (
                Panel("In flight to logd", "bytes", (
                    ("penstock_collector_in_flight_bytes", "{{instance}}"),
                    ("penstock_collector_window_bytes", "{{instance}}: window"),
                )),
                Panel("Transforms", "rps", (
                    (_rate("penstock_collector_transform_records_total", "transform, outcome"),
                     "{{transform}}: {{outcome}}"),
                )),
                Panel("Dropped by applications", "rps", (
                    (_rate("penstock_collector_sender_dropped_records_total", "source, reason"),
                     "{{source}}: {{reason}}"),
                )),
                Panel("Sensitive data taken out", "rps", (
                    (_rate("penstock_collector_scrubbed_records_total", "source"), "{{source}}"),
                )),
            ),
            (
                Panel("Delivered by sinks", "rps", (
                    (_rate("penstock_router_sent_total", "sink"), "{{sink}}"),
                )),
                Panel("Errors of sinks", "rps", (
                    (_rate("penstock_router_errors_total", "sink"), "{{sink}}"),
                )),
                Panel("Dead letters", "rps", (
                    (_rate("penstock_router_dead_letters_total", "sink"), "{{sink}}"),
                )),
            ),
        ),
    ),
)  # fmt: skip


def document(dashboard: Dashboard) -> dict[str, Any]:
    """A dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in dashboard.rows:
        width = _WIDTH // len(row)
        height = _HEIGHT // 2 if all(panel.kind == "stat" for panel in row) else _HEIGHT
        for index, panel in enumerate(row):
            place = {"x": index * width, "y": top, "w": width, "h": height}
            panels.append(_panel(panel, len(panels) + 1, place))
        top += height
    variable = {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Prometheus",
    }
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["penstock"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [variable]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom = {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0}
            | ({"custom": custom} if panel.kind == "timeseries" else {}),
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}}
        if panel.kind == "timeseries"
        else {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"},
        "targets": [
            {"refId": chr(65 + index), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }
