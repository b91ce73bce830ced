"""Datadog's official clients, of its API and of DogStatsD, with their sources, to the log."""

from pathlib import Path

import pytest
from datadog.dogstatsd.base import DogStatsd
from datadog_api_client import ApiClient, Configuration
from datadog_api_client.exceptions import ApiException
from datadog_api_client.v1.api.authentication_api import AuthenticationApi
from datadog_api_client.v2.api.logs_api import LogsApi
from datadog_api_client.v2.api.metrics_api import MetricsApi
from datadog_api_client.v2.model.content_encoding import ContentEncoding
from datadog_api_client.v2.model.http_log import HTTPLog
from datadog_api_client.v2.model.http_log_item import HTTPLogItem
from datadog_api_client.v2.model.metric_content_encoding import MetricContentEncoding
from datadog_api_client.v2.model.metric_intake_type import MetricIntakeType
from datadog_api_client.v2.model.metric_payload import MetricPayload
from datadog_api_client.v2.model.metric_point import MetricPoint
from datadog_api_client.v2.model.metric_series import MetricSeries

from tests.support.collecting import collecting, endpoint, records
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

ENCODINGS = (
    MetricContentEncoding.ZSTD1, MetricContentEncoding.DEFLATE, MetricContentEncoding.GZIP,
)  # fmt: skip


def client_of(address: str, key: str) -> Configuration:
    """A client's configuration whose every request goes to one address."""
    server = {"protocol": "http", "name": address}
    return Configuration(
        api_key={"apiKeyAuth": key}, server_index=1, server_variables=server,
        server_operation_index={"v2.submit_log": 1},
        server_operation_variables={"v2.submit_log": server},
    )  # fmt: skip


def test_datadogs_client_sends_logs_and_series(tmp_path: Path, nats_url: str) -> None:
    (tmp_path / "key").write_text("secret")
    auth = {"api_key_file": str(tmp_path / "key")}
    source = {"type": "datadog", "listen": "127.0.0.1:0", "auth": auth}
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        address = endpoint(collector, "datadog")
        with ApiClient(client_of(address, "secret")) as client:
            assert AuthenticationApi(client).validate().valid
            items = [
                HTTPLogItem(message=f"order {n}", service="shop", ddtags="lane:7", status="error")
                for n in range(100)
            ]
            sent = {"content_encoding": ContentEncoding.DEFLATE}
            LogsApi(client).submit_log(body=HTTPLog(items), **sent)
            for value, encoding in enumerate(ENCODINGS):
                series = MetricSeries(
                    metric="shop.orders", type=MetricIntakeType.GAUGE, tags=["lane:7"],
                    points=[MetricPoint(timestamp=1764268800, value=float(value))],
                )  # fmt: skip
                payload = MetricPayload(series=[series])
                MetricsApi(client).submit_metrics(body=payload, content_encoding=encoding)
        with (
            ApiClient(client_of(address, "other")) as stranger,
            pytest.raises(ApiException, match="Forbidden"),
        ):
            AuthenticationApi(stranger).validate()
        wait_until(lambda: len(records(logd, "logs")) == 100)
        wait_until(lambda: len(records(logd, "metrics")) == 3)
        found = records(logd, "logs")
        assert {one["body"] for one in found} == {f"order {n}" for n in range(100)}
        assert {one["severity_text"] for one in found} == {"ERROR"}
        assert found[0]["attributes"] == {"lane": "7"}
        assert sorted(one["value"] for one in records(logd, "metrics")) == [0.0, 1.0, 2.0]


def test_dogstatsds_client_sends_samples_events_and_checks(tmp_path: Path, nats_url: str) -> None:
    source = {"type": "statsd", "udp": "127.0.0.1:0", "flush_interval_s": 0.2}
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        host, port = endpoint(collector, "statsd").split(":")
        with DogStatsd(
            host, int(port), constant_tags=["env:test"], namespace="shop", cardinality="low"
        ) as client:
            for number in range(20):
                client.increment("orders", tags=["lane:7"])
                client.distribution("total", number)
            client.decrement("orders", 5, tags=["lane:7"])
            client.gauge("open", 3)
            client.gauge_with_timestamp("then", 9, 1_764_268_800)
            client.set("customers", "ada")
            client.timing("taken", 250)
            client.event("deployed", "version 2\nand a line", alert_type="warning")
            client.service_check("db.up", DogStatsd.CRITICAL, message="gone")
        client.stop()
        client.close_socket()
        sent = ("orders", "total", "open", "then", "customers", "taken")
        names = {f"shop.{name}" for name in sent}
        wait_until(lambda: names <= {one["name"] for one in records(logd, "metrics")})
        wait_until(lambda: len(records(logd, "logs")) == 2)
        points = [one for one in records(logd, "metrics") if one["name"] in names]
        assert sum(one["value"] for one in points if one["name"] == "shop.orders") == 15
        assert sum(one["count"] for one in points if one["name"] == "shop.total") == 20
        assert {one["attributes"]["env"] for one in points} == {"test"}
        (then,) = (one for one in points if one["name"] == "shop.then")
        assert then["time_unix_nano"] == 1_764_268_800_000_000_000
        logs = {one["event_name"]: one for one in records(logd, "logs")}
        assert logs["dogstatsd.event"]["body"] == "deployed\nversion 2\nand a line"
        assert logs["dogstatsd.service_check"]["severity_text"] == "ERROR"
