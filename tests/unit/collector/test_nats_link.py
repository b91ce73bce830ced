"""What a failure to connect means, what is said of it, and that no attempt is the last one."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.errors import Error, UnexpectedEOF

from penstock.base.clock import SystemClock
from penstock.collector.config import NatsSection
from penstock.collector.delivery.connection import NatsLink, Outage, Waits, is_lasting
from penstock.logd.errors import UnavailableError as UnusableError
from penstock.logd.publisher.connecting import UnencryptedError
from penstock.service import ConfigError, UnavailableError
from tests.support.waiting import wait_until_async

SINCE_NS = 1_769_828_400_000_000_000
NO_WAITS = Waits(connect_min_s=0, connect_max_s=0, look_s=0, reconnect_s=0)


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (ConnectionRefusedError(111, "Connect call failed"), False),
        (ConnectionResetError(), False),
        (TimeoutError(), False),
        (OSError(-2, "Name or service not known"), False),
        (UnexpectedEOF(), False),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), False),
        (Error("nats: empty response from server when expecting INFO message"), False),
        (Error("nats: 'maximum connections exceeded'"), False),
        (Error("nats: 'maximum account active connections exceeded'"), False),
        (Error("nats: 'Authorization Violation'"), True),
        (Error("nats: 'User Authentication Expired'"), True),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), True),
        (ssl.SSLError(1, "tlsv13 alert certificate required"), True),
        (UnencryptedError(), True),
        (UnusableError("this version of nats-py cannot be held to TLS"), True),
        (ConfigError("nats.ca_file: is none", fix="name another"), True),
    ],
)
def test_only_what_somebody_must_correct_is_no_outage(error: Exception, lasting: bool) -> None:
    assert is_lasting(error) == lasting


@pytest.mark.parametrize(
    ("outage", "text"),
    [
        (Outage(SINCE_NS), "NATS at h:1 cannot be reached since 2026-01-31T03:00:00Z"),
        (
            Outage(SINCE_NS, "no answer in time"),
            "NATS at h:1 cannot be reached since 2026-01-31T03:00:00Z: no answer in time",
        ),
        (
            Outage(SINCE_NS, "not trusted", lasting=True),
            "NATS at h:1 cannot be used since 2026-01-31T03:00:00Z: not trusted",
        ),
    ],
)
def test_an_outage_says_since_when_and_why(outage: Outage, text: str) -> None:
    assert outage.text("h:1") == f"{text}; held in the spool"


class FakeClient:
    """nats-py's client, which does what it is told to at each attempt."""

    attempts: list[Callable[["FakeClient"], Awaitable[None]]]

    def __init__(self) -> None:
        self.is_connected = False
        self.is_closed = False
        self.options: dict[str, Any] = {}

    async def connect(self, **options: Any) -> None:
        self.options = options
        await FakeClient.attempts.pop(0)(self)

    async def close(self) -> None:
        self.is_connected, self.is_closed = False, True


async def connects(client: FakeClient) -> None:
    client.is_connected = True


async def ends_unsaid(client: FakeClient) -> None:
    """As nats-py, when the server closes the connection before it has answered."""


async def breaks(client: FakeClient) -> None:
    raise AssertionError("a bug of nats-py's")


async def hangs(client: FakeClient) -> None:
    """As nats-py, behind a certificate that it does not trust."""
    await client.options["error_cb"](ssl.SSLCertVerificationError(1, "not trusted"))
    await asyncio.Event().wait()


@asynccontextmanager
async def a_link(
    *attempts: Callable[[FakeClient], Awaitable[None]],
    **keys: Any,
) -> AsyncIterator[NatsLink]:
    FakeClient.attempts = list(attempts)
    config = NatsSection.model_validate({"url": "nats://user:secret@localhost:4222", **keys})
    link = NatsLink(
        config, SystemClock(), lambda: None, waits=NO_WAITS, make_client=lambda **_: FakeClient()
    )
    try:
        yield link
    finally:
        await link.close()


async def test_whatever_is_in_the_way_it_is_tried_again() -> None:
    async with a_link(ends_unsaid, breaks, hangs, breaks, connects) as link:
        await link.open("c", 60, needed=False)
        assert "the server closed the connection" in link.trouble
        assert "secret" not in link.trouble
        await wait_until_async(lambda: link.is_connected)
        assert link.trouble == ""


async def test_a_client_that_nats_py_has_given_up_has_a_successor() -> None:
    async with a_link(connects, connects) as link:
        await link.open("c", 60, needed=True)
        first = link.client
        await first.close()
        await first.options["disconnected_cb"]()
        assert "cannot be reached since" in link.trouble
        await wait_until_async(lambda: link.is_connected)
        assert link.client is not first


@pytest.mark.parametrize("key", ["password", "token"])
async def test_nats_py_connects_again_with_the_secrets_that_the_files_hold_then(
    tmp_path: Path, key: str
) -> None:
    file = tmp_path / "secret"
    file.write_text("first\n")
    async with a_link(connects, **{key: {"file": str(file)}}) as link:
        await link.open("c", 60, needed=True)
        options = link.client.options
        assert options[key] == "first"
        file.write_text("second\n")
        await options["disconnected_cb"]()
        assert options[key] == "second"
        file.write_text("third\n")  # while it is refused
        await options["error_cb"](Error("nats: 'Authorization Violation'"))
        assert options[key] == "third"
        file.unlink()
        await options["error_cb"](Error("nats: 'Authorization Violation'"))
        assert options[key] == "third"


async def test_at_first_what_must_be_corrected_ends_it() -> None:
    async with a_link(hangs, ends_unsaid) as link:
        with pytest.raises(UnavailableError, match=r"localhost:4222 cannot be used: .*not trusted"):
            await link.open("c", 60, needed=False)
        with pytest.raises(UnavailableError, match="no NATS server at nats://localhost:4222: the"):
            await link.open("c", 60, needed=True)


async def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_is_allowed() -> None:
    async def waits(client: FakeClient) -> None:
        await asyncio.Event().wait()

    async with a_link(waits, connects) as link:
        await link.open("c", 0.01, needed=False)
        assert "no answer in time" in link.trouble
        await wait_until_async(lambda: link.is_connected)


INFO = b'INFO {"server_id":"a","version":"2.10.0","max_payload":1048576,"proto":1}\r\n'


@pytest.mark.parametrize(
    "unreadable", [b"INFO\r\n", b"INFO []\r\n", INFO + b"-ERR\r\n", b"a" * 200_000]
)
async def test_an_answer_that_nats_py_cannot_read_is_not_the_last_one(unreadable: bytes) -> None:
    answers = [INFO + b"PONG\r\n", unreadable, INFO + b"PONG\r\n"]
    open_ones: list[asyncio.StreamWriter] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.append(writer)
        writer.write(answers[len(open_ones) - 1])

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        config = NatsSection.model_validate({"url": f"nats://127.0.0.1:{port}"})
        link = NatsLink(config, SystemClock(), lambda: None, waits=NO_WAITS)
        await link.open("c", 60, needed=True)
        open_ones[0].close()
        await wait_until_async(lambda: len(open_ones) == len(answers) and link.is_connected)
        await link.close()
        for writer in open_ones:
            writer.close()
