"""Who makes a gRPC call: on real sockets, without a daemon."""

import asyncio
import selectors
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.base.clock import SystemClock
from penstock.logd.liftbridge.auth import AuthInterceptor, GrpcListener
from penstock.logd.liftbridge.calls import SERVICES as REFLECTION
from penstock.logd.liftbridge.calls import CallGuard, reflection_handlers
from penstock.logd.liftbridge.config import GrpcSection
from penstock.logd.liftbridge.server import doorman, server_options
from penstock.logd.net.listener import HANDSHAKE_S
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
async def serving(door: GrpcListener) -> AsyncIterator[int]:
    section = GrpcSection(connections_max=CONNECTIONS_MAX)
    authorizer = CallGuard(section.calls_max)
    keeping = doorman(section, SystemClock(), required=door.authenticator.required)
    server = grpc.aio.server(
        interceptors=(authorizer, AuthInterceptor(door.authenticator, authorizer, keeping.vouch)),
        options=server_options(section),
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
    keeping.port = port
    running = asyncio.create_task(keeping.run())
    try:
        yield port
    finally:
        running.cancel()
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


OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
SILENT = 200
"""More than gRPC accepts at all, with so few connections."""


def be_strangers(port: int, taken: threading.Event, over: threading.Event) -> None:
    """Hold connections that say nothing, from several addresses, and make those anew that end."""
    there: list[socket.socket | None] = [None] * SILENT
    with selectors.DefaultSelector() as ended:
        while not over.is_set():
            for number, one in enumerate(there):
                if one is None:
                    found = socket.create_connection(
                        ("127.0.0.1", port), source_address=(f"127.0.0.{2 + number % 3}", 0)
                    )
                    found.setblocking(False)
                    ended.register(found, selectors.EVENT_READ, number)
                    there[number] = found
            taken.set()
            for key, _ in ended.select(0.05):
                gone = there[key.data]
                assert gone is not None
                with suppress(BlockingIOError, ConnectionError):
                    if gone.recv(4096):
                        continue
                ended.unregister(gone)
                gone.close()
                there[key.data] = None
    for one in there:
        if one is not None:
            one.close()


@asynccontextmanager
async def crowd_of_strangers(port: int) -> AsyncIterator[None]:
    taken, over = threading.Event(), threading.Event()
    holding = asyncio.ensure_future(asyncio.to_thread(be_strangers, port, taken, over))
    try:
        await asyncio.to_thread(taken.wait, 60)
        yield
    finally:
        over.set()
        await holding


async def test_strangers_that_take_every_connection_leave_room_for_who_is_known(
    callers: Callers,
) -> None:
    door = GrpcListener(authenticator=callers.authenticator(), permits=ANYTHING)
    shown = [("authorization", f"Bearer {callers.key}")]
    async with serving(door) as port, channel_to(port) as before:
        stream: Any = before.unary_stream("/proto.API/Stream")
        lasting = stream(b"", metadata=shown, timeout=300)
        assert await lasting.read() == b"key:batch"
        async with crowd_of_strangers(port):
            for _ in range(3):
                async with channel_to(port) as channel:
                    who: Any = channel.unary_unary("/proto.API/Who")
                    call = who(b"", metadata=shown, timeout=60, wait_for_ready=True)
                    assert await call == b"key:batch"
        assert not lasting.done()  # whoever was in is still there
        lasting.cancel()


async def test_who_makes_no_call_is_shown_out_in_time(callers: Callers) -> None:
    async with serving(
        GrpcListener(authenticator=callers.authenticator(), permits=ANYTHING)
    ) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begun = asyncio.get_running_loop().time()
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        async with asyncio.timeout(120):
            await reader.read()
        assert asyncio.get_running_loop().time() - begun > HANDSHAKE_S
        writer.close()


async def test_more_connections_than_callers_may_have_are_closed(callers: Callers) -> None:
    shown = [("authorization", f"Bearer {callers.key}")]
    ended = 0
    async with serving(
        GrpcListener(authenticator=callers.authenticator(), permits=ANYTHING)
    ) as port:
        channels = [
            grpc.aio.insecure_channel(
                f"127.0.0.1:{port}", options=(("grpc.use_local_subchannel_pool", 1),)
            )
            for _ in range(CONNECTIONS_MAX + 2)
        ]
        streams: list[Any] = []
        for channel in channels:
            call: Any = channel.unary_stream("/proto.API/Stream")
            streams.append(call(b"", metadata=shown, timeout=300))
            assert await streams[-1].read() == b"key:batch"
        lasting = {asyncio.ensure_future(stream.read()) for stream in streams}
        while ended < 2:
            done, lasting = await asyncio.wait(lasting, timeout=60, return_when="FIRST_COMPLETED")
            assert done
            for one in done:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    one.result()
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            ended += len(done)
        assert len(lasting) == CONNECTIONS_MAX
        for one in lasting:
            one.cancel()
        for channel in channels:
            await channel.close()
