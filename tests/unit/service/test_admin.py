"""The admin endpoint over real HTTP on the loopback interface."""

import gzip
import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter

from penstock.service import (
    AdminServer,
    Health,
    Requester,
    Stage,
    Status,
    UnavailableError,
    configure_logs,
)
from penstock.service.admin import FINAL_STATUS, is_this_machine


class _Process:
    health = Health.READY

    def status(self) -> Status:
        stages = (Stage("stream/logs", received=3, sent=2, lag=1),)
        return Status("logd", "logd-1", "0.1.0", self.health, ("why",), stages, {"a": 1})


@pytest.fixture
def process() -> _Process:
    return _Process()


@pytest.fixture
def url(process: _Process) -> Iterator[str]:
    registry = CollectorRegistry()
    Counter("penstock_things", "Things.", registry=registry).inc(7)
    configure_logs("test", stream=io.StringIO())
    server = AdminServer(process.status, registry)
    yield f"http://{server.start('127.0.0.1:0')}"
    server.close()


def test_metrics_are_made_as_they_are_scraped_for_the_first_time(process: _Process) -> None:
    registries: list[CollectorRegistry] = []

    def registry() -> CollectorRegistry:
        registries.append(CollectorRegistry())
        Counter("penstock_things", "Things.", registry=registries[-1]).inc(7)
        return registries[-1]

    server = AdminServer(process.status, registry)
    url = f"http://{server.start('127.0.0.1:0')}"
    assert _get(f"{url}/healthz")[0] == 200
    assert registries == []
    for _ in range(2):
        assert b"penstock_things_total 7.0" in _get(f"{url}/metrics")[1]
    assert len(registries) == 1
    server.close(quietly=True)


def _get(url: str) -> tuple[int, bytes]:
    try:
        with urlopen(url, timeout=60) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize(
    ("health", "code"),
    [
        (Health.STARTING, 503),
        (Health.READY, 200),
        (Health.DEGRADED, 200),
        (Health.DRAINING, 503),
        (Health.FAILED, 503),
    ],
)
def test_healthz_says_whether_it_serves(
    process: _Process, url: str, health: Health, code: int
) -> None:
    process.health = health
    found, body = _get(f"{url}/healthz")
    assert (found, json.loads(body)["health"], json.loads(body)["reasons"]) == (
        code, health.value, ["why"],
    )  # fmt: skip


@pytest.mark.parametrize("health", list(Health))
def test_livez_says_that_it_answers_however_it_is(
    process: _Process, url: str, health: Health
) -> None:
    """A probe that kills on it leaves alone whom a new start would not help."""
    process.health = health
    found, body = _get(f"{url}/livez")
    assert (found, json.loads(body)["health"]) == (200, health.value)


def test_status_holds_the_stages(url: str) -> None:
    code, body = _get(f"{url}/status")
    status = json.loads(body)
    assert (code, status["info"], status["stages"][0]["lag"]) == (200, {"a": 1}, 1)


def test_metrics_are_for_prometheus(url: str) -> None:
    assert b"penstock_things_total 7.0" in _get(f"{url}/metrics")[1]


def test_other_paths_name_the_known_ones(url: str) -> None:
    code, body = _get(f"{url}/nothing")
    assert (code, json.loads(body)["paths"]) == (
        404,
        ["/livez", "/healthz", "/metrics", "/status"],
    )


def test_a_taken_address_is_refused(process: _Process, url: str) -> None:
    second = AdminServer(process.status, CollectorRegistry())
    with pytest.raises(UnavailableError, match="cannot listen"):
        second.start(url.removeprefix("http://"))


def test_closing_logs_the_last_status(process: _Process) -> None:
    log = io.StringIO()
    configure_logs("logd", stream=log)
    server = AdminServer(process.status, CollectorRegistry())
    server.start("127.0.0.1:0")
    server.close()
    server.close()
    (line,) = log.getvalue().splitlines()
    document = json.loads(line)
    assert (document["event"], document["component"]) == (FINAL_STATUS, "logd")
    assert document["status"]["health"] == "ready"


def test_an_answer_that_takes_long_holds_up_no_other() -> None:
    go_on, waits = threading.Event(), threading.Event()

    def status() -> Status:
        if not waits.is_set():
            waits.set()
            go_on.wait(60)
        return _Process().status()

    server = AdminServer(status, CollectorRegistry())
    url = f"http://{server.start('127.0.0.1:0')}"
    with ThreadPoolExecutor(1) as other:
        slow = other.submit(_get, f"{url}/status")
        assert waits.wait(60)
        assert _get(f"{url}/healthz")[0] == 200
        assert not slow.done()
        go_on.set()
        assert slow.result(60)[0] == 200
    server.close(quietly=True)


def test_a_process_that_cannot_say_how_it_is_says_so_and_goes_on() -> None:
    log = io.StringIO()
    configure_logs("test", stream=log)
    process = _Process()

    def status() -> Status:
        if process.health is Health.FAILED:
            raise RuntimeError("no status today")
        return process.status()

    server = AdminServer(status, CollectorRegistry())
    url = f"http://{server.start('127.0.0.1:0')}"
    process.health = Health.FAILED
    assert _get(f"{url}/healthz")[0] == 500
    assert "no status today" in log.getvalue()
    process.health = Health.READY
    assert _get(f"{url}/healthz")[0] == 200
    server.close(quietly=True)


def test_metrics_are_compressed_for_whom_takes_that(url: str) -> None:
    request = Request(f"{url}/metrics", headers={"Accept-Encoding": "gzip"})
    with urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert b"penstock_things_total 7.0" in gzip.decompress(answer.read())
    with urlopen(f"{url}/metrics?name[]=penstock_things_total", timeout=60) as answer:
        assert answer.read().splitlines()[-1] == b"penstock_things_total 7.0"


def test_what_may_be_done_is_done_by_a_post_of_bounded_size() -> None:
    done: list[bytes] = []

    def act(visitor: Requester, body: bytes) -> tuple[str, dict[str, str]]:
        done.append(body)
        return "202 Accepted", {"by": visitor.authorization}

    server = AdminServer(_Process().status, CollectorRegistry(), actions={"/do": act})
    url = f"http://{server.start('127.0.0.1:0')}/do"
    shown = {"Authorization": "Bearer me"}
    assert _code(Request(url, headers=shown)) == 405
    assert _code(Request(url, b"x" * 65_536, shown)) == 202
    assert _code(Request(url, b"x" * 65_537, shown)) == 413
    assert _code(Request(url, b"x" * 5_000_000, shown)) == 413
    with urlopen(Request(url, b"now", shown), timeout=60) as answer:
        assert json.load(answer) == {"by": "Bearer me"}
    assert done == [b"x" * 65_536, b"now"]
    server.close(quietly=True)


@pytest.mark.parametrize(
    ("peer", "is_here"),
    [
        ("127.0.0.1:5", True),
        ("127.8.8.8:5", True),
        ("::1:5", True),
        ("::ffff:127.0.0.1:5", True),
        ("10.0.0.7:5", False),
        ("::ffff:10.0.0.7:5", False),
        ("fe80::1%eth0:5", False),
        (":5", False),
    ],
)
def test_only_the_loopback_is_this_machine(peer: str, *, is_here: bool) -> None:
    assert is_here == is_this_machine(peer)


@pytest.mark.parametrize(
    ("host", "origin", "code"),
    [
        ("127.0.0.1:{port}", "", 200),
        ("[::1]:{port}", "", 200),
        ("logd-1:{port}", "", 200),
        ("metrics.example.org:{port}", "", 200),
        ("METRICS.example.org", "", 200),
        ("rebound.attacker.example:{port}", "", 421),
        ("127.0.0.1.attacker.example", "", 421),
        ("127.0.0.1:{port}", "http://127.0.0.1:{port}", 200),
        ("127.0.0.1:{port}", "http://attacker.example", 421),
        ("127.0.0.1:{port}", "null", 421),
    ],
)
@pytest.mark.parametrize("path", ["/status", "/metrics", "/healthz"])
def test_it_answers_to_its_names_alone(
    process: _Process, path: str, host: str, origin: str, code: int
) -> None:
    """DNS rebinding: a page of another site calls by that site's name, and is refused."""
    server = AdminServer(process.status, CollectorRegistry(), hosts=("metrics.example.org",))
    address = server.start("127.0.0.1:0")
    port = address.rpartition(":")[2]
    request = Request(f"http://{address}{path}", headers={"Host": host.format(port=port)})
    if origin:
        request.add_header("Origin", origin.format(port=port))
    try:
        assert _code(request) == code
    finally:
        server.close(quietly=True)


def _code(request: Request) -> int:
    try:
        with urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code
