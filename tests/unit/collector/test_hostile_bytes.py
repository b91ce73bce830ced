"""Every decoder on bytes that are nearly right, and on such as are not: refused, never raised.

Samples are what real senders send; they are cut, doubled, spliced and changed by dice, and
hypothesis adds bytes of its own. `make fuzz` runs more of them (`PENSTOCK_FUZZ_CASES`).
"""

import gzip
import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

import msgpack
import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from penstock.collector.decode.otlp.messages import SIGNALS, Encoding, decode_request
from penstock.collector.decode.otlp.records import map_element
from penstock.collector.decode.prometheus.exposition import read_exposition
from penstock.collector.decode.senders.datadog import (
    PAYLOAD,
    json_points,
    log_lines,
    protobuf_points,
    text_lines,
)
from penstock.collector.decode.senders.elasticsearch import bulk_lines
from penstock.collector.decode.senders.gelf import ChunkBuffer
from penstock.collector.decode.senders.loki import PUSH, json_lines, protobuf_lines
from penstock.collector.decode.senders.record_maker import RecordMaker
from penstock.collector.decode.senders.remote_write import WRITE_1, WRITE_2, Written, point_lines
from penstock.collector.decode.senders.splunk_hec import HecSettings, event_lines, raw_lines
from penstock.collector.decode.senders.zipkin import span_lines
from penstock.collector.decode.shapes import Made
from penstock.collector.decode.units import decode_records
from penstock.collector.decompression import gunzip, unzstd
from penstock.collector.errors import RemoteProtocolError, UndecodableError
from penstock.collector.limits import MIB, UNIX_FRAME_BYTES_MAX
from penstock.collector.sources.files.container_lines import read_cri, read_docker
from penstock.collector.sources.forward.protocol import (
    Handshake,
    MessageReader,
    Secrets,
    decode_message,
)
from penstock.collector.sources.network.framing import (
    BinaryHead,
    CountedCutter,
    DecimalHead,
    DelimitedCutter,
    Message,
    pack_messages,
)
from penstock.collector.sources.statsd.protocol import parse_line
from penstock.collector.sources.syslog.framing import SyslogCutter
from penstock.collector.sources.unix.framing import FrameReader, decode_batch_header
from penstock.collector.spool.spool import Unit
from penstock.specs.errors import RefusedRecordError
from penstock.specs.validate.validator import check_line
from tests.support.collector import encode_batch, log_line
from tests.support.fuzzing import SEED, cases
from tests.support.hostile_doors import (
    STATE,
    admin_request,
    checkpoint,
    entry_of_quarantine,
    frame_body,
    http_reply,
    http_request,
    unit_of_spool,
)

REFUSALS = (RemoteProtocolError, UndecodableError, RefusedRecordError)
Decode = Callable[[bytes], object]
META = {"service": "from_tag", "timezone": "UTC", "peer": "p", "truncated": []}


def unit_of(kind: str) -> Decode:
    """A spooled unit taken apart, and what comes of it given to the validator."""

    def decode(data: bytes) -> None:
        decoded = decode_records(Unit("s", kind, data, 1, 99, META), {"service.name": "s"})
        for line in decoded.lines:
            check_line(line)

    return decode


def posted(read: Callable[[bytes, RecordMaker], Iterable[Made]]) -> Decode:
    """A request of another product's sender, and what comes of it given to the validator."""

    def decode(data: bytes) -> None:
        for line, verdict in read(data, RecordMaker({"service.name": "s"}, 99)):
            assert verdict in (None, check_line(line))

    return decode


def otlp(number: int, encoding: Encoding) -> Decode:
    def decode(data: bytes) -> None:
        for element in decode_request(SIGNALS[number], data, encoding):
            for made in map_element(element, {"service.name": "s"}, 99):
                if isinstance(made, bytes):
                    check_line(made)

    return decode


def stream(make: Callable[[], Any]) -> Decode:
    """A cutter that is fed in two pieces, as a socket may bring them."""

    def decode(data: bytes) -> None:
        cutter = make()
        cutter.feed(data[: len(data) // 2])
        cutter.feed(data[len(data) // 2 :])

    return decode


def greet(data: bytes) -> None:
    Handshake(Secrets("key", {"u": "p"}), "h", nonce=b"n" * 16, auth_salt=b"s" * 16).answer(data)


def frame_header(data: bytes) -> None:
    for frame in FrameReader().feed(data):
        decode_batch_header(frame)


def scraped(data: bytes) -> None:
    for kind in ("text/plain", "application/openmetrics-text"):
        read_exposition(data, kind, scrape_ns=2, first_scrape_ns=1, max_samples=1000)


def otlp_samples() -> list[bytes]:
    """One request of each signal, with something in every kind of field."""
    logs, spans, metrics = (
        ExportLogsServiceRequest(), ExportTraceServiceRequest(), ExportMetricsServiceRequest(),
    )  # fmt: skip
    resource = logs.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    record = resource.scope_logs.add().log_records.add(time_unix_nano=5, severity_number=9)
    record.body.kvlist_value.values.add(key="a").value.array_value.values.add().int_value = 1
    record.trace_id, record.span_id = b"t" * 16, b"s" * 8
    span = spans.resource_spans.add().scope_spans.add().spans.add(name="n", kind=2)
    span.trace_id, span.span_id, span.start_time_unix_nano = b"t" * 16, b"s" * 8, 5
    span.events.add(name="e", time_unix_nano=6)
    span.links.add(trace_id=b"t" * 16, span_id=b"l" * 8)
    scope = metrics.resource_metrics.add().scope_metrics.add()
    scope.metrics.add(name="m").sum.data_points.add(as_int=1, time_unix_nano=5)
    point = scope.metrics.add(name="h").histogram.data_points.add(count=2, time_unix_nano=5)
    point.bucket_counts.extend([1, 1])
    point.explicit_bounds.append(1.5)
    scope.metrics.add(name="q").summary.data_points.add(count=1, sum=2).quantile_values.add(value=1)
    return [made.SerializeToString() for made in (logs, spans, metrics)]


_ENTRY = [msgpack.ExtType(0, struct.pack(">II", 5, 6)), {"message": "hi", "level": "warn"}]
_PACKED = msgpack.packb(_ENTRY) * 3
_PIECE = {"log": "x", "partial_message": "true", "partial_id": "i", "partial_ordinal": "1"}
FORWARD = [
    msgpack.packb(["app", 5, {**_PIECE, "partial_last": "false"}])
    + msgpack.packb(["app", 5, {**_PIECE, "partial_ordinal": "2", "partial_last": "true"}]),
    msgpack.packb(["app.x", 5, {"message": "hi"}, {"chunk": "c"}]),
    msgpack.packb(["app", [_ENTRY, [[5, {"meta": 1}], {"log": b"\xff"}]], {"size": 2}]),
    msgpack.packb(["app", _PACKED, {"chunk": b"c"}]),
    msgpack.packb(["app", gzip.compress(_PACKED), {"compressed": "gzip"}]),
    msgpack.packb(["app", zstandard.compress(_PACKED), {"compressed": "zstd"}]),
]
SYSLOG = [
    b'<34>1 2026-10-11T22:14:15.003Z h su 1 ID47 [ex@3 k="v\\""] \xef\xbb\xbfmessage',
    b"<13>Oct 11 22:14:15 host cron[12]: text",
]
OTLP = otlp_samples()
OTLP_JSON = orjson.dumps(
    {"resourceLogs": [{"scopeLogs": [{"logRecords": [
        {"timeUnixNano": "5", "traceId": "ab" * 16, "body": {"kvlistValue": {"values": [
            {"key": "k", "value": {"arrayValue": {"values": [{"intValue": "3"}]}}}]}}},
    ]}]}]}
)  # fmt: skip
EXPOSED = (
    b'# TYPE a counter\na_total{l="v"} 3 5 # {trace_id="x"} 1 3\n'
    b'# TYPE h histogram\nh_bucket{le="1"} 2\n'
    b'h_bucket{le="+Inf"} 3\nh_sum 4\nh_count 3\n# TYPE s summary\ns{quantile="0.5"} NaN\n# EOF\n'
)
BATCH = encode_batch("me", 1, [log_line(1), b"no json"], resource={"service.name": "s"})
DOCKER = b'{"log":"text\\n","stream":"stdout","time":"2026-01-02T03:04:05.123456789Z"}'
CRI = b"2026-01-02T03:04:05.123456789Z stdout P text"

JOURNAL = orjson.dumps(
    {"MESSAGE": "m", "PRIORITY": "3", "__CURSOR": "c", "__REALTIME_TIMESTAMP": "5"}
)

POSTED = b"".join([
    b"POST /v1/logs HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n",
    b"content-length: 2\r\n\r\n{}",
])  # fmt: skip
REQUESTS = [
    POSTED * 2,
    POSTED.replace(b"length: 2", b"length: 5").replace(b"\r\n\r\n{}",
        b"\r\nexpect: 100-continue\r\ncontent-encoding: gzip\r\n\r\n12345"),
    POSTED.replace(b"content-length: 2", b"transfer-encoding: chunked").replace(b"{}",
        b"2;x=y\r\n{}\r\n0\r\nt: v\r\n\r\n"),
    b"CONNECT h:1 HTTP/1.1\r\nhost: h\r\n\r\nmore",
    b"HEAD /?a HTTP/1.1\r\nhost: h\r\nupgrade: a\r\nconnection: upgrade\r\n\r\n" + POSTED,
]  # fmt: skip
REPLIES = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 100 \r\n\r\nHTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"up 1"),
    b"HTTP/1.1 101 \r\nupgrade: a\r\n\r\nmore",
    b"HTTP/1.1 204 \r\n\r\n",
]
SPOOLED = [
    frame_body("s", b"one\ntwo", {"format": b"lines", "count": b"2", "kind": b"logs", **more})
    for more in [{"meta": meta} for meta in (b'{"service":"s"}', b"5", b"[]", b"{", b"null")]
    + [{"count": count} for count in (b"-1", b"x", b"9" * 30)]
]
QUARANTINED = [
    frame_body("s", b"{}", {"reason": b"r", "origin": b"spool", "subject": b"a.b", "count": b"1",
                            "again": again})
    for again in (b'{"format":"ndjson","meta":{},"received_ns":5}', b"5", b"{}", b"[",
                  b'{"format":1,"meta":[],"received_ns":"x"}')
] + [frame_body("", b"", {"replays": number}) for number in (b"7", b"x")]  # fmt: skip
EMPTY = [frame_body("s", None, {}), frame_body("s", None, {"format": b"lines", "count": b"1"})]

HEC: Final = HecSettings("from_source", {"source": "s", "host": "h"})
HEC_EVENTS: Final = [
    b'{"event":"a","time":1764268800.5,"host":"h","fields":{"k":["v"]}} {"event":{"msg":"m"}}',
    b'{"event":"metric","fields":{"metric_name:m":1e9,"metric_name":"n","_value":"5"}}',
    b'{"event":{"line":"a","source":"stdout","tag":"t","attrs":{"a":"b"}},"time":"1764268800.1"}',
]


def loki_push() -> bytes:
    request = PUSH()
    entry = request.streams.add(labels='{app="s\\x41", b="c"}').entries.add(
        line=b'{"level":"info"}'
    )
    entry.timestamp.seconds, entry.timestamp.nanos = 1764268800, 5
    entry.structured_metadata.add(name="trace_id", value="ab" * 16)
    packed: bytes = request.SerializeToString()
    return packed


LOKI_JSON: Final = orjson.dumps(
    {"streams": [{"stream": {"app": "a", "level": "warn"},
                  "values": [["1764268800000000000", "l"], ["5", "{}", {"trace_id": "ab" * 16}]]}]}
)  # fmt: skip
BULK: Final = (
    b'{"index":{"_index":"a"}}\n{"log":{"level":"info"},"service":{"name":"s"},"host.name":"h"}\n'
    b'{"delete":{}}\n{"update":{}}\n{}\n\n{"create":{"_id":5}}\n{"message":"m","a":{"b":[1]}}\n'
)


def datadog_series() -> bytes:
    payload = PAYLOAD()
    one = payload.series.add(metric="m", type=2, interval=10, tags=["a:b", "c"], unit="s")
    one.points.add(value=2.5, timestamp=1764268800)
    one.resources.add(type="host", name="h")
    packed: bytes = payload.SerializeToString()
    return packed


DATADOG_LOGS: Final = orjson.dumps(
    [{"message": "m", "ddtags": "a:b,c", "hostname": "h", "service": "s", "status": "error",
      "timestamp": 1764268800125, "a": {"b": [1]}}, {"message": '{"level":"info"}'}]
)  # fmt: skip
DATADOG_SERIES: Final = orjson.dumps(
    {"series": [{"metric": "m", "type": 1, "interval": 10, "tags": ["a:b"], "unit": "s",
                 "points": [{"timestamp": 1764268800, "value": 1e9}],
                 "resources": [{"type": "host", "name": "h"}]}]}
)  # fmt: skip
ZIPKIN: Final = orjson.dumps(
    [{"traceId": "ab" * 16, "id": "cd" * 8, "parentId": "1", "name": "n", "kind": "SERVER",
      "timestamp": 1764268800123456, "duration": 5, "debug": True, "tags": {"error": "e"},
      "localEndpoint": {"serviceName": "s", "ipv4": "1.2.3.4", "port": 80},
      "annotations": [{"timestamp": 1764268800123457, "value": "v"}]}]
)  # fmt: skip


def remote_writes() -> list[bytes]:
    """A request of each version, with something in every kind of field."""
    first, second = WRITE_1(), WRITE_2()
    series = first.timeseries.add()
    series.labels.add(name="__name__", value="a_total")
    series.labels.add(name="job", value="j")
    series.samples.add(value=1.5, timestamp=1764268800123)
    series.exemplars.add(value=2, timestamp=1764268800123).labels.add(name="k", value="v")
    first.metadata.add(type=1, metric_family_name="a", unit="s")
    second.symbols.extend(["", "__name__", "a", "s"])
    other = second.timeseries.add(labels_refs=[1, 2], created_timestamp=5)
    other.metadata.type, other.metadata.unit_ref = 3, 3
    other.exemplars.add(labels_refs=[1, 2], value=2, timestamp=1764268800123)
    for one in (series, other):
        native = one.histograms.add(count_int=3, sum=5, schema=3, timestamp=1764268800123)
        native.positive_spans.add(offset=-1, length=2)
        native.positive_deltas.extend([1, 1])
        custom = one.histograms.add(count_float=1, schema=-53, timestamp=1764268800123)
        custom.custom_values.append(1.5)
        custom.positive_spans.add(offset=1, length=1)
        custom.positive_counts.append(1)
    return [made.SerializeToString() for made in (first, second)]


def remote_write(version: int) -> Decode:
    return posted(lambda data, made: point_lines(data, version, ["job"], "d", made, Written()))


REMOTE: Final = remote_writes()

_GELF: Final = (
    b'{"version":"1.1","host":"h","short_message":"m","level":3,"timestamp":1764268800.5,"_a":[1]}'
)
CODED: Final = {
    "text": [b"plain", b'{"level":"info","msg":"m"}'],
    "json": [b'{"level":"info","msg":"m","trace_id":"' + b"ab" * 16 + b'"}'],
    "gelf": [_GELF, gzip.compress(_GELF), zlib.compress(_GELF)],
    "cef": [b"<13>Nov 27 12:00:00 h CEF:0|a\\|b|c|1|2|n|5|rt=1764268800000 cs1=a b msg=x\\=y"],
    "leef": [b"LEEF:2.0|a|b|1|2|x5E|devTime=Nov 27 2026 12:00:00^sev=5^k=v",
             b"LEEF:1.0|a|b|1|2|k=v\tk=v"],
    "logfmt": [b'level=info msg="a \\" b" k=v flag'],
}  # fmt: skip
CHUNKED: Final = [b"\x1e\x0f12345678\0\2" + _GELF, b"\x1e\x0f12345678\0\1" + _GELF]


def messages_of(codec: str) -> Decode:
    """A message of the source `socket`, and what comes of it given to the validator."""
    meta = {"codec": codec, "service": "s", "service_fields": ["app"], "peer": "10.0.0.1",
            "truncated": [], "max_message_bytes": 1 << 20}  # fmt: skip

    def decode(data: bytes) -> None:
        unit = Unit("s", "socket", pack_messages([data]), 1, 99, meta)
        decoded = decode_records(unit, {"service.name": "s"})
        assert not any("failed" in part.reason for part in decoded.undecodable)
        for line, verdict in zip(decoded.lines, decoded.verdicts, strict=True):
            assert verdict in (None, check_line(line))

    return decode


def chunks(data: bytes) -> None:
    buffer = ChunkBuffer(max_messages=2, max_bytes=1000, timeout_s=1)
    for at, now_s in (0, 0.0), (1, 0.5), (2, 3.0):
        buffer.add(data[:10] + bytes([at]) + data[11:], "p", now_s)
        assert buffer.size <= 1000
        assert len(buffer) <= 2


DECODERS: dict[str, tuple[list[bytes], Decode]] = {
    "forward unit": (FORWARD, unit_of("forward")),
    "forward message": (FORWARD, decode_message),
    "forward stream": (FORWARD, stream(MessageReader)),
    "forward handshake": ([msgpack.packb(["PING", "h", b"s", "0" * 128, "u", "0" * 128])], greet),
    "unix unit": ([BATCH[4:]], unit_of("unix")),
    "unix frames": ([BATCH], frame_header),
    "ndjson unit": ([log_line(1) + b"\n" + log_line(2)], unit_of("ndjson")),
    "lines unit": ([b'{"level":"info","msg":"m"}\nplain\x1b[0m', log_line(3)], unit_of("lines")),
    "syslog unit": ([pack_messages(SYSLOG)], unit_of("syslog")),
    "syslog messages": (SYSLOG, lambda data: unit_of("syslog")(pack_messages([data]))),
    "syslog stream": ([b"%d %b" % (len(SYSLOG[0]), SYSLOG[0]), SYSLOG[1] + b"\n"],
                      stream(lambda: SyslogCutter(1000))),
    **{f"socket {codec}": (samples, messages_of(codec)) for codec, samples in CODED.items()},
    "socket octets": ([b"3 one5 12345", b"\r\n7 {}"],
                      stream(lambda: CountedCutter(DecimalHead(), 480))),
    "socket prefixes": ([b"\0\3one\0\0\0\2ab"],
                        stream(lambda: CountedCutter(BinaryHead(2, "big"), 480))),
    "socket lines": ([b"one\r\ntwo", b"x" * 500], stream(lambda: DelimitedCutter(b"\n", 480))),
    "socket chunks": (CHUNKED, chunks),
    "journal unit": ([JOURNAL], unit_of("journal")),
    "statsd": ([b"a.b:1:2|ms|@0.5|#k:v,x|T5", b"_e{1,1}:a|b|t:error", b"_sc|n|2|m:x"],
               parse_line),
    "prometheus": ([EXPOSED], scraped),
    "docker": ([DOCKER], read_docker),
    "cri": ([CRI], read_cri),
    "gzip": ([gzip.compress(b"hello")], lambda data: gunzip(data, 1000)),
    "zstd": ([zstandard.compress(b"hello")], lambda data: unzstd(data, 1000)),
    "otlp json": ([OTLP_JSON], otlp(0, Encoding.JSON)),
    "otlp logs": (OTLP, otlp(0, Encoding.PROTOBUF)),
    "otlp traces": (OTLP, otlp(1, Encoding.PROTOBUF)),
    "otlp metrics": (OTLP, otlp(2, Encoding.PROTOBUF)),
    "splunk events": (HEC_EVENTS, posted(lambda data, made: event_lines(data, HEC, made))),
    "splunk lines": ([b'a\n{"level":1}\r\n'],
                     posted(lambda data, made: raw_lines(data, HEC, made, str(data[:9])))),
    "loki json": ([LOKI_JSON],
                  posted(lambda data, made: json_lines(data, ["app"], "d", {"t": "u"}, made))),
    "loki protobuf": ([loki_push()],
                      posted(lambda data, made: protobuf_lines(data, ["app"], "d", {}, made))),
    "elasticsearch": ([BULK],
        posted(lambda data, made: bulk_lines(data, "", "from_index", made, [], max_items=99))),
    "datadog logs": ([DATADOG_LOGS], posted(lambda data, made: log_lines(data, {}, "d", made))),
    "datadog lines": ([b"a\r\n{}"],
                      posted(lambda data, made: text_lines(data, {"service": "s"}, "d", made))),
    "datadog series": ([DATADOG_SERIES], posted(lambda data, made: json_points(data, "d", made))),
    "datadog protobuf": ([datadog_series()],
                         posted(lambda data, made: protobuf_points(data, "d", made))),
    "zipkin": ([ZIPKIN], posted(lambda data, made: span_lines(data, "d", made))),
    "remote write 1": (REMOTE, remote_write(1)),
    "remote write 2": (REMOTE, remote_write(2)),
    "http request": (REQUESTS, http_request),
    "http reply": (REPLIES, http_reply),
    "spool": ([*SPOOLED, *EMPTY], unit_of_spool),
    "quarantine": ([*QUARANTINED, *EMPTY], entry_of_quarantine),
    "checkpoint": ([json.dumps(STATE).encode()], checkpoint),
    "admin socket": ([b'{"do":"tap","point":"in"}', b'{"do":"status"}', b"[" * 60_000],
                     admin_request),
}  # fmt: skip
_BYTES = (b"\x00", b"\xff", b"\n", b" ", b'"', b"{" * 300, b"[" * 2000, b"\x91" * 2000,
          b"\x7f\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"-1", b"1e999", b"9" * 40, b"9" * 5000,
           b"\xed\xa0\x80",
          "\u202e\u0000é".encode())  # fmt: skip


def mutations(rng: Random, samples: list[bytes]) -> bytes:
    """A sample with a few changes."""
    data = bytearray(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 30)))
        match rng.randrange(6):
            case 0:
                data[at:end] = rng.choice(_BYTES)
            case 1:
                data[at:at] = rng.choice(_BYTES)
            case 2:
                del data[at:end]
            case 3 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 4:
                other = rng.choice(samples)
                data[at:] = other[rng.randrange(len(other)) :]
            case _:
                data += data[at:end] * rng.choice((1, 2, 50))
        del data[200_000:]
    return bytes(data)


def try_decoder(decode: Decode, data: bytes) -> None:
    """Refusals are answers; anything else is not."""
    try:
        decode(data)
    except REFUSALS:
        pass
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} of {data[:300]!r}") from error


@pytest.mark.parametrize("name", DECODERS)
def test_samples_that_were_changed_are_refused_and_never_raise(name: str) -> None:
    samples, decode = DECODERS[name]
    for sample in samples:
        try_decoder(decode, sample)
    rng = Random(f"{SEED} {name}")
    for _ in range(cases(150)):
        try_decoder(decode, mutations(rng, samples))


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=25, deadline=None)
@given(data=st.binary(max_size=400))
def test_any_bytes_are_refused_and_never_raise(name: str, data: bytes) -> None:
    try_decoder(DECODERS[name][1], data)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """What is done within takes no more memory than this at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size, f"{peak} bytes"


def frames_of_nothing(count: int) -> bytes:
    return b"".join([gzip.compress(b"")] * count)


@pytest.mark.parametrize(
    ("inflate", "bomb"),
    [
        (gunzip, lambda: gzip.compress(bytes(300 * MIB), 9)),
        (unzstd, lambda: zstandard.compress(bytes(300 * MIB))),
        (gunzip, lambda: gzip.compress(bytes(30 * MIB), 9) * 10),
        (gunzip, lambda: frames_of_nothing(20_000) + gzip.compress(bytes(3 * MIB))),
    ],
    ids=["gzip", "zstd", "members", "empty members"],
)
def test_a_bomb_takes_no_more_than_its_bound(
    inflate: Callable[[bytes, int], bytes], bomb: Callable[[], bytes]
) -> None:
    packed = bomb()
    with at_most(12 * MIB), pytest.raises(UndecodableError, match="after decompression"):
        inflate(packed, 2 * MIB)  # and one piece more, which may become 4 MiB, twice while it grows


@pytest.mark.parametrize(
    "claim",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of 4 G elements
        b"\xdf\xff\xff\xff\xff",  # a map
        b"\xc6\xff\xff\xff\xff",  # 4 GiB of bytes
        b"\x93\xa3app\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,  # nested
    ],
)
def test_a_claim_of_many_elements_takes_no_memory(claim: bytes) -> None:
    with at_most(8 * MIB):
        for decode in (stream(MessageReader), unit_of("forward"), greet):
            try_decoder(decode, claim)


def test_a_frame_above_the_limit_is_refused_by_its_length_alone() -> None:
    with at_most(MIB), pytest.raises(RemoteProtocolError):
        FrameReader().feed(struct.pack(">I", UNIX_FRAME_BYTES_MAX + 1))


def test_nested_json_is_refused_or_kept_as_it_is() -> None:
    deep = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    for name in ("ndjson unit", "lines unit", "otlp json", "journal unit", "docker"):
        try_decoder(DECODERS[name][1], deep)
    header = json.dumps({"batch": 1}).encode()[:-1] + b',"resource":' + deep + b"}"
    try_decoder(DECODERS["unix unit"][1], header)


def test_padding_without_end_is_not_kept() -> None:
    cutter = CountedCutter(DecimalHead(), 480)
    for _ in range(100):
        assert cutter.feed(b"\r\n\0" * 1000) == []
        assert cutter.waiting_bytes == 0
    assert cutter.feed(b"3 one\n3 t") == [Message(b"one")]
    assert cutter.feed(b"wo\n") == [Message(b"two")]
    assert cutter.flush() is None
