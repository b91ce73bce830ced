"""The first start of a secured deployment: each part works, by its own name, and may no more."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.logd.client import calls
from penstock.logd.errors import RefusedError
from tests.support.first_start import STARTED, FirstStart
from tests.support.otlp_sender import RECORDS, OtlpSender
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

SCRAPED = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "compose.yml"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstStart]:
    with FirstStart(tmp_path_factory.mktemp("first")) as running:
        yield running


def visit(url: str, tls: ssl.SSLContext | None, token: str = "") -> tuple[int, str]:
    """The code, and what is said."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=tls) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def refused(client: Any, call: Any) -> str:
    """Why; empty: it is not."""
    try:
        client.ask(call)
    except RefusedError as error:
        return error.code
    return ""


def admin(started: FirstStart, part: str) -> str:
    daemon = started.daemons[part]
    return f"http{'s' if daemon.tls else ''}://{daemon.admin}"


def test_records_go_all_the_way_and_the_router_says_how_far(started: FirstStart) -> None:
    sender = OtlpSender(started.port("4318"))
    sender.start()
    wait_until(lambda: len(sender.acked) >= 2 * RECORDS, within_s=60, what="records are acked")
    sender.stop()
    acked = len(sender.acked)
    router = started.daemons["router"]
    wait_until(lambda: router.stage("sink/lake")["sent"] >= acked, within_s=120, what="the lake")
    with started.log("operator") as log:
        wait_until(lambda: log.cursors(stream="logs"), what="the router's cursors")


@pytest.mark.parametrize("part", STARTED)
def test_strangers_see_the_health_of_a_part_and_nothing_more(
    started: FirstStart, part: str
) -> None:
    url, tls = admin(started, part), started.daemons[part].tls
    code, said = visit(f"{url}/healthz", tls)
    assert (code, set(json.loads(said))) == (200, {"component", "health"})
    other = started.token("router" if part != "router" else "collector", "admin.token")
    for path in ("/status", "/metrics"):
        assert visit(url + path, tls)[0] == 401
        assert visit(url + path, tls, other)[0] == 401, "the token of another part"
        assert visit(url + path, tls, started.daemons[part].token)[0] == 200


def test_prometheus_sees_what_it_scrapes_with_the_files_it_has(started: FirstStart) -> None:
    jobs = yaml.safe_load(SCRAPED.read_text())["scrape_configs"]
    assert jobs
    for job in jobs:
        ca = started.moved(job["tls_config"]["ca_file"])
        token = Path(started.moved(job["authorization"]["credentials_file"])).read_text().strip()
        target = started.moved(job["static_configs"][0]["targets"][0])
        url = f"{job['scheme']}://{target}/metrics"
        code, said = visit(url, ssl.create_default_context(cafile=ca), token)
        assert (code, "penstock_" in said) == (200, True), job["job_name"]


def test_the_console_sees_every_part_and_every_stream(started: FirstStart) -> None:
    page = f"http://{started.config('console')['listen']}/api/snapshot"

    def healths() -> dict[str, str]:
        found = json.loads(visit(page, None)[1])
        return {part["name"]: part["health"] for part in found["parts"]}

    def rows() -> set[str]:
        return {row["stream"] for row in json.loads(visit(page, None)[1])["streams"]["rows"]}

    wait_until(lambda: set(healths().values()) == {"ready"}, within_s=60, what="all are ready")
    assert set(healths()) == {"collector", "logd-1", "router"}
    telemetry = {"logs", "traces", "metrics", "events", "audit"}
    wait_until(lambda: telemetry <= rows(), what="all streams")
    assert "__activity" not in rows()


def test_nobody_may_more_than_its_work(started: FirstStart) -> None:
    made = calls.create_stream("more", "more.>", {})
    forbidden: dict[str, list[Any]] = {
        "router": [
            made,
            calls.delete_stream("logs"),
            calls.set_mode("logs", paused=None, read_only=True),
        ],
        "console": [made, calls.delete_stream("logs"), calls.offsets("__activity", 0)],
        "prometheus": [made, calls.offsets("logs", 0), made],
    }
    for part, asked in forbidden.items():
        with started.log(part) as log:
            assert [refused(log, call) for call in asked] == ["PERMISSION_DENIED"] * 3, part
    with started.log("prometheus") as log:
        assert [stream.name for stream in log.streams()] == []
    with started.log("operator") as log:
        assert {stream.name for stream in log.streams()} >= {"logs", "audit"}
    assert not (started.files / "collector" / "token").exists()
