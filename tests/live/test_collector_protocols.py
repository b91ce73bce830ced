"""Sources that speak a network protocol, each with a real client of it, to the log."""

import json
import logging
import logging.handlers
import math
import shutil
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from grpc import Compression as GrpcCompression
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcMetrics,
)
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpMetrics,
)
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from tests.support.certificates import Authority
from tests.support.collecting import collecting, endpoint, records
from tests.support.collector import bodies
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


def break_handshakes(address: str, count: int) -> None:
    """Begin TLS with a gRPC server, without the certificate it asks for or with no TLS at all."""
    host, port = address.split(":")
    stranger = ssl.create_default_context()
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    for number in range(count):
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=60) as plain:
            connection = stranger.wrap_socket(plain) if number % 2 else plain
            with connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                connection.settimeout(0.05)
                connection.recv(100)


def test_handshakes_that_fail_together_end_nothing_and_a_new_certificate_is_shown(
    tmp_path: Path, nats_url: str
) -> None:
    """gRPC ends the process when its keys are replaced while others begin TLS."""
    authority = Authority(tmp_path / "ca")
    own, next_own = (authority.sign(name, "IP:127.0.0.1") for name in ("first", "next"))
    files = {"cert_file": own.cert, "key_file": own.key, "ca_file": authority.cert}
    source = {"type": "otlp", "grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    tls = {name: str(path) for name, path in files.items()}
    with collecting(tmp_path, nats_url, source | {"tls": tls}) as (_, collector):
        address = endpoint(collector, "otlp.grpc")
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda _: break_handshakes(address, 200), range(16)))
        assert collector.daemon.running, collector.daemon.log()[-3000:]
        host, port = address.split(":")

        def shown() -> str:
            return ssl.get_server_certificate((host, int(port)), timeout=60)

        assert shown().strip() in own.cert.read_text()
        for old, new in ((own.key, next_own.key), (own.cert, next_own.cert)):
            old.write_bytes(new.read_bytes())
        wait_until(lambda: shown().strip() in next_own.cert.read_text())


def emit_one_of_each(logs: Any, spans: Any, metrics: Any) -> None:
    """A log record, a span and a counter through the SDK, exported before this returns."""
    resource = Resource.create({"service.name": "shop"})
    logger_provider = LoggerProvider(resource=resource)
    logger_provider.add_log_record_processor(SimpleLogRecordProcessor(logs))
    record = LogRecord(
        body={"sold": 3}, severity_number=SeverityNumber.WARN, attributes={"tags": ["a", "b"]}
    )
    logger_provider.get_logger("till").emit(record)
    tracer_provider = TracerProvider(resource=resource)
    tracer_provider.add_span_processor(SimpleSpanProcessor(spans))
    with tracer_provider.get_tracer("till").start_as_current_span("sale") as span:
        span.add_event("paid", {"amount": 2.5})
    reader = PeriodicExportingMetricReader(metrics, export_interval_millis=3_600_000)
    meter_provider = MeterProvider([reader], resource=resource)
    meter = meter_provider.get_meter("till")
    meter.create_counter("Sales.Total").add(2, {"kind": "card"})
    meter.create_histogram("sale.size", unit="EUR").record(7.5)
    for provider in (logger_provider, tracer_provider, meter_provider):
        provider.shutdown()


def test_the_opentelemetry_sdk_over_grpc_and_http(tmp_path: Path, nats_url: str) -> None:
    source = {"type": "otlp", "grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        grpc = endpoint(collector, "otlp.grpc")
        http = f"http://{endpoint(collector, 'otlp.http')}/v1"
        options: dict[str, Any] = {"endpoint": grpc, "insecure": True}
        packed = {**options, "compression": GrpcCompression.Gzip}
        emit_one_of_each(GrpcLogs(**packed), GrpcSpans(**options), GrpcMetrics(**packed))
        emit_one_of_each(
            HttpLogs(f"{http}/logs", compression=Compression.Gzip),
            HttpSpans(f"{http}/traces"),
            HttpMetrics(f"{http}/metrics", compression=Compression.Gzip),
        )
        assert collector.account("otlp")["received"] == 8  # acknowledged: nothing to wait for
        wait_until(lambda: collector.account("otlp")["delivered"] == 8)
        for log in records(logd, "logs"):
            assert (log["body"], log["severity_number"]) == ('{"sold":3}', 13)
            assert (log["scope"], log["attributes"]) == ("till", {"tags": ["a", "b"]})
        for span in records(logd, "traces"):
            assert (span["name"], span["events"][0]["name"]) == ("sale", "paid")
        points = {point["name"]: point for point in records(logd, "metrics")}
        assert points["sales.total"]["value"] == 2
        assert points["sale.size"]["unit"] == "EUR"
        assert points["sale.size"]["sum"] == 7.5


def test_syslog_from_the_standard_library_and_from_logger(tmp_path: Path, nats_url: str) -> None:
    source = {"type": "syslog", "udp": "127.0.0.1:0", "tcp": "127.0.0.1:0", "service": "legacy"}
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        expected = []
        for part, kind in (("udp", socket.SOCK_DGRAM), ("tcp", socket.SOCK_STREAM)):
            host, port = endpoint(collector, f"syslog.{part}").split(":")
            handler = logging.handlers.SysLogHandler((host, int(port)), socktype=kind)
            handler.emit(logging.LogRecord("x", logging.ERROR, "", 1, f"via {part}", None, None))
            handler.close()
            expected.append(f"via {part}")
            if shutil.which("logger"):
                for form in ("--rfc3164", "--rfc5424"):
                    way = ["-d"] if part == "udp" else ["-T", "--octet-count"]
                    text = f"logger {part} {form}"
                    command = ["logger", *way, "-n", host, "-P", port, form, "-t", "cron", text]
                    subprocess.run(command, check=True, timeout=20)
                    expected.append(text)
        wait_until(lambda: sorted(bodies(logd.values("logs"))) == sorted(expected))
        forms = {r["attributes"]["log.syslog.format"] for r in records(logd, "logs")}
        assert forms == ({"text", "rfc3164", "rfc5424"} if shutil.which("logger") else {"text"})


def test_records_by_http_over_tls_with_a_token(tmp_path: Path, nats_url: str) -> None:
    authority = Authority(tmp_path)
    server = authority.sign("collector", "IP:127.0.0.1")
    (tmp_path / "token").write_text("secret")
    source = {
        "type": "http", "listen": "127.0.0.1:0", "service": "shop",
        "tls": {"cert_file": str(server.cert), "key_file": str(server.key)},
        "auth": {"token_file": str(tmp_path / "token")},
    }  # fmt: skip
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        url = f"https://{endpoint(collector, 'http')}/"
        headers = {"authorization": "Bearer secret", "content-type": "application/x-ndjson"}
        lines = [json.dumps({"level": "error", "message": f"order {n}"}) for n in range(100)]
        answer = requests.post(
            url, "\n".join(lines), headers=headers, verify=str(authority.cert), timeout=20
        )
        assert answer.json() == {"accepted": 100}
        wait_until(lambda: len(records(logd, "logs")) == 100)
        found = records(logd, "logs")
        assert sorted(one["body"] for one in found) == sorted(f"order {n}" for n in range(100))
        assert {one["resource"]["service.name"] for one in found} == {"shop"}


def test_statsd_a_program_and_an_exporter(tmp_path: Path, nats_url: str) -> None:
    registry = CollectorRegistry()
    Counter("jobs", "Jobs.", ["queue"], registry=registry).labels("a").inc(3)
    Histogram("job_seconds", "Time.", buckets=(1, 5), registry=registry).observe(2)
    for name in ("node_memory_MemFree_bytes", "node_memory_memfree_bytes"):
        Gauge(name, "Memory.", registry=registry).set(math.nan)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    sources = (
        {"type": "statsd", "udp": "127.0.0.1:0", "flush_interval_s": 0.2},
        {"type": "exec", "command": ["sh", "-c", "echo out; echo err >&2"], "service": "job",
         "interval_s": 3600},
        {"type": "prometheus", "targets": [f"http://127.0.0.1:{server.server_port}/metrics"]},
    )  # fmt: skip
    try:
        with collecting(tmp_path, nats_url, *sources) as (logd, collector):
            host, port = endpoint(collector, "statsd").split(":")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"hits:3|c|@0.5|#page:a\nHits:1|c", (host, int(port)))

            def points() -> dict[str, Any]:
                return {point["name"]: point for point in records(logd, "metrics")}

            wait_until(lambda: {"hits", "jobs_total", "job_seconds", "up"} <= points().keys())
            assert (points()["hits"]["value"], points()["Hits"]["value"]) == (6, 1)
            for name in ("node_memory_MemFree_bytes", "node_memory_memfree_bytes"):
                assert points()[name]["value"] == "NaN"
            assert points()["jobs_total"]["attributes"] == {"queue": "a"}
            assert points()["job_seconds"]["bucket_counts"] == [0, 1, 0]
            assert points()["up"]["value"] == 1
            wait_until(lambda: len(records(logd, "logs")) == 2)
            streams = {r["body"]: r["attributes"]["log.iostream"] for r in records(logd, "logs")}
            assert streams == {"out": "stdout", "err": "stderr"}
            for source in ("statsd", "exec", "prometheus"):
                assert collector.account(source)["quarantined"] == 0
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
