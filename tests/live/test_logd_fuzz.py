"""Hostile requests on every port of a real logd: it answers or refuses, and is the same after them.

`PENSTOCK_FUZZ_CASES` multiplies the number of requests, `PENSTOCK_FUZZ_SEED` draws others.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import grpc
import nats
import psutil
import pytest

from penstock.logd.api.protocol import REQUEST_HEAD, RESPONSE_HEAD
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.envelope import COOKIE, BatchPayload, encode_batch, encode_envelope
from penstock.logd.format.publish_envelope import TYPE_PUBLISH
from penstock.logd.limits import REQUEST_SIZE_MAX
from penstock.logd.wire import logd_liftbridge_pb2 as wire
from tests.support.fuzzing import SEED, cases, mutated_bytes
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server
from tests.support.processes import free_port
from tests.support.protobuf_bytes import encode
from tests.support.waiting import wait_until
from tests.unit.logd.test_hostile_requests import hostile

pytestmark = pytest.mark.live

STALL_S: Final = 1.0
GROWTH_BYTES_MAX: Final = 96 << 20
"""What the process may be larger after all of it: caches and pools, of which none grows on."""

METHODS: Final = wire.DESCRIPTOR.services_by_name["API"].methods
FIELDS: Final[tuple[dict[int, Any], ...]] = (
    {1: "t.a", 2: "logs", 4: 1, 5: 1},
    {1: "logs", 2: 1, 3: 2, 8: 1},
    {1: b"key", 2: b"value", 3: "logs", 5: [{1: "h", 2: b"v"}], 9: "inbox", 10: "id", 11: 1},
    {1: "group", 2: "consumer", 3: ["logs"]},
    {1: ["logs"]},
)
_BAD: Final = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_nats_server(tmp_path_factory.mktemp("nats")) as url:
        yield url


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, nats_url: str) -> Iterator[Logd]:
    streams = [{"name": "logs", "subject": "t.>", "max_batch_decoded_bytes": 1 << 20}]
    options: dict[str, Any] = {
        "grpc": {"listen": f"127.0.0.1:{free_port()}", "publish_timeout_s": 0.2},
        "fetch_stall_s": STALL_S,
        "max_connections": 16,
        "max_streams": 40,
    }
    with Logd(tmp_path_factory.mktemp("logd"), nats_url, streams, **options) as logd:
        yield logd


@pytest.fixture
def logd(running: Logd) -> Iterator[Logd]:
    """It has to be as before: alive, not larger, without an error that it did not foresee."""
    process = psutil.Process(running.daemon.pid)
    before = process.memory_info().rss
    yield running
    with running.client() as log:
        with suppress(RefusedError):  # a request may have deleted it, and made another
            log.delete_stream("logs")
        log.create_stream("logs", "t.>", max_batch_decoded_bytes=1 << 20)
        assert "logs" in log.match("t.a")
    assert running.daemon.running
    assert "Traceback" not in running.daemon.log()
    assert "request_failed" not in running.daemon.log()
    assert process.memory_info().rss - before < GROWTH_BYTES_MAX
    wait_until(
        lambda: fetch_figures(running)["requests_outstanding"] == 0, what="nothing is under way"
    )


def fetch_figures(logd: Logd) -> dict[str, Any]:
    found: dict[str, Any] = logd.daemon.status()["info"]
    return found


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20)


def exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError(size)
        data += part
    return data


def answer(connection: socket.socket) -> dict[str, Any]:
    size, length = RESPONSE_HEAD.unpack(exactly(connection, RESPONSE_HEAD.size))
    document: dict[str, Any] = json.loads(exactly(connection, size))
    exactly(connection, length)
    return document


def upload_and_leave(address: str, data: bytes, size: int) -> None:
    """What follows such a request is no request: it has a connection of its own, and ends it."""
    with connect(address) as connection:
        connection.sendall(REQUEST_HEAD.pack(size) + data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass


def test_every_fetch_request_has_an_answer_or_a_code(logd: Logd) -> None:
    codes = set[str]()
    connection = connect(logd.fetch)
    for number in range(cases(1000)):
        rng = Random(f"{SEED}-{number}")
        data = json.dumps(hostile(rng)).encode()
        if rng.random() < 0.2:
            data = mutated_bytes(rng, data)
        if rng.random() < 0.1:
            data = rng.randbytes(rng.randrange(200))
        if b'"cancel"' in data or (b'"put_quota"' in data and b'"*"' in data):
            continue  # the one has no answer, the other would make all of the rest wait
        data = data[:REQUEST_SIZE_MAX]
        size = (
            len(data) if rng.random() < 0.97 else rng.choice((0, REQUEST_SIZE_MAX + 1, 2**32 - 1))
        )
        if b'"upload"' in data:
            upload_and_leave(logd.fetch, data + rng.randbytes(100), len(data))
            continue
        connection.sendall(REQUEST_HEAD.pack(size) + data)
        found = answer(connection)
        codes.add(found.get("error", {}).get("code", ""))
        if not 0 < size <= REQUEST_SIZE_MAX:
            assert found["error"]["code"] == "BAD_REQUEST"
        if not 0 < size <= REQUEST_SIZE_MAX or b'"authenticate"' in data:  # three wrong ones end it
            connection.close()
            connection = connect(logd.fetch)
    connection.close()
    assert {"", "BAD_REQUEST", "UNKNOWN_STREAM"} <= codes, codes
    assert "INTERNAL" not in codes


def test_bytes_that_are_no_protocol_end_their_connection_only(logd: Logd) -> None:
    rng = Random(SEED)
    grpc_address = str(logd.config["grpc"]["listen"])
    for number in range(cases(60)):
        address = (logd.fetch, grpc_address, logd.daemon.admin)[number % 3]
        preface = rng.choice((b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n"))
        with suppress(OSError), connect(address) as connection:
            connection.sendall(preface + rng.randbytes(rng.choice((1, 9, 300, 9000))))
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(STALL_S * 4)
            while connection.recv(65536):
                pass
    served(logd)


def test_every_grpc_method_answers_bytes_with_a_status(logd: Logd) -> None:
    codes = dict[str, set[grpc.StatusCode]]()
    with grpc.insecure_channel(str(logd.config["grpc"]["listen"])) as channel:
        for number in range(cases(150)):
            rng = Random(f"{SEED}-{number}")
            method = METHODS[number % len(METHODS)]
            data = mutated_bytes(rng, encode(rng.choice(FIELDS)))
            if rng.random() < 0.2:
                data = rng.randbytes(rng.randrange(300))
            code = call(channel, method.name, data)
            codes.setdefault(method.name, set()).add(code)
            assert code not in _BAD, (method.name, data.hex())
    assert len(codes) == len(METHODS)
    assert len(set().union(*codes.values())) >= 2, codes


def call(channel: grpc.Channel, name: str, data: bytes) -> grpc.StatusCode:
    path, timeout_s = f"/proto.API/{name}", 0.5
    try:
        match name:
            case "Subscribe":
                streaming: Any = channel.unary_stream(path)
                list(streaming(data, timeout=timeout_s))
            case "PublishAsync":
                both: Any = channel.stream_stream(path)
                list(both(iter([data, data]), timeout=timeout_s))
            case _:
                single: Any = channel.unary_unary(path)
                single(data, timeout=timeout_s)
    except grpc.RpcError as error:
        found: grpc.StatusCode = error.code()
        return found
    return grpc.StatusCode.OK


async def test_every_message_with_a_reply_is_answered(logd: Logd, nats_url: str) -> None:
    client = await nats.connect(nats_url)
    body = encode_body(build_batch([Record("t.a", b"x", 1)]))
    batch = encode_batch(
        BatchPayload(
            schema_version=1,
            record_count=1,
            producer_id=b"p" * 16,
            previous_sequence=0,
            sequence=1,
            body=body,
        )
    )
    publish = encode_envelope(TYPE_PUBLISH, encode({2: b"v", 4: "t.a"}))
    assert batch.startswith(COOKIE)
    try:
        for number in range(cases(300)):
            rng = Random(f"{SEED}-{number}")
            payload = mutated_bytes(rng, rng.choice((batch, publish, b"plain")))
            if payload.startswith(COOKIE) and payload[7:8] == publish[7:8]:
                await client.publish("t.a", payload)  # answered in its own inbox, if it has one
                continue
            names = ("Nats-Msg-Id", "Nats-Expected-Last-Sequence", "Penstock-Key", "Nats-TTL", "X")
            headers = {rng.choice(names): rng.choice(("", "1", "x" * 300)) for _ in range(2)}
            reply = await client.request("t.a", payload, timeout=20, headers=headers)
            assert b"stream" in reply.data
    finally:
        await client.close()


@pytest.mark.parametrize("port", ["fetch", "admin", "grpc"])
async def test_slow_requests_hold_no_port_up(logd: Logd, port: str) -> None:
    """Each sends a byte and then nothing: others are served, and the slow ones are cut off."""
    address = {"fetch": logd.fetch, "admin": logd.daemon.admin}.get(port)
    address = address or str(logd.config["grpc"]["listen"])
    count = 15 if port == "fetch" else 60
    opening = {"fetch": struct.pack("<I", 50) + b"{", "admin": b"GET /metrics HTT"}.get(port, b"P")
    slow = [connect(address) for _ in range(count)]
    try:
        for connection in slow:
            connection.sendall(opening)
        async with asyncio.timeout(60):
            await asyncio.to_thread(served, logd)
        if port == "fetch":
            for connection in slow:
                connection.settimeout(20)
                assert connection.recv(1) == b"", "it is cut off"
            assert fetch_figures(logd)["readers_stalled"] >= count
    finally:
        for connection in slow:
            connection.close()


def served(logd: Logd) -> None:
    """Somebody else is served on every port."""
    with logd.client(timeout_s=10) as log:
        assert log.streams()
    assert logd.daemon.status()["health"] in ("ready", "degraded")
    with grpc.insecure_channel(str(logd.config["grpc"]["listen"])) as channel:
        grpc.channel_ready_future(channel).result(timeout=20)


def test_a_bomb_of_compression_is_refused_by_what_it_claims(logd: Logd, nats_url: str) -> None:
    """Sixteen MiB of zeros are some KiB on the wire; the stream takes one MiB decoded."""
    body = encode_body(build_batch([Record("t.a", bytes(16 << 20), 1)]), compression="zstd")
    assert len(body) < 100_000
    payload = encode_batch(
        BatchPayload(
            schema_version=1,
            record_count=1,
            producer_id=b"z" * 16,
            previous_sequence=0,
            sequence=1,
            body=body,
        )
    )

    async def publish() -> bytes:
        client = await nats.connect(nats_url)
        try:
            return bytes((await client.request("t.a", payload, timeout=20)).data)
        finally:
            await client.close()

    assert b"20001" in asyncio.run(publish())


def test_nothing_was_written_outside_of_the_data_directory(running: Logd) -> None:
    found = {path.name for path in Path(running.data_dir).iterdir()}
    own = {"activity", "activity.journal", "cluster", "endpoints.json", "format", "held", "lock"}
    assert found <= own | {"streams", "trash"}
