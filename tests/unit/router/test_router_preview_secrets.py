"""Who looks at what a job would send need not be let in to its destinations."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.router.job import preview
from penstock.router.sinks.http.settings import legible
from tests.support.sink_batches import batch, context, gauge_record, log_record
from tests.unit.router.test_router_config import load

GONE = {"file": "/nobody/may/read/this"}
HTTP = {"url": "http://127.0.0.1:1"}
SINKS: list[dict[str, Any]] = [
    {"type": "splunk_hec", "token": GONE, **HTTP},
    {"type": "loki", "token": GONE, **HTTP},
    {"type": "elasticsearch", "api_key": GONE, **HTTP},
    {"type": "datadog", "api_key": GONE, **HTTP},
    {"type": "clickhouse", "user": "x", "password": GONE, **HTTP},
    {"type": "prometheus", "token": GONE, **HTTP},
    {"type": "s3", "access_key_id": GONE, "secret_access_key": GONE, "region": "x",
     "url": "http://127.0.0.1:1/bucket"},
    {"type": "postgres", "dsn": GONE},
    {"type": "jdbc", "url": GONE, "user": "x", "password": GONE, "jars": ["/x.jar"]},
    {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "t", "user": "x",
     "password": GONE, "security_protocol": "sasl_ssl"},
    {"type": "nats", "servers": "nats://127.0.0.1:1", "subject": "x", "token": GONE},
    {"type": "delta", "table": "s3://x/y", "storage": {"aws_access_key_id": GONE}},
    {"type": "iceberg", "table": "a.b", "catalog": {"type": "rest", "token": GONE}},
]  # fmt: skip


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink["type"])
def test_a_preview_needs_no_secret(tmp_path: Path, sink: dict[str, Any]) -> None:
    config = load(tmp_path, sinks={"lake": sink}, on_malformed="route")
    record = gauge_record(0) if sink["type"] == "prometheus" else log_record(0)
    run: Any = SimpleNamespace(
        config=config,
        context=lambda name, _: context(tmp_path, sink=name),
        rows=lambda _: lambda *_: batch([record]),
    )
    chunk: Any = None
    shown = preview.sink_preview(run, "lake", chunk, tmp_path)
    assert shown.written == 1
    assert [request.records for request in shown.requests] == [1]


def test_a_secret_that_can_be_read_stays(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hush")
    config = load(
        tmp_path,
        sinks={"lake": {"type": "loki", "token": {"file": str(tmp_path / "token")}, **HTTP}},
    )
    assert legible(config.sinks["lake"]) == config.sinks["lake"]
