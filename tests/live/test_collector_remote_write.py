"""The source prometheus_remote_write with requests as Prometheus writes them, to the log.

Prometheus itself cannot be installed here: its messages are written from the specifications. The
sink `prometheus` of the router, which was tested with the real product, encodes those of 1.0.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests

from penstock.router.sinks.prometheus import Series
from tests.support.collecting import collecting, endpoint, records
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
            Series((*NAMED, ("lane", str(n))), float(n), TIME_MS).encoded() for n in range(COUNT)
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
