"""What real processes serve at `/metrics` and `/healthz`: OpenMetrics, and nothing undocumented."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from penstock.logd.publisher import BlockingPublisher
from penstock.router.telemetry import StatusCollector
from penstock.service import AdminServer, Health, Stage, Status
from tests.observability.families import Family, families
from tests.support.collector import Collector
from tests.support.console import running_console
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import running_nats_server
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

HOSTILE = 'a"b\\c\nd{e="f"} 1'
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def router_status() -> Status:
    """A job's status; the job's file names its sinks."""
    stages = tuple(
        Stage(f"sink/{name}", 9, 8, 1, 1, {"dead_letters": 1}) for name in ("x", HOSTILE)
    )
    return Status("router", "job", "0.1.0", Health.DEGRADED, ("why",), stages)


@pytest.fixture(scope="module")
def admins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Admin addresses of one process of each kind, in use; the router's without Spark."""
    path = tmp_path_factory.mktemp("metrics")
    grpc = {"listen": f"127.0.0.1:{free_port()}"}
    with running_nats_server(path) as nats, LogdCluster(path, nats, size=1, grpc=grpc) as cluster:
        cluster.create("logs", "telemetry.logs.>")
        cluster.create("metrics", "telemetry.metrics.>")  # those of the host
        node = cluster.nodes["a"]
        sources = [{"type": "unix", "path": str(path / "sock")}, {"type": "host_metrics"}]
        with Collector(path / "collector", nats, sources) as collector:
            admins = {"logd": node.config["admin"], "collector": collector.config["admin"]}
            parts = {name: f"http://{address}" for name, address in admins.items()}
            admins["console"] = f"127.0.0.1:{free_port()}"
            more = {"logd": node.fetch, "admin": admins["console"]}
            router = _router()
            admins["router"] = router.start("127.0.0.1:0")
            with running_console(path, parts, **more) as console, BlockingPublisher(nats) as to:
                to.submit("telemetry.logs.x", b"{}").result(30)
                admins["page"] = console.address
                yield admins
            router.close()


def _router() -> AdminServer:
    registry = CollectorRegistry()
    registry.register(StatusCollector(router_status))
    return AdminServer(router_status, registry)


def get(address: str, path: str, **headers: str) -> tuple[int, str, bytes]:
    host, _, port = address.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = (answer.status, answer.headers["Content-Type"], answer.read())
    connection.close()
    return found


def scraped(address: str) -> list[Metric]:
    status, kind, body = get(address, "/metrics", Accept=OPEN_METRICS)
    assert status == 200
    assert kind.startswith("application/openmetrics-text")
    parse: Any = text_string_to_metric_families  # untyped
    return list(parse(body.decode()))


@pytest.mark.parametrize("process", ["collector", "logd", "router", "console"])
def test_what_is_served_is_openmetrics_and_documented(admins: dict[str, str], process: str) -> None:
    known = {family.name.removesuffix("_total"): family for family in families()}
    found = scraped(admins[process])
    assert found
    for metric in found:
        family: Family = known[metric.name]
        assert (family.process, family.kind) == (process, metric.type)
        assert family.help == metric.documentation.removesuffix(".")
        for sample in metric.samples:
            if not sample.name.endswith("_created"):
                assert set(sample.labels) == set(family.labels), sample
    served = {metric.name for metric in found}
    assert {name for name, family in known.items() if family.process == process} == served


@pytest.mark.parametrize("process", ["collector", "logd", "router", "console"])
def test_health_is_a_word_a_probe_understands(admins: dict[str, str], process: str) -> None:
    status, kind, body = get(admins[process], "/healthz")
    document: dict[str, Any] = json.loads(body)
    assert (status, kind) == (200, "application/json")
    assert document["component"] == process
    assert document["health"] in (Health.READY, Health.DEGRADED)
    assert "stages" not in document


def test_labels_come_back_as_they_were_whatever_is_in_them(admins: dict[str, str]) -> None:
    metrics = {metric.name: metric for metric in scraped(admins["router"])}
    sinks = {sample.labels["sink"] for sample in metrics["penstock_router_lag"].samples}
    assert sinks == {"x", HOSTILE}


def test_the_console_shows_a_real_cluster(admins: dict[str, str]) -> None:
    def snapshot() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(get(admins["page"], "/api/snapshot")[2])
        return found

    row = wait_until(lambda: [r for r in snapshot()["streams"]["rows"] if r["stream"] == "logs"])[0]
    assert (row["leader"], row["isr"], row["state"]) == ("a", ["a"], "ok")
    wait_until(lambda: [part["health"] for part in snapshot()["parts"]] == ["ready", "ready"])
    records = json.loads(get(admins["page"], "/api/records?stream=logs&at=0")[2])["records"]
    assert [record["value"] for record in records] == ["{}"]
