"""Who makes a gRPC call: on real sockets, without a daemon."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.logd.liftbridge.auth import AuthInterceptor, GrpcListener
from penstock.logd.liftbridge.calls import SERVICES as REFLECTION
from penstock.logd.liftbridge.calls import CallGuard, reflection_handlers
from penstock.logd.liftbridge.config import GrpcSection
from penstock.logd.liftbridge.server import server_options
from penstock.logd.security.authenticator import Authenticator
from penstock.logd.security.principal import current_caller
from penstock.logd.security.renewal import Renewed
from penstock.logd.security.tls import CertificateFiles, ClientCertificates, load_server_tls
from tests.support.certificates import Authority, Certificate
from tests.support.identities import HOST, Callers
from tests.support.protobuf_bytes import decode, encode
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

CONNECTIONS_MAX = 4

ANYTHING: Any = None
"""Permissions are asked for behind the edge."""


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Callers:
    return Callers(tmp_path_factory.mktemp("callers"))


async def who(_: bytes, __: Any) -> bytes:
    caller = current_caller()
    return f"{caller.method}:{caller.name}".encode()


async def stream(_: bytes, context: Any) -> None:
    """Says who asks, then nothing for ever."""
    await context.write(await who(b"", context))
    await asyncio.Event().wait()


@asynccontextmanager
async def serving(door: GrpcListener, *, idle_s: float = 60.0) -> AsyncIterator[int]:
    section = GrpcSection(max_connections=CONNECTIONS_MAX)
    authorizer = CallGuard(section.max_calls)
    server = grpc.aio.server(
        interceptors=(authorizer, AuthInterceptor(door.authenticator, authorizer)),
        options=server_options(section, idle_s=idle_s),
    )
    asked: dict[str, Any] = {
        "Who": grpc.stream_unary_rpc_method_handler(who),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    probed: dict[str, Any] = {"Who": grpc.unary_unary_rpc_method_handler(who)}
    for service, handlers in (("proto.API", asked), ("grpc.health.v1.Health", probed)):
        handler = grpc.method_handlers_generic_handler(service, handlers)
        server.add_generic_rpc_handlers((handler,))
    server.add_generic_rpc_handlers(reflection_handlers("proto.API"))
    credentials = door.credentials()
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def channel_to(
    port: int, authority: Path | None = None, shown: Certificate | None = None
) -> grpc.aio.Channel:
    if authority is None:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    own = () if shown is None else (shown.key.read_bytes(), shown.cert.read_bytes())
    credentials = grpc.ssl_channel_credentials(authority.read_bytes(), *own)
    return grpc.aio.secure_channel(f"localhost:{port}", credentials)


async def ask(
    channel: grpc.aio.Channel, token: str = "", method: str = "proto.API/Who", **metadata: str
) -> str:
    shown = [*metadata.items(), *([("authorization", f"Bearer {token}")] if token else [])]
    async with channel:
        call: Callable[..., Awaitable[bytes]] = channel.unary_unary(f"/{method}")
        return (await call(b"", metadata=shown, timeout=60)).decode()


async def refused(channel: grpc.aio.Channel, token: str = "", **metadata: str) -> str:
    """The reason of a refusal."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await ask(channel, token, **metadata)
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert token not in str(error.value.details()) or not token
    found = dict(error.value.trailing_metadata() or ())
    assert found["penstock-refusal"] == "UNAUTHENTICATED"
    return str(found["penstock-reason"])


def door(
    callers: Callers, authenticator: Authenticator, clients: ClientCertificates
) -> GrpcListener:
    files = CertificateFiles(
        ca_file=callers.clients.cert, cert_file=callers.server.cert, key_file=callers.server.key
    )
    return GrpcListener(
        authenticator=authenticator,
        permits=ANYTHING,
        tls=Renewed("tls", files.paths(), lambda: load_server_tls(files, clients)),
        certificates=clients is ClientCertificates.REQUIRED,
    )


async def test_calls_are_made_by_whoever_their_metadata_names(callers: Callers) -> None:
    authenticator = callers.authenticator()
    async with serving(GrpcListener(authenticator=authenticator, permits=ANYTHING)) as port:
        assert await ask(channel_to(port), callers.token("alice")) == "token:alice"
        assert await ask(channel_to(port), callers.key) == "key:batch"
        assert await refused(channel_to(port)) == "nobody"
        assert await refused(channel_to(port), callers.token(aud="other")) == "audience"
        forged = callers.issuer.forge_none("alice", 2e9)
        assert await refused(channel_to(port), forged) == "algorithm"
        assert await refused(channel_to(port), authorization="Basic x") == "malformed"
        assert await ask(channel_to(port), method="grpc.health.v1.Health/Who") == (
            "anonymous:anonymous"
        )
    assert authenticator.succeeded == {"grpc": 2}
    assert authenticator.failed["grpc", "nobody"] == 1


@pytest.mark.parametrize("service", REFLECTION)
async def test_reflection_answers_those_who_may_call(callers: Callers, service: str) -> None:
    async with serving(
        GrpcListener(authenticator=callers.authenticator(), permits=ANYTHING)
    ) as port:
        for token, expected in (("", "UNAUTHENTICATED"), (callers.token("alice"), "OK")):
            async with channel_to(port) as channel:
                shown = [("authorization", f"Bearer {token}")] if token else []
                call: Any = channel.stream_stream(f"/{service}/ServerReflectionInfo")
                asked = call(iter([encode({7: "*"})]), metadata=shown, timeout=60)
                with suppress(grpc.aio.AioRpcError):
                    answers = [decode(answer) async for answer in asked]
                    assert 6 in answers[0]
                assert (await asked.code()).name == expected


async def test_without_the_need_callers_may_stay_anonymous(callers: Callers) -> None:
    open_door = GrpcListener(authenticator=callers.authenticator(required=False), permits=ANYTHING)
    async with serving(open_door) as port:
        assert await ask(channel_to(port)) == "anonymous:anonymous"
        assert await ask(channel_to(port), callers.token()) == "token:alice"
        assert await refused(channel_to(port), "rubbish") == "malformed"


async def test_certificates_name_callers_where_they_are_required(
    callers: Callers, tmp_path: Path
) -> None:
    required = ClientCertificates.REQUIRED
    strange = Authority(tmp_path / "strange").sign("billing")
    authority = callers.servers.cert
    async with serving(door(callers, callers.authenticator(), required)) as port:
        shown = callers.client("billing")
        assert await ask(channel_to(port, authority, shown)) == "certificate:billing"
        both = channel_to(port, authority, shown)
        assert await ask(both, callers.token("alice")) == "token:alice"
        for wrong in (None, strange):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await ask(channel_to(port, authority, wrong), callers.token())
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_renewed_certificate_is_shown_to_new_connections(callers: Callers) -> None:
    none = ClientCertificates.NONE
    found = door(callers, callers.authenticator(), none)
    before = Certificate(callers.server.cert, callers.server.key)
    kept = before.cert.read_bytes(), before.key.read_bytes()
    other = Authority(callers.directory / "new-authority")
    token, old_authority = callers.token(), callers.servers.cert
    assert isinstance(found.tls, Renewed)
    async with serving(found) as port:
        lasting = channel_to(port, old_authority)
        call: Any = lasting.unary_unary("/proto.API/Who")
        shown = [("authorization", f"Bearer {token}")]
        assert await call(b"", metadata=shown, timeout=60) == b"token:alice"
        before.cert.write_bytes(b"rubbish")
        found.tls.look()
        assert found.tls.problem
        assert await ask(channel_to(port, old_authority), token) == "token:alice"
        before.replace_with(other.sign("logd", HOST))
        found.tls.look()
        assert await ask(channel_to(port, other.cert), token) == "token:alice"
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(channel_to(port, old_authority), token)
        assert await call(b"", metadata=shown, timeout=60) == b"token:alice"
        await lasting.close()
    before.cert.write_bytes(kept[0])
    before.key.write_bytes(kept[1])


async def test_a_subscription_ends_with_the_identity_of_whoever_made_it(callers: Callers) -> None:
    authenticator = callers.authenticator()
    lines = callers.keys.read_text()
    async with (
        serving(GrpcListener(authenticator=authenticator, permits=ANYTHING)) as port,
        channel_to(port) as channel,
    ):
        shown = [("authorization", f"Bearer {callers.key}")]
        stream_of: Any = channel.unary_stream("/proto.API/Stream")
        call = stream_of(b"", metadata=shown, timeout=60)
        assert await call.read() == b"key:batch"
        callers.keys.write_text("")
        callers.key_file.look()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        wait_until(lambda: authenticator.failed["grpc", "revoked"] == 1)
    callers.keys.write_text(lines)


async def test_nothing_is_read_of_what_strangers_send(callers: Callers) -> None:
    """They are answered before they have sent any of it."""

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    door = GrpcListener(authenticator=callers.authenticator(), permits=ANYTHING)
    async with serving(door) as port, channel_to(port) as channel:
        call: Any = channel.stream_unary("/proto.API/Who")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(never(), timeout=20)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_who_makes_no_call_is_shown_out_in_time(callers: Callers) -> None:
    door = GrpcListener(authenticator=callers.authenticator(), permits=ANYTHING)
    async with serving(door, idle_s=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        async with asyncio.timeout(15):
            await reader.read()
        writer.close()


SUBSCRIBER = """
import grpc, sys
port, token = sys.argv[1:]
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
subscribe = channel.unary_stream("/proto.API/Stream")
try:
    for record in subscribe(b"", metadata=[("authorization", f"Bearer {token}")], timeout=300):
        print(record.decode(), flush=True)
except grpc.RpcError as error:
    print(error.code().name, flush=True)
"""


class Subscriber:
    """A client in a process of its own: it subscribes until it is killed.

    Raises:
        TimeoutError: It is neither answered nor refused.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, port: int, token: str) -> "Subscriber":
        arguments = ("-c", SUBSCRIBER, str(port), token)
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        )

    async def line(self) -> str:
        """What it prints next: its first record, or the code it is refused with; "" at its end."""
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            return (await self._process.stdout.readline()).decode().strip()

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.communicate()


@asynccontextmanager
async def subscribed(port: int, token: str) -> AsyncIterator[Subscriber]:
    subscriber = await Subscriber.start(port, token)
    try:
        yield subscriber
    finally:
        await subscriber.kill()


async def test_more_connections_than_there_may_be_are_closed(callers: Callers) -> None:
    """Those that are there go on, and when one ends there is room, as often as that happens."""
    door = GrpcListener(authenticator=callers.authenticator(), permits=ANYTHING)
    async with serving(door) as port, AsyncExitStack() as clients:
        those: list[Subscriber] = []
        for _ in range(CONNECTIONS_MAX):
            those.append(await clients.enter_async_context(subscribed(port, callers.key)))
            assert await those[-1].line() == "key:batch"
        for _ in range(CONNECTIONS_MAX):
            async with subscribed(port, callers.key) as further:
                assert await further.line() == "UNAVAILABLE"
            assert all(client.running for client in those)
            await those.pop(0).kill()
            those.append(await subscribe_when_there_is_room(clients, port, callers.key))


async def subscribe_when_there_is_room(
    clients: AsyncExitStack, port: int, token: str
) -> Subscriber:
    async with asyncio.timeout(60):
        while True:
            client = await clients.enter_async_context(subscribed(port, token))
            if await client.line() == "key:batch":
                return client
