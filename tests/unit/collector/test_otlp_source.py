"""The OTLP source on real sockets, with a spool that nobody empties."""

import asyncio
import contextlib
import gzip
import json
import re
import socket
import ssl
import struct
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc.aio
import pyarrow as pa
import pytest
import zstandard
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from structlog.testing import capture_logs

from penstock.collector.decode.otlp.messages import DECODER
from penstock.collector.limits import OTLP_RETRY_AFTER_S, SpoolWriterLimits
from penstock.collector.sources.otlp.grpc import OtlpGrpc
from penstock.collector.sources.otlp.response import Answer, Code
from penstock.collector.sources.otlp.settings import OtlpSettings
from penstock.collector.sources.otlp.source import OtlpSource
from penstock.service import ConfigError, UnavailableError
from tests.support import receiving
from tests.support.certificates import Authority
from tests.support.receiving import listening
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
JSON = "application/json"
PROTOBUF = "application/x-protobuf"
SETTINGS = 4
"""Type of the frame that a server of HTTP/2 sends first (RFC 9113, 3.4)."""

WITHOUT_DECODER = f"""
import asyncio, sys
from pathlib import Path
from structlog.testing import capture_logs
from tests.unit.collector.test_otlp_source import *

class Full:  # as where no descriptor is left, once
    def find_spec(self, name, path, target=None):
        if name == "{DECODER}":
            sys.meta_path.remove(self)
            raise OSError(24, "Too many open files")

async def main():
    assert "{DECODER}" not in sys.modules
    sys.meta_path.insert(0, Full())
    async with spooling(Path(sys.argv[1]), "otlp") as spool_writer:
        section = OtlpSettings(type="otlp", grpc="127.0.0.1:0", http=None)
        source = OtlpSource(section, {{}}, spool_writer=spool_writer)
        await source.start()
        body = request().SerializeToString()
        with capture_logs() as logs:
            try:
                await export(source, body)
            except grpc.aio.AioRpcError as error:
                code = error.code().name
        # gRPC shares a failed connection between channels, and waits before it connects again.
        answer = await export(source, body, wait_for_ready=True)
        print(logs[0]["event"], code, answer, bodies(spool_writer))
        await source.stop()

asyncio.run(main())
"""


def request(count: int = 1, *, body: str = "hi", severity: int = 9) -> ExportLogsServiceRequest:
    made = ExportLogsServiceRequest()
    scope = made.resource_logs.add().scope_logs.add()
    for _ in range(count):
        scope.log_records.add(time_unix_nano=5, severity_number=severity).body.string_value = body
    return made


def bad_and_good() -> bytes:
    good = {"timeUnixNano": "5", "body": {"stringValue": "x"}}
    bad, worse = {"timeUnixNano": "-5"}, {"timeUnixNano": "soon"}
    return json.dumps(
        {"resourceLogs": [{"scopeLogs": [{"logRecords": [bad, good, worse]}]}]}
    ).encode()


@pytest.fixture
async def spool_writer(tmp_path: Path) -> AsyncIterator[SpoolingIntake]:
    async with spooling(tmp_path, "otlp") as made:
        yield made


@pytest.fixture
async def source(spool_writer: SpoolingIntake) -> AsyncIterator[OtlpSource]:
    section = OtlpSettings(
        type="otlp", grpc="127.0.0.1:0", http="127.0.0.1:0", max_message_bytes=100_000
    )
    made = OtlpSource(section, {"host.name": "h"}, spool_writer=spool_writer)
    await made.start()
    yield made
    await made.stop()


async def post(
    source: OtlpSource, body: bytes, kind: str = PROTOBUF, path: str = "/v1/logs", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own."""
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(body)}", "", ""]
    return await exchange(source, "\r\n".join(lines).encode() + body)


async def exchange(source: OtlpSource, data: bytes) -> tuple[int, dict[str, str], bytes]:
    host, port = source.endpoints["http"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        answer = await reader.readexactly(int(fields.get("content-length", 0)))
        _, status, phrase = head[0].split(" ", 2)
        assert phrase == HTTPStatus(int(status)).phrase
        return int(status), fields, answer
    finally:
        writer.close()


async def export(source: OtlpSource, body: bytes, **options: Any) -> bytes:
    async with grpc.aio.insecure_channel(source.endpoints["grpc"]) as channel:
        method: Any = channel.unary_unary(EXPORT)
        answer: bytes = await method(body, **options)
        return answer


def bodies(spool_writer: SpoolingIntake) -> list[str]:
    return [json.loads(line)["body"] for line in spool_writer.lines()]


@pytest.mark.parametrize("coding", ["identity", "gzip", "zstd", "deflate", "zlib", "snappy", "lz4"])
async def test_an_http_request_is_durable_when_it_is_answered(
    source: OtlpSource, spool_writer: SpoolingIntake, coding: str
) -> None:
    squeeze: dict[str, Any] = {
        "gzip": gzip.compress, "zstd": zstandard.compress, "deflate": zlib.compress,
        "zlib": zlib.compress,
        **{name: partial(pa.compress, codec=name, asbytes=True) for name in ("snappy", "lz4")},
    }  # fmt: skip
    body = squeeze.get(coding, bytes)(request(3).SerializeToString())
    status, headers, answer = await post(source, body, content_encoding=coding)
    assert (status, headers["content-type"], answer) == (200, PROTOBUF, b"")
    assert bodies(spool_writer) == ["hi"] * 3
    assert (spool_writer.account.received, spool_writer.account.difference) == (3, 0)


async def test_a_grpc_request_is_durable_when_it_is_answered(
    source: OtlpSource, spool_writer: SpoolingIntake
) -> None:
    body = request(2).SerializeToString()
    assert await export(source, body) == b""
    assert await export(source, body, compression=grpc.Compression.Gzip) == b""
    assert await export(source, body, compression=grpc.Compression.Deflate) == b""
    assert bodies(spool_writer) == ["hi"] * 6


async def test_connections_that_come_first_at_once_share_one_grpc_server(
    source: OtlpSource,
) -> None:
    endpoint = source.endpoints["grpc"]
    streams = await asyncio.gather(*(receiving.connect(endpoint) for _ in range(5)))
    for reader, _ in streams:
        assert (await reader.readexactly(9))[3] == SETTINGS
    for _, writer in streams:
        writer.close()
    assert await export(source, request().SerializeToString()) == b""


async def taken(*_: object) -> Answer:
    return Answer(Code.OK, b"")


def test_where_the_decoder_cannot_be_imported_the_next_connection_tries_again(
    tmp_path: Path,
) -> None:
    """An answer would be for good: the sender would give the records up."""
    command = [sys.executable, "-c", WITHOUT_DECODER, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "grpc_unavailable UNAVAILABLE b'' ['hi']"


async def test_where_grpc_cannot_be_served_the_next_connection_tries_again(
    spool_writer: SpoolingIntake,
) -> None:
    server = OtlpGrpc(OtlpSettings(type="otlp"), taken, spool_writer)
    endpoint = await server.start("127.0.0.1:0", None)
    with socket.socket(socket.AF_UNIX) as other, capture_logs() as logs:
        other.bind(f"\0{server.socket}")
        reader, writer = await receiving.connect(endpoint)
        assert await reader.read() == b""
        writer.close()
    assert [(it["event"], it["log_level"], it["source"]) for it in logs] == [
        ("grpc_unavailable", "error", "otlp")
    ]
    reader, writer = await receiving.connect(endpoint)
    assert (await reader.readexactly(9))[3] == SETTINGS
    writer.close()
    await server.stop()


async def test_a_server_that_stops_as_the_first_connection_comes_ends_that(
    spool_writer: SpoolingIntake,
) -> None:
    server = OtlpGrpc(OtlpSettings(type="otlp"), taken, spool_writer)
    reader, writer = await receiving.connect(await server.start("127.0.0.1:0", None))
    await server.stop()
    with contextlib.suppress(ConnectionError):
        await reader.read()  # up to its end
    with socket.socket(socket.AF_UNIX) as other, pytest.raises(ConnectionRefusedError):
        other.connect(f"\0{server.socket}")
    writer.close()


async def test_a_server_with_a_certificate_ends_where_its_address_is_taken(
    tmp_path: Path, spool_writer: SpoolingIntake
) -> None:
    own = Authority(tmp_path / "ca").sign("server", "DNS:localhost")
    pair = own.key.read_bytes(), own.cert.read_bytes()
    server = OtlpGrpc(OtlpSettings(type="otlp"), taken, spool_writer)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="cannot listen"):
            await server.start(address, grpc.ssl_server_credentials([pair]))
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(f"\0{server.socket}")


@pytest.mark.parametrize("coding", ["zstd", "snappy", "lz4"])
async def test_grpcs_own_library_refuses_compressions_that_it_does_not_know(
    source: OtlpSource, spool_writer: SpoolingIntake, coding: str
) -> None:
    """It does so before it is asked; no option makes it `UNIMPLEMENTED`, as gRPC's spec has it."""
    status, message = await call_with(source.endpoints["grpc"], coding, b"anything")
    assert status == grpc.StatusCode.INTERNAL.value[0]
    assert "grpc-encoding" in message
    assert (spool_writer.account.received, +spool_writer.account.notes) == (0, {})
    assert await export(source, request().SerializeToString()) == b""  # the others are well


async def call_with(endpoint: str, coding: str, message: bytes) -> tuple[int, str]:
    """Status and message of a call whose message has an encoding; grpcio itself sends few."""
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    fields = {
        ":method": "POST", ":scheme": "http", ":path": EXPORT, ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers", "grpc-encoding": coding,
    }  # fmt: skip
    headers = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    body = struct.pack(">BI", 1, len(message)) + message
    writer.write(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0) + _frame(1, 4, 1, headers)
        + _frame(0, 1, 1, body)
    )  # fmt: skip
    kind, flags, answer = 0, 0, b""
    async with asyncio.timeout(10):
        while (kind, flags & 1) != (1, 1):  # headers that end the stream
            head = await reader.readexactly(9)
            kind, flags, answer = (
                head[3],
                head[4],
                await reader.readexactly(int.from_bytes(head[:3])),
            )
    writer.close()
    found = {
        name.decode(): value.decode()
        for name, value in re.findall(rb"(grpc-(?:status|message))[\0-\x7f]([ -~]+)", answer)
    }
    return int(found["grpc-status"]), found["grpc-message"]


def _text(text: str) -> bytes:
    """A string of HPACK that is not in its tables, of less than 127 bytes."""
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + payload


async def test_the_sender_hears_how_many_records_are_refused_and_why(
    source: OtlpSource, spool_writer: SpoolingIntake
) -> None:
    status, headers, answer = await post(source, bad_and_good(), JSON)
    told = json.loads(answer)["partialSuccess"]
    assert (status, headers["content-type"], told["rejectedLogRecords"]) == (200, JSON, "2")
    assert "time_unix_nano" in told["errorMessage"]
    (decoded,) = spool_writer.decoded()
    assert decoded.indexes == [0, 1]
    assert [(part.index, part.reason) for part in decoded.undecodable] == [(2, "not_otlp")]


async def test_a_rule_between_fields_says_itself_what_is_wrong(source: OtlpSource) -> None:
    point = {"timeUnixNano": "5", "count": "2", "bucketCounts": ["1"], "explicitBounds": []}
    data = {"aggregationTemporality": 2, "dataPoints": [point]}
    metric = {"name": "a", "description": "A.", "histogram": data}
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()
    _, _, answer = await post(source, body, JSON, "/v1/metrics")
    told = json.loads(answer)["partialSuccess"]["errorMessage"]
    assert told.endswith("in quarantine, the first: bucket_counts must add up to count")


async def test_what_a_scope_says_is_kept_and_what_has_no_place_is_counted(
    source: OtlpSource, spool_writer: SpoolingIntake
) -> None:
    made = request()
    scope = made.resource_logs[0].scope_logs[0]
    made.resource_logs[0].resource.attributes.add(key="service.name").value.string_value = "shop"
    made.resource_logs[0].schema_url = "https://opentelemetry.io/schemas/1.30.0"
    scope.scope.name, scope.scope.version = "lib", "0.48b0"
    scope.scope.attributes.add(key="team").value.string_value = "till"
    scope.schema_url = "https://opentelemetry.io/schemas/1.31.0"
    assert (await post(source, made.SerializeToString(), path="/v1/logs/"))[0] == 200
    (line,) = map(json.loads, spool_writer.lines())
    assert (line["scope"], line["attributes"]) == (
        "lib",
        {
            "otel.scope.version": "0.48b0", "otel.scope.team": "till",
            "otel.scope.schema_url": "https://opentelemetry.io/schemas/1.31.0",
        },
    )  # fmt: skip
    url = line["resource"]["otel.resource.schema_url"]
    assert url == "https://opentelemetry.io/schemas/1.30.0"
    gauge = {"dataPoints": [{"timeUnixNano": "5", "asInt": "1"}]}
    metric = {"name": "a", "description": "A.", "metadata": [{"key": "k"}], "gauge": gauge}
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()
    assert (await post(source, body, JSON, "/v1/metrics"))[0] == 200
    notes = spool_writer.account.notes
    assert (notes["metric_descriptions_dropped"], notes["metric_metadata_dropped"]) == (1, 1)


async def test_levels_that_nobody_knows_are_kept_and_counted_once_the_records_are(
    source: OtlpSource, spool_writer: SpoolingIntake
) -> None:
    levels = [(99, ""), (0, "loud"), (0, "warn"), (0, ""), (17, "loud"), (-3, "x" * 40)]
    made = request(len(levels))
    for record, (number, text) in zip(
        made.resource_logs[0].scope_logs[0].log_records, levels, strict=True
    ):
        record.severity_number, record.severity_text = number, text  # type: ignore[assignment]
    plain = made.SerializeToString()
    made.resource_logs[0].schema_url = "https://x"  # read the long way
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [
        {"severityNumber": number, "severityText": text} for number, text in levels
    ]}]}]}).encode()  # fmt: skip
    for times, (data, kind) in enumerate(
        ((plain, PROTOBUF), (made.SerializeToString(), PROTOBUF), (body, JSON)), 1
    ):
        assert (await post(source, data, kind))[0] == 200
        assert spool_writer.account.notes["levels_unknown"] == 3 * times
    found = [
        (it["severity_number"], it["severity_text"]) for it in map(json.loads, spool_writer.lines())
    ]
    expected = [(9, "INFO"), (9, "loud"), (13, "warn"), (9, "INFO"), (17, "loud"), (9, "x" * 32)]
    assert found == expected * 3


async def test_pages_of_allowed_origins_may_send(spool_writer: SpoolingIntake) -> None:
    cors = {"allowed_origins": ["https://*.example.com"], "allowed_headers": ["X-Tenant"]}
    section = OtlpSettings.model_validate(
        {"type": "otlp", "grpc": None, "http": "127.0.0.1:0", "cors": cors}
    )
    source = OtlpSource(section, {}, spool_writer=spool_writer)
    await source.start()
    try:
        ask = (
            b"OPTIONS /v1/logs HTTP/1.1\r\nhost: x\r\norigin: %b\r\n"
            b"access-control-request-method: POST\r\n"
            b"access-control-request-headers: content-type, x-tenant, x-other\r\n\r\n"
        )
        status, told, _ = await exchange(source, ask % b"https://shop.example.com")
        assert (status, told["access-control-allow-origin"]) == (204, "https://shop.example.com")
        assert told["access-control-allow-headers"] == "content-type, x-tenant"
        assert told["access-control-allow-methods"] == "post"
        status, told, _ = await exchange(source, ask % b"https://example.com.evil")
        assert (status, "access-control-allow-origin" in told) == (405, False)
        body = request().SerializeToString()
        status, told, _ = await post(source, body, origin="https://a.example.com")
        assert (status, told["access-control-allow-origin"]) == (200, "https://a.example.com")
        assert told["vary"] == "origin"
    finally:
        await source.stop()


async def test_an_empty_request_is_a_success(
    source: OtlpSource, spool_writer: SpoolingIntake
) -> None:
    assert await export(source, b"") == b""
    assert (await post(source, b"{}", JSON))[::2] == (200, b"{}")
    assert spool_writer.units() == []


@pytest.mark.parametrize(
    ("body", "kind", "path", "headers", "status"),
    [
        (b"\xff", PROTOBUF, "/v1/logs", {}, 400),
        (b"{", JSON, "/v1/logs", {}, 400),
        (b"", PROTOBUF, "/v1/profiles", {}, 404),
        (b"", "text/plain", "/v1/logs", {}, 415),
        (b"", PROTOBUF, "/v1/logs", {"content_encoding": "br"}, 415),
        (b"x", PROTOBUF, "/v1/logs", {"content_encoding": "gzip"}, 400),
        (
            gzip.compress(bytes(200_000), mtime=0),
            PROTOBUF,
            "/v1/logs",
            {"content_encoding": "gzip"},
            413,
        ),
        (bytes(200_000), PROTOBUF, "/v1/logs", {}, 413),
    ],
)
async def test_what_is_no_request_is_refused_for_good(
    source: OtlpSource, body: bytes, kind: str, path: str, headers: dict[str, str], status: int
) -> None:
    found, answered, answer = await post(source, body, kind, path, **headers)
    assert found == status
    assert "retry-after" not in answered
    if answered["content-type"] == PROTOBUF:
        told = status_pb2.Status()
        told.ParseFromString(answer)
        assert told.message
    else:
        assert json.loads(answer)["message"]


async def test_another_method_is_refused(source: OtlpSource) -> None:
    status, headers, _ = await exchange(source, b"GET /v1/logs HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (status, headers["allow"]) == (405, "post")


async def test_what_is_not_http_ends_the_connection_and_is_counted(
    source: OtlpSource, spool_writer: SpoolingIntake
) -> None:
    status, _, _ = await exchange(source, b"\x16\x03\x01 hello\r\n\r\n")
    assert status == 400
    assert spool_writer.account.notes["protocol_errors"] == 1


async def test_a_connection_is_kept_and_continue_is_said(source: OtlpSource) -> None:
    host, port = source.endpoints["http"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\ncontent-length: 2\r\n"
    for _ in range(2):
        writer.write(f"{head}expect: 100-continue\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(b"{}")
        assert (await reader.readuntil(b"\r\n\r\n{}")).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (bytes(200_000), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_grpc_says_what_never_can_be_taken(
    source: OtlpSource, body: bytes, code: grpc.StatusCode
) -> None:
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await export(source, body, compression=compression)
        assert caught.value.code() is code
        assert b"RetryInfo" not in dict(caught.value.trailing_metadata() or ()).get(
            "grpc-status-details-bin", b""
        )


async def test_a_full_spool_means_come_again_later(
    source: OtlpSource, spool_writer: SpoolingIntake
) -> None:
    body = request(90, body="x" * 1000, severity=99).SerializeToString()
    answers = [await post(source, body) for _ in range(12)]
    codes = [answer[0] for answer in answers]
    assert set(codes) == {200, 503}
    assert codes == sorted(codes)
    assert answers[-1][1]["retry-after"] == str(OTLP_RETRY_AFTER_S)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await export(source, body)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    details = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
    status_message, retry = status_pb2.Status(), error_details_pb2.RetryInfo()
    status_message.ParseFromString(details)
    assert status_message.details[0].Unpack(retry)
    assert retry.retry_delay.seconds == OTLP_RETRY_AFTER_S
    assert spool_writer.account.received == 90 * codes.count(200)
    assert spool_writer.account.notes["levels_unknown"] == 90 * codes.count(
        200
    )  # the others come again
    assert spool_writer.account.notes["refused_spool_full"] == 90 * (codes.count(503) + 1)


async def test_more_records_than_allowed_are_refused_for_good(tmp_path: Path) -> None:
    limits = SpoolWriterLimits(max_request_records=10)
    async with listening(tmp_path, receiving.otlp(), limits=limits) as (source, spool_writer):
        assert (await post(source, request(11).SerializeToString()))[0] == 413
        assert spool_writer.units() == []
        assert (await post(source, request(10).SerializeToString()))[0] == 200


async def test_both_ways_speak_tls_and_ask_for_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    own = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    client = authority.sign("client", "DNS:client")
    section = OtlpSettings.model_validate(
        {
            "type": "otlp", "grpc": "127.0.0.1:0", "http": "127.0.0.1:0",
            "tls": {"cert_file": own.cert, "key_file": own.key, "ca_file": authority.cert},
        }
    )  # fmt: skip
    async with spooling(tmp_path, "otlp") as spool_writer:
        source = OtlpSource(section, {}, spool_writer=spool_writer)
        await source.start()
        root, key, chain = (path.read_bytes() for path in (authority.cert, client.key, client.cert))
        body = request().SerializeToString()
        for proof, taken in (((None, None), False), ((key, chain), True)):
            credentials = grpc.ssl_channel_credentials(root, *proof)
            async with grpc.aio.secure_channel(source.endpoints["grpc"], credentials) as channel:
                method: Any = channel.unary_unary(EXPORT)
                if taken:
                    assert await method(body) == b""
                else:
                    with pytest.raises(grpc.aio.AioRpcError):
                        await method(body, timeout=5)
        assert bodies(spool_writer) == ["hi"]
        context = ssl.create_default_context(cafile=authority.cert)
        context.load_cert_chain(client.cert, client.key)
        host, port = source.endpoints["http"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        head = f"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\n"
        writer.write(f"{head}content-length: 2\r\n\r\n{{}}".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        await source.stop()


async def test_files_that_are_no_certificates_are_refused_at_the_start(tmp_path: Path) -> None:
    files = {"cert_file": tmp_path / "none.pem", "key_file": tmp_path / "none.key"}
    section = OtlpSettings.model_validate({"type": "otlp", "tls": files})
    async with spooling(tmp_path, "otlp") as spool_writer:
        with pytest.raises(ConfigError, match=r"none\.pem"):
            await OtlpSource(section, {}, spool_writer=spool_writer).start()


async def test_a_grpc_server_that_does_not_stop_keeps_no_port(spool_writer: SpoolingIntake) -> None:
    """It waits for a request whose records are not durable yet."""
    section = OtlpSettings(type="otlp", grpc="127.0.0.1:0", http="127.0.0.1:0")
    source = OtlpSource(section, {}, spool_writer=spool_writer)
    await source.start()
    async with (
        spool_writer.journal.held(),
        grpc.aio.insecure_channel(source.endpoints["grpc"]) as channel,
    ):
        method: Any = channel.unary_unary(EXPORT)
        asking = asyncio.ensure_future(method(request().SerializeToString()))
        await wait_until_async(lambda: spool_writer.spool.undurable)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await source.stop()
        for endpoint in source.endpoints.values():
            host, port = endpoint.split(":")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(host, int(port))
        await asyncio.gather(asking, return_exceptions=True)
    await source.stop()
