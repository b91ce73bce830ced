"""What `preview` shows is what the sink then sends: each against what came over the wire."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.router.sinks import make_sink
from penstock.router.sinks.otlp.sink import OtlpSink
from penstock.router.sinks.registry import sink_kind
from tests.support.fake_bigquery import FakeBigQuery
from tests.support.fake_otlp import FakeOtlp, serve_grpc
from tests.support.fault_door import Answered, Asked, FaultDoor
from tests.support.kafka_case import messages as kafka_messages
from tests.support.real_kafka import kafka_case
from tests.support.sink_batches import batch, context, gauge_record, log_record, span_record
from tests.support.sink_cases import CASES

pytestmark = pytest.mark.live

OF_HTTP = [
    "datadog", "elasticsearch", "http", "loki", "otlp", "prometheus", "splunk_hec",
]  # fmt: skip
NOT_READ = {"http", "prometheus"}
"""What stands behind the door there takes anything."""

OF_THE_CONNECTION = {"host", "accept-encoding", "content-length"}
SECRET = "hush ☃".encode().decode("latin-1")


@pytest.mark.parametrize("compression", ["gzip", "none"])
@pytest.mark.parametrize("name", OF_HTTP)
def test_an_http_request_is_shown_as_it_is_sent(
    name: str, compression: str, tmp_path: Path
) -> None:
    case = CASES[name]
    if name in NOT_READ:
        case = replace(case, backend=FakeOtlp)
    door = FaultDoor(case.backend())
    door.rule = lambda asked: Answered(204) if name in NOT_READ else None
    try:
        keys: dict[str, Any] = {"headers": {"X-Team": SECRET}, "batch": {"max_records": 2}}
        keys |= {} if name == "prometheus" else {"compression": compression}
        sink, _ = case.sink(door, tmp_path, **keys)
        rows = batch([case.record(number) for number in range(5)])
        shown = sink.preview(rows)
        assert door.asked == []
        sink.write(rows)
        assert [_as_shown(asked, door.url) for asked in door.asked] == [
            (it.target, it.body, _without_secrets(dict(it.headers))) for it in shown
        ]
        assert [it.records for it in shown] == [2, 2, 1]
    finally:
        door.close()


def _as_shown(asked: Asked, url: str) -> tuple[str, str, dict[str, str]]:
    body = asked.body
    if asked.headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    headers = {it: text for it, text in asked.headers.items() if it not in OF_THE_CONNECTION}
    return f"{asked.method} {url}{asked.path}", body.decode(errors="replace"), _hidden(headers)


def _hidden(headers: dict[str, str]) -> dict[str, str]:
    secrets = {"authorization", "x-team", "dd-api-key"}
    return {name: "***" if name in secrets else text for name, text in headers.items()}


def _without_secrets(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): text for name, text in headers.items()}


class Recorded(FakeOtlp):
    """Keeps each request's bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []

    @override
    def export(self, signal: str, body: bytes) -> bytes:
        self.calls.append((signal, body.decode(errors="replace")))
        return super().export(signal, body)


def test_a_grpc_request_is_shown_as_it_is_sent(tmp_path: Path) -> None:
    fake = Recorded()
    server, port = serve_grpc(fake)
    settings = {
        "type": "otlp", "protocol": "grpc", "url": f"http://127.0.0.1:{port}",
        "headers": {"X-Team": "hush"},
    }  # fmt: skip
    sink = make_sink(OtlpSink.model_validate(settings), context(tmp_path))
    sink.open()
    try:
        rows = batch([log_record(0), span_record(1), gauge_record(2), log_record(3)])
        shown = sink.preview(rows)
        assert fake.calls == []
        sink.write(rows)
        services = {"logs": "logs.v1.Logs", "traces": "trace.v1.Trace"}
        services["metrics"] = "metrics.v1.Metrics"
        assert [
            (
                f"gRPC 127.0.0.1:{port}/opentelemetry.proto.collector.{services[it]}Service/Export",
                body,
            )
            for it, body in fake.calls
        ] == [(it.target, it.body) for it in shown]
        assert {it.headers for it in shown} == {(("x-team", "***"),)}
    finally:
        sink.close()
        server.stop(None).wait()


def test_messages_of_kafka_are_shown_as_they_are_sent(tmp_path: Path) -> None:
    case = kafka_case(tmp_path)
    try:
        sink, _ = case.sink(key="record_position", batch={"max_records": 2})
        rows = batch([log_record(number) for number in range(3)])
        shown = sink.preview(rows)
        assert list(case.messages()) == []
        sink.write(rows)
        found = kafka_messages(f"127.0.0.1:{case.door.port}", case.run)
        assert [line for it in shown for line in it.body.splitlines()] == [
            _kafka_line(message) for message in found
        ]
        assert [it.records for it in shown] == [2, 1]
    finally:
        case.close()


def _kafka_line(message: Any) -> str:
    headers = {name: text.decode() for name, text in message.headers()}
    about = json.dumps(headers, separators=(",", ":"), ensure_ascii=False)
    return f"{message.key().decode()} {about} {message.value().decode()}"


def test_rows_of_bigquery_are_shown_as_they_are_sent(tmp_path: Path) -> None:
    fake = FakeBigQuery()
    settings = {"type": "bigquery", "batch": {"max_records": 2}, **fake.keys()}
    sink = make_sink(sink_kind("bigquery").config.model_validate(settings), context(tmp_path))
    sink.open()
    try:
        rows = batch([log_record(0), span_record(1), log_record(2)])
        shown = sink.preview(rows)
        assert fake.rows() == []
        sink.write(rows)
        lines = [json.loads(line) for it in shown for line in it.body.splitlines()]
        assert lines == fake.rows()
        assert [it.records for it in shown] == [2, 1]
    finally:
        sink.close()
        fake.close()
