"""The admin socket: whose it is, what it refuses, what goes on until one side ends it."""

import asyncio
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.collector.agent import admin
from penstock.collector.agent.admin import ControlServer, ask, ask_once
from penstock.collector.agent.taps import Tap, Taps, read_tap
from penstock.collector.cli.admin import tap
from penstock.service import ConfigError, UnavailableError
from tests.support.waiting import wait_until_async


async def echo(request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    yield {"ok": True, "heard": request["what"]}


async def refuse(request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    if request.get("how") == "value":
        raise ValueError("what is missing")
    if request.get("how") == "badly":
        raise OSError("the disk is broken")
    if request:
        raise UnavailableError("not now", fix="come later")
    yield {}


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    server = ControlServer(deep / "admin.sock", {"echo": echo, "refuse": refuse})
    await server.start()
    yield deep / "admin.sock"
    await server.close()
    assert not (deep / "admin.sock").exists()


async def test_it_answers_its_own_user_on_a_socket_of_its_own_however_long_its_name(
    path: Path,
) -> None:
    status = await asyncio.to_thread(path.stat)
    assert stat.S_IMODE(status.st_mode) == 0o600
    answer = await asyncio.to_thread(ask_once, path, {"do": "echo", "what": "hello"})
    assert answer == {"ok": True, "heard": "hello"}


async def test_strangers_hear_that_they_may_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = os.geteuid() + 1
    monkeypatch.setattr(admin, "_user_of", lambda _: stranger)  # private: a test is one user
    with pytest.raises(UnavailableError, match="may not"):
        await asyncio.to_thread(ask_once, path, {"do": "echo", "what": "hello"})


@pytest.mark.parametrize(
    ("answer", "says"),
    [(b'{"ok": false, "error": "you may not"}\n', "you may not"), (b"", "ended the connection")],
)
async def test_an_answer_that_comes_before_the_request_is_read_is_heard(
    tmp_path: Path, answer: bytes, says: str
) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "a.sock"))
        listening.listen()

        def refuse_at_once() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(answer)

        refusing = asyncio.ensure_future(asyncio.to_thread(refuse_at_once))
        longer_than_a_socket_holds = "x" * 4_000_000
        with pytest.raises(UnavailableError, match=says):
            await asyncio.to_thread(
                ask_once, tmp_path / "a.sock", {"do": longer_than_a_socket_holds}
            )
        await refusing


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"do": "dance"}, "`do` is one of echo, refuse"),
        ({}, "`do` is one of echo, refuse"),
        ({"do": "refuse", "how": "value"}, "what is missing"),
        ({"do": "refuse"}, "fix: come later"),
        ({"do": "refuse", "how": "badly"}, "OSError: the disk is broken"),
    ],
)
async def test_what_cannot_be_done_is_told(path: Path, request_: dict[str, Any], says: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        await asyncio.to_thread(ask_once, path, request_)
    assert says in str(caught.value)


async def test_a_socket_that_was_left_behind_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "a.sock"))  # and its name stays
    server = ControlServer(tmp_path / "a.sock", {"echo": echo})
    await server.start()
    assert (
        await asyncio.to_thread(ask_once, tmp_path / "a.sock", {"do": "echo", "what": "hello"})
    )["ok"]
    await server.close()
    (tmp_path / "b.sock").write_text("mine")
    with pytest.raises(ConfigError):
        await ControlServer(tmp_path / "b.sock", {}).start()


async def test_nobody_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no collector answers"):
        await asyncio.to_thread(ask_once, tmp_path / "none.sock", {"do": "echo"})


async def test_who_follows_and_goes_ends_what_it_followed(tmp_path: Path) -> None:
    taps = Taps()

    async def follow(request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        with taps.open(read_tap(request)) as tap:
            while True:
                yield await tap.next()

    server = ControlServer(tmp_path / "a.sock", {"tap": follow})
    await server.start()
    answers = ask(tmp_path / "a.sock", {"do": "tap", "follow": True})
    first = asyncio.create_task(asyncio.to_thread(next, answers))
    await wait_until_async(lambda: taps.active)
    taps.show("out", "app", [b'{"a":1}'], subject="telemetry.logs.x")
    assert (await first)["record"] == '{"a":1}'
    answers.close()
    await wait_until_async(lambda: not taps.active)
    await server.close()


async def test_a_tap_shows_what_it_is_asked_for_and_counts_what_it_missed() -> None:
    taps = Taps()
    with taps.open(Tap("out", source="a*", subject="*.logs.*", every=2)) as tap:
        for source in ("app", "other"):
            for subject in ("t.logs.x", "t.audit.x"):
                lines = [b"%d" % number for number in range(4)]
                taps.show("out", source, lines, subject=subject)
                taps.show("in", source, lines)
        assert [(await tap.next())["record"] for _ in range(2)] == ["1", "3"]
        taps.show("out", "app", [b"x"] * 5000, subject="t.logs.x")
        await tap.next()
        assert (await tap.next())["missed"] == 1500
    assert not taps.active


@pytest.mark.parametrize("request_", [{"point": "middle"}, {"every": 0}, {"every": "2"}])
def test_a_tap_that_is_wrong_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        read_tap(request_)


def test_a_tap_goes_on_after_the_collector_was_away_and_says_so_once(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"

    def serve() -> None:
        for number in range(3):
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
                listening.listen()
                begun.set()
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b'{"record": %d}\n' % number)

    begun = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    assert begun.wait(10)
    done = CliRunner().invoke(tap, [str(path), "--limit", "3"])
    thread.join()
    shown = [f'{{"record": {number}}}' for number in range(3)]
    assert (done.exit_code, done.stdout.splitlines()) == (0, shown)
    assert done.stderr.splitlines()[:2] == [
        "the collector ended the connection; it is tried again",
        "the collector answers again",
    ]


def test_a_tap_of_no_collector_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.sock").touch()
    done = CliRunner().invoke(tap, [str(tmp_path / "a.sock")])
    assert isinstance(done.exception, UnavailableError)
