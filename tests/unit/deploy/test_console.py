"""The console's server: who is let in, what it answers, how it asks the parts."""

import asyncio
import gzip
import json
import resource
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pydantic import ValidationError
from typing_extensions import override

from penstock.base.clock import Clock
from penstock.deploy.console.authorizer import Authorizer, token_of
from penstock.deploy.console.config import AccessSection, ConsoleConfig
from penstock.deploy.console.daemon import CONNECTIONS_MAX, Console
from penstock.deploy.console.http_client import ask_json
from penstock.deploy.console.poller import UNWATCHED_S, Poller
from penstock.deploy.console.rates import Rates
from penstock.deploy.console.records import BEHIND_MAX, RECORDS_MAX, RecordQuery, newest_records
from penstock.deploy.console.web import page_files
from penstock.logd.format.batch import Record
from penstock.service import ConfigError
from tests.support.certificates import Authority
from tests.support.console import (
    FakeConsoleLog,
    FakePart,
    a_stage,
    a_status,
    a_stream,
    running_console,
)
from tests.support.waiting import wait_until

HOSTILE = "<script>alert(1)</script>"


def ask(
    console: Console, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[HTTPResponse, bytes]:
    host, _, port = console.address.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=10)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, sent)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer, data


def snapshot(console: Console) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(console, "/api/snapshot")[1])
    return found


@pytest.fixture(scope="module")
def log() -> FakeConsoleLog:
    value = json.dumps({"body": HOSTILE}).encode()
    records = [
        Record("telemetry.logs.shop", value, 1_700_000_000_000_000_000 + n) for n in range(3)
    ]
    return FakeConsoleLog([a_stream(HOSTILE), a_stream("logs", 3)], {"logs": records})


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console") / "token"


@pytest.fixture(scope="module")
def console(token_file: Path, log: FakeConsoleLog) -> Iterator[Console]:
    part = FakePart(lambda: a_status("logd", "logd-1", a_stage("stream/logs", 3)))
    parts = {"logd-1": part.url}
    with running_console(token_file.parent, parts, log) as console:
        wait_until(lambda: snapshot(console)["streams"]["rows"])
        yield console
    part.close()


def test_what_is_known_is_one_document(console: Console) -> None:
    found = snapshot(console)
    assert [part["name"] for part in found["parts"]] == ["logd-1"]
    assert [row["stream"] for row in found["streams"]["rows"]] == [HOSTILE, "logs"]
    assert found["cluster"]["controller"] == "logd-1"
    answer, data = ask(console, "/api/snapshot", Accept_Encoding="gzip")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(data))["streams"]["rows"] == found["streams"]["rows"]


def test_every_answer_forbids_what_the_page_does_not_need(console: Console) -> None:
    for path in ("/", "/main.js", "/api/snapshot", "/api/nothing", "/nothing"):
        answer, _ = ask(console, path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_the_page_needs_nothing_from_elsewhere() -> None:
    files = page_files()
    assert {"/", "/main.js", "/base.css"} <= set(files)
    allowed = ("http://www.w3.org/2000/svg",)
    for path, (body, _) in files.items():
        text = body.decode()
        for name in allowed:
            text = text.replace(name, "")
        assert "http:" not in text, path
        assert "https:" not in text, path
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, f"{path}: telemetry is only ever shown as text"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1:1", ""])
def test_a_page_of_another_site_is_refused_by_the_name_it_calls(
    console: Console, host: str
) -> None:
    assert ask(console, "/api/snapshot", Host=host)[0].status == 421
    assert ask(console, "/", Host=host)[0].status == 421


def test_a_request_that_comes_from_elsewhere_is_refused(console: Console) -> None:
    assert ask(console, "/api/snapshot", Origin="http://evil.example")[0].status == 421
    assert ask(console, "/api/snapshot", Origin=f"http://{console.address}")[0].status == 200


def test_connections_that_ask_for_nothing_make_room(tmp_path: Path, log: FakeConsoleLog) -> None:
    with running_console(tmp_path, {}, log) as console:
        host, _, port = console.address.rpartition(":")
        silent = [
            socket.create_connection((host, int(port)), timeout=60)
            for _ in range(CONNECTIONS_MAX + 5)
        ]
        assert ask(console, "/")[0].status == 200
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""
        for connection in silent:
            connection.close()


def test_connections_that_shake_no_hands_make_room(tmp_path: Path) -> None:
    own = Authority(tmp_path / "ca").sign("console", "DNS:localhost,IP:127.0.0.1")
    tls = {"cert_file": str(own.cert), "key_file": str(own.key)}
    context = ssl.create_default_context(cafile=str(tmp_path / "ca" / "ca.pem"))
    with running_console(tmp_path, {}, FakeConsoleLog([], {}), tls=tls) as console:
        host, _, port = console.address.rpartition(":")
        silent = [
            socket.create_connection((host, int(port)), timeout=60)
            for _ in range(CONNECTIONS_MAX + 5)
        ]
        page = HTTPSConnection("localhost", int(port), timeout=60, context=context)
        page.request("GET", "/")
        assert page.getresponse().status == 200
        page.close()
        for connection in silent:
            connection.close()


def test_only_the_pages_own_files_are_served(console: Console) -> None:
    for path in ("/../config.py", "/%2e%2e/config.py", "/etc/passwd", "//main.js", "/main.js/"):
        assert ask(console, path)[0].status == 404, path


def test_records_come_as_text(console: Console) -> None:
    answer, data = ask(console, "/api/records?stream=logs&at=0")
    found = json.loads(data)
    assert answer.headers["Content-Type"] == "application/json"
    assert [record["offset"] for record in found["records"]] == [0, 1, 2]
    assert found["at"] == {"0": 3}
    assert json.loads(found["records"][0]["value"]) == {"body": HOSTILE}
    assert json.loads(ask(console, "/api/records?stream=logs&at=0:3")[1])["records"] == []
    assert json.loads(ask(console, "/api/records?stream=logs&text=nowhere")[1])["records"] == []


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("?stream=", 400), ("?stream=logs&at=x", 400), ("?stream=logs&at=0:-1", 400),
     ("?stream=none", 409), ("?stream=logs&at=" + ",".join(map(str, range(99))), 400),
     ("?" + "&".join(f"a{n}=1" for n in range(99)), 400)],
)  # fmt: skip
def test_requests_for_records_that_make_no_sense_are_refused(
    console: Console, query: str, status: int
) -> None:
    answer, data = ask(console, f"/api/records{query}")
    assert answer.status == status
    assert json.loads(data)["code"]


def act(console: Console, token: str, body: bytes = b"{}", **headers: str) -> tuple[int, str]:
    sent = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"} | headers
    answer, data = ask(console, "/api/actions", method="POST", body=body, **sent)
    return answer.status, json.loads(data).get("code", "")


def test_each_part_is_shown_its_own_token_and_no_other(tmp_path: Path) -> None:
    for name in ("all", "mine"):
        (tmp_path / name).write_text(name)
    parts = {"a": "https://a:1", "b": "https://b:1"}
    config = ConsoleConfig(
        parts=parts,
        access=AccessSection(token_file=tmp_path / "all"),
        part_tokens={"b": tmp_path / "mine"},
    )
    assert config.access_to("a") == config.access
    assert config.access_to("b").token_file == tmp_path / "mine"
    for wrong in ({"c": tmp_path / "mine"}, {"b": tmp_path / "mine"}):
        with pytest.raises(ValidationError, match="no such part with an address of https"):
            ConsoleConfig(parts=parts | {"b": "http://b:1"}, part_tokens=wrong)


def test_actions_need_the_token(console: Console, token_file: Path, log: FakeConsoleLog) -> None:
    token = token_of(token_file)
    pause = b'{"action": "pause", "stream": "logs"}'
    assert act(console, "", pause) == (401, "TOKEN")
    assert act(console, "x" * 43, pause) == (401, "TOKEN")
    assert act(console, token[:-1], pause) == (401, "TOKEN")
    assert act(console, token, pause, Origin="http://evil.example") == (421, "UNKNOWN_HOST")
    assert act(console, token, pause, Content_Type="text/plain") == (415, "BAD_REQUEST")
    assert log.modes == []
    assert act(console, token, pause) == (200, "")
    assert log.modes == [("logs", True, None)]
    assert ask(console, "/api/actions")[0].status == 405


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"action": "delete", "stream": "logs"}', b'{"action": ["pause"]}',
     b'{"action": "pause", "stream": 7}', b"[" * 9000, b" " * 20_000],
)  # fmt: skip
def test_actions_that_there_are_not_are_refused(
    console: Console, token_file: Path, body: bytes
) -> None:
    token = token_of(token_file)
    assert act(console, token, body) == (400, "BAD_REQUEST")


def test_what_logd_refuses_is_told(console: Console, token_file: Path) -> None:
    token = token_of(token_file)
    assert act(console, token, b'{"action": "pause", "stream": "x"}') == (409, "UNKNOWN_STREAM")


def test_a_part_that_is_slow_delays_nobody_and_is_told(tmp_path: Path) -> None:
    slow, quick = (
        FakePart(lambda name=name: a_status("logd", name, a_stage("stream/x", 1)))  # type: ignore[misc]
        for name in ("slow", "quick")
    )
    slow.silent.set()
    parts = {"slow": slow.url, "quick": quick.url, "gone": "http://127.0.0.1:1"}
    with running_console(tmp_path, parts, poll_interval_s=0.2, timeout_s=0.3) as console:
        wait_until(lambda: "within" in " ".join(snapshot(console)["parts"][0]["reasons"]))
        expected = {"slow": "unreachable", "quick": "ready", "gone": "unreachable"}
        wait_until(
            lambda: (
                {part["name"]: part["health"] for part in snapshot(console)["parts"]} == expected
            )
        )
        slow.silent.clear()
        wait_until(lambda: snapshot(console)["parts"][0]["health"] == "ready")
    slow.close()
    quick.close()


def test_streams_stay_shown_while_logd_is_away_and_their_age_is_told(tmp_path: Path) -> None:
    log = FakeConsoleLog([a_stream("logs", 5)])
    with running_console(tmp_path, {}, log, poll_interval_s=0.2) as console:
        wait_until(lambda: snapshot(console)["streams"]["rows"])
        log.away = True
        wait_until(lambda: snapshot(console)["streams"]["problem"])
        found = snapshot(console)["streams"]
        assert [row["stream"] for row in found["rows"]] == ["logs"]
        assert found["age_ms"] is not None


def test_a_stream_says_that_its_publishers_are_refused(tmp_path: Path) -> None:
    stream = a_stream("logs", 5)
    refused = structs.replace(stream.partitions[0], refusal="the disk is full")
    log = FakeConsoleLog([structs.replace(stream, partitions=(refused,))])
    with running_console(tmp_path, {}, log) as console:
        wait_until(lambda: snapshot(console)["streams"]["rows"])
        (row,) = snapshot(console)["streams"]["rows"]
    assert row["state"] == "refusing"
    assert row["problem"] == "logd-1 refuses publishers: the disk is full"


async def test_an_answer_that_is_none_is_a_problem_and_no_error() -> None:
    bad = {
        b"HTTP/1.0 200 OK\r\n\r\n[1]": "not what was asked",
        b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 200_000: "not what was asked",
        b"HTTP/1.0 401 No\r\n\r\n{}": "token of the console was rejected",
        b"SSH-2.0-x\r\n": "does not speak HTTP",
        b"": "does not speak HTTP",
    }
    for answer, words in bad.items():

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = answer
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/status"
        found = await ask_json(url, AccessSection(), timeout_s=5)
        assert (found.document, words in found.problem) == (None, True), found
        server.close()


async def test_a_tail_that_falls_behind_goes_on_near_the_end_and_says_what_it_passed_over() -> None:
    log = FakeConsoleLog(records={"s": [Record("a", b"x", n) for n in range(BEHIND_MAX + 1000)]})
    found = await newest_records(log, RecordQuery("s", {0: 10}))
    assert found["skipped"] + len(found["records"]) == BEHIND_MAX + 990
    found = await newest_records(log, RecordQuery("s", {0: BEHIND_MAX}))
    assert len(found["records"]) == RECORDS_MAX
    assert found["records"][-1]["offset"] == BEHIND_MAX + 999
    assert found["skipped"] == 1000 - RECORDS_MAX


async def test_a_tail_goes_on_where_a_stream_was_made_again() -> None:
    log = FakeConsoleLog(records={"s": [Record("a", b"x", 1)]})
    assert len((await newest_records(log, RecordQuery("s", {0: 500})))["records"]) == 1


async def test_bytes_that_are_no_text_are_shown_in_base64_and_long_ones_are_cut() -> None:
    records = [Record("a", b"\xff\x00", 1, key=b"\xfe"), Record("a", b"y" * 10_000, 2)]
    shown = (
        await newest_records(FakeConsoleLog(records={"s": records}), RecordQuery("s", {0: None}))
    )["records"]
    assert (shown[0]["value"], shown[0]["key"]) == ("base64:/wA=", "base64:/g==")
    assert (len(shown[1]["value"]), shown[1]["cut"]) == (8192, 10_000 - 8192)


async def test_headers_are_cut_as_values_are() -> None:
    record = Record("a", b"x", 1, headers=((f"n{'n' * 20_000}", b"h" * 100_000),) * 40)
    (shown,) = (
        await newest_records(FakeConsoleLog(records={"s": [record]}), RecordQuery("s", {0: None}))
    )["records"]
    assert len(json.dumps(shown)) < 128 * 1024
    assert shown["headers"][0][1].endswith("h…")


def test_beyond_this_machine_it_is_served_with_tls_and_nothing_is_shown_without_the_token() -> None:
    everywhere = {"listen": "0.0.0.0:9299", "token_file": "token"}
    with pytest.raises(ValidationError, match="insecure_listener: true"):
        ConsoleConfig.model_validate(everywhere)
    asked = ConsoleConfig.model_validate(everywhere | {"insecure_listener": True})
    assert not asked.anybody_may_look
    with pytest.raises(ValidationError, match="without it nobody may look"):
        ConsoleConfig.model_validate(everywhere | {"insecure_listener": True, "token_file": None})
    assert ConsoleConfig().anybody_may_look


def test_where_reading_needs_the_token_nothing_but_the_page_is_shown(tmp_path: Path) -> None:
    with running_console(tmp_path, {}, read_without_token=False) as console:
        assert ask(console, "/")[0].status == 200
        assert ask(console, "/api/snapshot")[0].status == 401
        token = (tmp_path / "token").read_text().strip()
        answer, _ = ask(console, "/api/snapshot", Authorization=f"Bearer {token}")
        assert answer.status == 200


def test_the_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "token"
    token = token_of(path)
    assert len(token) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_of(path) == token
    path.write_text("short\n")
    with pytest.raises(ConfigError, match="fewer than"):
        token_of(path)


def test_a_start_that_is_cut_short_leaves_no_token_that_keeps_the_next_from_starting(
    tmp_path: Path,
) -> None:
    """No file may grow, as on a full disk."""
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, bounds[1]))
    try:
        with pytest.raises(ConfigError, match="File too large"):
            token_of(tmp_path / "token")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    assert len(token_of(tmp_path / "token")) >= 43


def test_the_console_is_called_by_the_names_it_is_given() -> None:
    door = Authorizer(ConsoleConfig(hosts=("Console.example",)), "127.0.0.1:9299")
    assert door.is_called_by_name("console.example:9299", "")
    assert door.is_called_by_name("localhost:9299", "http://127.0.0.1:9299")
    assert not door.is_called_by_name("console.example:9299", "null")
    assert not door.is_called_by_name("example", "")
    assert not door.acts
    assert not door.may_act("Bearer ")


class SetClock(Clock):
    def __init__(self) -> None:
        self.now_ns = 0

    @override
    def monotonic_ns(self) -> int:
        return self.now_ns

    @override
    def unix_ns(self) -> int:
        return self.now_ns


async def test_while_no_page_asks_parts_are_polled_less_until_one_does() -> None:
    clock = SetClock()
    polling = Poller(ConsoleConfig(parts={}), Rates(10**9), clock, lambda: None)
    await asyncio.wait_for(polling.pause(0), 60)
    clock.now_ns = int(UNWATCHED_S * 1e9)
    waiting = asyncio.create_task(polling.pause(3600))
    await asyncio.sleep(0)
    assert not waiting.done()
    polling.watch()
    await asyncio.wait_for(waiting, 60)
    await asyncio.wait_for(polling.pause(0), 60)


async def test_a_pause_ends_without_a_page_too() -> None:
    clock = SetClock()
    polling = Poller(ConsoleConfig(parts={}), Rates(10**9), clock, lambda: None)
    clock.now_ns = int(UNWATCHED_S * 1e9)
    await asyncio.wait_for(polling.pause(0.001), 60)
