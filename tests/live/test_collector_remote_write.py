"""The source prometheus_remote_write with a real Prometheus, and with requests of both versions.

Debian's Prometheus writes version 1.0. Messages of 2.0 are written from the specification.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
import requests
import yaml

from penstock.router.sinks.prometheus import Series
from tests.support.collecting import collecting, endpoint, records
from tests.support.debian import program
from tests.support.processes import free_port, running
from tests.support.protobuf_bytes import encode
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

COUNT = 200
TIME_MS = 1764268800_123
PROTOBUF = "application/x-protobuf"
NAMED = (("__name__", "orders_total"), ("job", "shop"))


def packed(data: bytes) -> bytes:
    found: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return found


def test_both_versions_with_a_token(tmp_path: Path, nats_url: str) -> None:
    (tmp_path / "token").write_text("secret")
    auth = {"token_file": str(tmp_path / "token")}
    source = {"type": "prometheus_remote_write", "listen": "127.0.0.1:0", "auth": auth}
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        url = f"http://{endpoint(collector, 'prometheus_remote_write')}/api/v1/write"

        def post(data: bytes, kind: str, token: str = "secret") -> Any:
            head = {"content-type": kind, "content-encoding": "snappy"}
            head["authorization"] = f"Bearer {token}"
            return requests.post(url, packed(data), headers=head, timeout=20)

        first = b"".join(
            Series((*NAMED, ("till", str(n))), float(n), TIME_MS).encoded() for n in range(COUNT)
        )  # fmt: skip
        assert post(first, PROTOBUF, "other").status_code == 401
        assert post(first, PROTOBUF).status_code == 204
        symbols = ["", "__name__", "load", "job", "shop"]
        series = [
            {1: [1, 2, 3, 4], 2: [{1: float(n), 2: TIME_MS + n}], 5: {1: 2}} for n in range(COUNT)
        ]
        second = post(
            encode({4: symbols, 5: [*series, {1: [3, 4], 2: [{1: 1.0, 2: TIME_MS}]}]}),
            f"{PROTOBUF};proto=io.prometheus.write.v2.Request",
        )
        assert second.status_code == 400, "the last series has no name"
        assert second.headers["x-prometheus-remote-write-samples-written"] == str(COUNT)
        wait_until(lambda: len(records(logd, "metrics")) == 2 * COUNT)
        found = records(logd, "metrics")
        sums = {one["value"] for one in found if one["metric_type"] == "sum"}
        gauges = {one["value"] for one in found if one["metric_type"] == "gauge"}
        assert sums == gauges == {float(n) for n in range(COUNT)}
        assert {one["resource"]["service.name"] for one in found} == {"shop"}


EXPOSED = """\
# TYPE orders_total counter
orders_total{till="a"} 41
# TYPE queue_depth gauge
queue_depth{till="a"} 7.5
queue_depth{till="b"} NaN
# TYPE wait_seconds histogram
wait_seconds_bucket{le="1"} 2
wait_seconds_bucket{le="+Inf"} 3
wait_seconds_sum 4.5
wait_seconds_count 3
"""


@contextmanager
def exposing(directory: Path) -> Iterator[str]:
    """The address of a server of the files in a directory."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def prometheus(path: Path, directory: Path, config: dict[str, Any]) -> Iterator[None]:
    """A Prometheus server that runs; its log is `prometheus.log`."""
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    command = [
        path, f"--config.file={file}", f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{free_port()}",
    ]  # fmt: skip
    with running(*command, log=directory / "prometheus.log"):
        yield


def test_what_a_real_prometheus_scrapes_arrives(tmp_path: Path, nats_url: str) -> None:
    path = program("prometheus", package="prometheus")
    (tmp_path / "token").write_text("secret")
    exposed = tmp_path / "exposed"
    exposed.mkdir()
    (exposed / "metrics").write_text(EXPOSED)
    source = {
        "type": "prometheus_remote_write", "listen": "127.0.0.1:0",
        "auth": {"token_file": str(tmp_path / "token")},
    }  # fmt: skip
    with collecting(tmp_path, nats_url, source) as (logd, collector), exposing(exposed) as target:
        config = {
            "global": {"scrape_interval": "1s", "external_labels": {"region": "eu"}},
            "scrape_configs": [
                {"job_name": "shop", "static_configs": [{"targets": [target]}]},
            ],
            "remote_write": [
                {
                    "url": f"http://{endpoint(collector, 'prometheus_remote_write')}/api/v1/write",
                    "authorization": {"credentials_file": str(tmp_path / "token")},
                    "queue_config": {"batch_send_deadline": "100ms"},
                }
            ],
        }

        def found() -> dict[tuple[str, str], dict[str, Any]]:
            return {
                (one["name"], one.get("attributes", {}).get("till", "")): one
                for one in records(logd, "metrics")
            }

        expected = {("orders_total", "a"), ("queue_depth", "a"), ("wait_seconds_count", "")}
        with prometheus(path, tmp_path, config):
            wait_until(lambda: expected | {("up", ""), ("queue_depth", "b")} <= found().keys())
        taken = found()
        assert {taken[key]["resource"]["service.name"] for key in expected} == {"shop"}
        assert {taken[key]["attributes"]["region"] for key in expected} == {"eu"}
        assert taken[("queue_depth", "a")]["value"] == 7.5
        assert taken[("queue_depth", "b")]["value"] == "NaN"
        assert taken[("up", "")]["value"] == 1
        orders = taken[("orders_total", "a")]
        assert (orders["metric_type"], orders["value"]) == ("sum", 41)
        wait_until(collector.is_idle)
