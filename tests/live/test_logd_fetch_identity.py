"""Who is at the fetch endpoint: on real sockets and with real clients, without a daemon."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.api.operations import Document
from penstock.logd.api.protocol import REQUEST_HEAD, encode_request
from penstock.logd.api.server import Api, FetchLimits, FetchServer, Response, ResponseSlot
from penstock.logd.cli.server import advice
from penstock.logd.client import Access, AsyncLogClient, LogClient
from penstock.logd.errors import NoAnswerError, RefusedError, UnavailableError
from penstock.logd.limits import UNAUTHENTICATED_BESIDES
from penstock.logd.security.authenticator import Authenticator
from penstock.logd.security.principal import Principal
from penstock.logd.security.tls import CertificateFiles, ClientCertificates
from tests.support.certificates import Authority, Certificate
from tests.support.fetch_desk import LetsIn
from tests.support.identities import Callers
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live


class Asked(LetsIn):
    """Answers every request with the empty list of streams, and remembers who asked."""

    def __init__(self) -> None:
        self.callers = list[Principal]()

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        self.callers.append(turn.caller)
        return Response({"node": "a", "streams": []})

    @property
    def names(self) -> list[str]:
        return [f"{caller.method}:{caller.name}" for caller in self.callers]


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Callers:
    return Callers(tmp_path_factory.mktemp("callers"))


@asynccontextmanager
async def serving(
    callers: Callers,
    authenticator: Authenticator,
    asked: Api | None = None,
    *,
    clients: ClientCertificates | None = ClientCertificates.OPTIONAL,
    change: Callable[[ssl.SSLContext], None] | None = None,
    limits: FetchLimits | None = None,
) -> AsyncIterator[tuple[str, FetchServer]]:
    source = None
    if clients is not None:
        files = CertificateFiles(
            ca_file=callers.clients.cert,
            cert_file=callers.server.cert,
            key_file=callers.server.key,
        )
        context = files.server(clients)
        if change is not None:
            change(context)
        source = lambda: context  # noqa: E731 - a source of one context
    server = FetchServer(
        asked or Asked(),
        limits or FetchLimits(max_connections=4),
        tls=source,
        authenticator=authenticator,
    )
    address = server.listener.listen("127.0.0.1:0")
    running = asyncio.create_task(server.listener.run())
    try:
        yield address, server
    finally:
        running.cancel()
        await asyncio.wait([running])


def access(callers: Callers, certificate: Certificate | None = None, **more: Any) -> Access:
    if certificate is not None:
        more |= {"cert_file": certificate.cert, "key_file": certificate.key}
    return Access(ca_file=callers.servers.cert, **more)


def ask(address: str, let_in: Access, *, times: int = 1) -> None:
    with LogClient(address, access=let_in) as log:
        for _ in range(times):
            assert log.streams() == []


async def ask_async(address: str, let_in: Access) -> None:
    async with AsyncLogClient(address, access=let_in) as log:
        assert await log.streams() == []


async def refusal(address: str, let_in: Access) -> RefusedError:
    """How both clients are refused."""
    with pytest.raises(RefusedError) as blocking:
        await asyncio.to_thread(ask, address, let_in)
    with pytest.raises(RefusedError) as asynchronous:
        await ask_async(address, let_in)
    assert str(blocking.value) == str(asynchronous.value)
    assert blocking.value.code == asynchronous.value.code
    return blocking.value


async def test_callers_are_known_by_certificate_token_and_key(callers: Callers) -> None:
    asked = Asked()
    async with serving(callers, callers.authenticator(), asked) as (address, _):
        for let_in in (
            access(callers, callers.client("billing")),
            access(callers, token=callers.token("alice")),
            access(callers, token=callers.key),
            access(callers, callers.client("billing"), token=callers.token("bob")),
        ):
            await asyncio.to_thread(ask, address, let_in)
            await ask_async(address, let_in)
    expected = ["certificate:billing", "token:alice", "key:batch", "token:bob"]
    assert asked.names == [name for name in expected for _ in range(2)]


async def test_nobody_is_served_who_is_not_known(callers: Callers) -> None:
    authenticator = callers.authenticator()
    asked = Asked()
    async with serving(callers, authenticator, asked) as (address, server):
        assert (await refusal(address, access(callers))).detail["reason"] == "nobody"
        assert server.counts.refused == {"UNAUTHENTICATED": 2}
    assert asked.callers == []
    assert authenticator.failed == {("fetch", "nobody"): 2}


async def test_without_the_need_callers_may_stay_anonymous(callers: Callers) -> None:
    asked = Asked()
    authenticator = callers.authenticator(required=False)
    async with serving(callers, authenticator, asked, clients=None) as (address, _):
        await asyncio.to_thread(ask, address, Access())
        await ask_async(address, Access(token=callers.token()))
    assert asked.names == ["anonymous:anonymous", "token:alice"]


async def test_what_is_wrong_with_a_token_is_said_and_the_token_is_not(callers: Callers) -> None:
    now = int(datetime.now(UTC).timestamp())  # noqa: TID251 - a real deadline
    forger = callers.issuer
    async with serving(callers, callers.authenticator()) as (address, _):
        for text, reason in (
            (callers.token(aud="another"), "audience"),
            (callers.token(iss="https://elsewhere.example"), "issuer"),
            (callers.token(exp=now - 60), "expired"),
            (callers.token(nbf=now + 600), "not_yet"),
            (forger.forge_none("alice", now), "algorithm"),
            (forger.forge_hs256("alice", now), "algorithm"),
            (forger.token("alice", now, kid="other"), "unknown_key"),
            (callers.key + "x", "unknown_key"),
            ("rubbish", "malformed"),
        ):
            refused = await refusal(address, access(callers, token=text))
            assert (refused.code, refused.detail["reason"]) == ("UNAUTHENTICATED", reason)
            assert text not in str(refused)


async def test_a_certificate_of_another_authority_and_none_where_one_is_needed(
    callers: Callers, tmp_path: Path
) -> None:
    strange = Authority(tmp_path / "strange").sign("billing")
    required = ClientCertificates.REQUIRED
    asked = Asked()
    async with serving(callers, callers.authenticator(), asked, clients=required) as found:
        for certificate in (None, strange, callers.clients.sign("old", expired=True)):
            let_in = access(callers, certificate, token=callers.token())
            with pytest.raises(UnavailableError, match="cannot be reached"):
                await asyncio.to_thread(ask, found[0], let_in)
            with pytest.raises(UnavailableError, match="cannot be reached"):
                await ask_async(found[0], let_in)
        assert asked.callers == []
        await asyncio.to_thread(ask, found[0], access(callers, callers.client()))
        await wait_until_async(lambda: found[1].listener.handshakes_failed >= 6)


async def test_a_plain_client_of_a_server_with_tls_is_told_so(callers: Callers) -> None:
    async with serving(callers, callers.authenticator()) as (address, _):
        with pytest.raises(NoAnswerError) as refused:
            await asyncio.to_thread(ask, address, Access())
        assert refused.value.cause == "closed"
        assert "--tls" in advice(refused.value)


async def test_a_client_trusts_only_its_authority(callers: Callers, tmp_path: Path) -> None:
    strange = Access(ca_file=Authority(tmp_path / "strange").cert, token=callers.token())
    asked = Asked()
    async with serving(callers, callers.authenticator(), asked) as (address, _):
        with pytest.raises(UnavailableError, match="not trusted"):
            await asyncio.to_thread(ask, address, strange)
        with pytest.raises(UnavailableError, match="not trusted"):
            await ask_async(address, strange)
    assert asked.callers == []


async def test_a_certificate_that_names_nobody_is_refused(callers: Callers) -> None:
    nameless = access(callers, callers.clients.sign("group:ops", file="nameless"))
    async with serving(callers, callers.authenticator()) as (address, _):
        assert "nobody can be named" in str(await refusal(address, nameless))


async def test_an_identity_ends_with_its_key_and_with_its_time(callers: Callers) -> None:
    authenticator = callers.authenticator()
    async with serving(callers, authenticator) as (address, _):
        let_in = access(callers, token=callers.key)
        async with AsyncLogClient(address, access=let_in) as log:
            assert await log.streams() == []
            lines = callers.keys.read_text()
            callers.keys.write_text("")
            callers.key_file.look()
            with pytest.raises(RefusedError, match="not known here"):
                await log.streams()
            callers.keys.write_text(lines)
            callers.key_file.look()
            assert await log.streams() == []
    assert authenticator.failed["fetch", "revoked"] == 1


class Advanced(SystemClock):
    """The machine's time, and what a test adds to it."""

    ahead_s = 0

    @override
    def unix_ns(self) -> int:
        return super().unix_ns() + self.ahead_s * 10**9


async def test_a_new_token_in_the_file_is_shown_when_the_old_one_has_expired(
    callers: Callers, tmp_path: Path
) -> None:
    asked, clock = Asked(), Advanced()
    path = tmp_path / "token"
    path.write_text(callers.token("first", exp=clock.unix_ns() // 10**9 + 600))
    async with serving(callers, callers.authenticator(clock=clock), asked) as (address, _):
        with LogClient(address, access=access(callers, token_file=path)) as log:
            await asyncio.to_thread(log.streams)
            path.write_text(callers.token("second"))
            clock.ahead_s = 600 + 60  # the skew is 30

            def changed() -> bool:
                return asked.names[-1] == "token:second"

            async with asyncio.timeout(60):
                while not changed():
                    await asyncio.to_thread(log.streams)
    assert asked.names[0] == "token:first"


async def test_three_wrong_tokens_close_the_connection(callers: Callers) -> None:
    async with serving(callers, callers.authenticator(), clients=None) as (address, server):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in range(9):
            writer.write(encode_request({"api": "authenticate", "id": number, "token": "x"}))
        async with asyncio.timeout(60):
            answers = await reader.read()
        assert answers.count(b"UNAUTHENTICATED") == 3
        writer.close()
        assert server.counts.refused == {"UNAUTHENTICATED": 3}


async def test_whoever_says_nothing_is_shown_out(
    callers: Callers,
) -> None:
    limits = FetchLimits(max_connections=4, authenticate_s=0.2)
    async with serving(callers, callers.authenticator(), clients=None, limits=limits) as (
        address,
        server,
    ):
        host, port = address.split(":")
        silent, slow = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        slow[1].write(REQUEST_HEAD.pack(100) + b"{")
        async with asyncio.timeout(60):
            assert await silent[0].read() == b""
            assert await slow[0].read() == b""
        assert server.counts.stalled == 2
        for _, writer in (silent, slow):
            writer.close()


async def test_without_tls_a_token_goes_nowhere_but_to_this_machine(callers: Callers) -> None:
    let_in = Access(token=callers.token())
    for client in (LogClient("192.0.2.1:1", access=let_in),):
        with pytest.raises(RefusedError, match="without TLS") as refused:
            client.streams()
        assert refused.value.code == "PLAIN_TOKEN"
    async with AsyncLogClient("192.0.2.1:1", access=let_in) as log:
        with pytest.raises(RefusedError, match="without TLS"):
            await log.streams()


def oldest(callers: Callers) -> ssl.SSLContext:
    """A client that speaks TLS 1.1 and nothing later."""
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(callers.servers.cert)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    return old


def lenient(context: ssl.SSLContext) -> None:
    context.set_ciphers("ALL:@SECLEVEL=0")  # only the version is left to refuse old clients for


def lowered(context: ssl.SSLContext) -> None:
    lenient(context)
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1


@pytest.mark.parametrize("change", [None, lenient])
async def test_tls_that_is_too_old_or_none_at_all_is_not_spoken(
    callers: Callers, change: Callable[[ssl.SSLContext], None] | None
) -> None:
    asked = Asked()
    old = oldest(callers)
    async with serving(callers, callers.authenticator(), asked, change=change) as (address, server):
        host, port = address.split(":")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(host, int(port), ssl=old, server_hostname="localhost")
        with pytest.raises(UnavailableError):
            await asyncio.to_thread(ask, address, Access())
        await wait_until_async(lambda: server.listener.handshakes_failed == 2)
    async with serving(callers, callers.authenticator(), asked, clients=None) as (address, _):
        with pytest.raises(UnavailableError, match="does not speak TLS"):
            await asyncio.to_thread(ask, address, access(callers))
    assert asked.callers == []


async def test_a_lower_minimum_would_be_noticed(callers: Callers) -> None:
    """The twin of the test above: there it is the minimum that refuses, and nothing else."""
    old = oldest(callers)
    async with serving(callers, callers.authenticator(), change=lowered) as (address, _):
        host, port = address.split(":")
        _, writer = await asyncio.open_connection(
            host, int(port), ssl=old, server_hostname="localhost"
        )
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.1"
        writer.close()


STRANGERS_MAX = 4 + UNAUTHENTICATED_BESIDES


@pytest.mark.parametrize("clients", [None, ClientCertificates.OPTIONAL], ids=["plain", "tls"])
async def test_strangers_that_say_nothing_leave_room_for_who_is_known(
    callers: Callers, clients: ClientCertificates | None
) -> None:
    """However many there are: the oldest of them goes for each that comes."""
    known = Access(token=callers.key) if clients is None else access(callers, token=callers.key)
    async with serving(callers, callers.authenticator(), clients=clients) as (address, server):
        host, port = address.split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(STRANGERS_MAX + 30)]
        await wait_until_async(lambda: server.listener.connections_refused == 30)
        assert server.listener.connections == STRANGERS_MAX
        await asyncio.to_thread(ask, address, known)
        assert server.listener.connections_refused == 31
        for one in silent[:31]:
            one.settimeout(60)
            assert one.recv(1) == b""
        for one in silent:
            one.close()
        await wait_until_async(lambda: server.listener.connections == 0)


async def test_more_callers_than_may_be_are_told_so(callers: Callers) -> None:
    let_in = Access(token=callers.key)
    async with serving(callers, callers.authenticator(), clients=None) as (address, server):
        there = [AsyncLogClient(address, access=let_in) for _ in range(4)]
        for client in there:
            assert await client.streams() == []
        refused = await refusal(address, let_in)
        assert (refused.code, refused.detail["limit"]) == ("TOO_MANY_CONNECTIONS", 4)
        there[0].close()
        await wait_until_async(lambda: server.listener.connections == 3)
        await ask_async(address, let_in)
        for client in there:
            client.close()


class Held(LetsIn):
    """Answers a fetch when a test says so."""

    def __init__(self) -> None:
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def answer(self, _: Document, __: ResponseSlot) -> Response:
        self.asked.set()
        await self.may.wait()
        return Response({"next_offset": 1}, payload=b"a secret record")


async def test_a_fetch_that_waits_is_not_answered_when_its_identity_has_ended(
    callers: Callers,
) -> None:
    api, lines = Held(), callers.keys.read_text()
    async with serving(callers, callers.authenticator(), api, clients=None) as (address, _):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(encode_request({"api": "authenticate", "id": 1, "token": callers.key}))
        writer.write(encode_request({"api": "fetch", "id": 2, "wait_ms_max": 60_000}))
        async with asyncio.timeout(60):
            await api.asked.wait()
            callers.keys.write_text("")
            callers.key_file.look()
            api.may.set()
            heard = b""
            while b"UNAUTHENTICATED" not in heard:
                heard += await reader.readexactly(1)
        assert b"secret" not in heard
        writer.close()
    callers.keys.write_text(lines)
