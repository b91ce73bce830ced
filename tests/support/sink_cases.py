"""Each request-based sink with its destination behind a fault door: what one fault suite needs.

A destination is a fake written from the vendor's documentation, or where one can be had the real
server (Prometheus). The fakes' own contracts, which real products can be held to as well, are in
`tests/live/test_sink_contracts.py`.
"""

import atexit
import base64
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from typing_extensions import override

from penstock.router.delivery.result import Retryable
from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.http.request_sink import RequestSink
from penstock.router.sinks.http.task_sink import CONNECTIONS, TaskRequestSink
from penstock.router.sinks.registry import sink_kind
from tests.support.clickhouse_server import ClickHouseRun
from tests.support.fake_datadog import API_KEY as DATADOG_KEY
from tests.support.fake_datadog import FakeDatadog
from tests.support.fake_elasticsearch import API_KEY, FakeElasticsearch
from tests.support.fake_google import FakeCloudLogging
from tests.support.fake_loki import TENANT, FakeLoki
from tests.support.fake_otlp import FakeOtlp
from tests.support.fake_splunk import TOKEN, FakeSplunk
from tests.support.fault_door import Answered, Asked, Backend, FaultDoor
from tests.support.metric_servers import MetricRun, MetricServer, prometheus
from tests.support.moto_server import S3_KEYS, MotoRun
from tests.support.real_products import (
    ELASTICSEARCH_URL,
    JAEGER_URL,
    OTLP_FILE,
    RealElasticsearch,
    RealJaeger,
    RealOtelCollector,
)
from tests.support.sink_batches import (
    NOW_NS,
    batch,
    context,
    gauge_record,
    log_record,
    span_record,
)
from tests.support.task_batches import write_in_tasks
from tests.support.waiting import wait_until

FAST: Final = {
    "retry": {"initial_backoff_s": 0.005, "max_backoff_s": 0.02, "confirmed_after_s": 0.02},
    "timeout_s": 10,
}

Record = dict[str, Any]


@dataclass
class Case:
    """One kind of destination.

    Attributes:
        backend: Made for each test.
        stored: How often each record (by number) is there.
        keys: Of the sink's settings.
        record: One that the destination takes.
        poison: One that it refuses as its protocol does; None where it refuses none.
        effectively_once: Whether what comes again is recognised; always, where it is exactly once.
        takes_future: Whether a time two hours ahead is taken.
        plain: A request's body as the sink's records lie in it.
        path: Of the destination's URL.
        urls: Keys for further addresses, which are the destination's as well.
        ready: What there is to do before the first record; it counts as nothing asked.
        questions: In the path of requests that bring no records.
        in_tasks: Whether what the sink's `write` gets is written as by a task of Spark's.
    """

    type: str
    backend: Callable[[], Backend]
    stored: Callable[[Any], Counter[int]]
    keys: dict[str, Any] = field(default_factory=dict)
    record: Callable[[int], Record] = log_record
    poison: Callable[[int], Record] | None = None
    effectively_once: bool = False
    takes_future: bool = True
    plain: Callable[[bytes], bytes] = bytes
    path: str = ""
    urls: tuple[str, ...] = ()
    ready: Callable[[Any, Any], None] | None = None
    questions: str = "?none"
    in_tasks: bool = False

    def brought(self, door: FaultDoor) -> list[Asked]:
        """The requests with records."""
        return [asked for asked in door.asked if self.questions not in asked.path]

    def settings(self, door: FaultDoor, **keys: Any) -> dict[str, Any]:
        """The sink's settings as in a job file, with `keys` in place of what is so otherwise."""
        own = {**FAST, **self.keys, **getattr(door.backend, "keys", {})}
        own |= dict.fromkeys(self.urls, door.url)
        return {"type": self.type, "url": door.url + self.path, **own, **keys}

    def sink(
        self, door: FaultDoor, directory: Path, *, made: SinkContext | None = None, **keys: Any
    ) -> tuple[Any, SinkContext]:
        """The sink, open, and its context: `made`, or one of its own."""
        made = made or context(directory)
        settings = self.settings(door, **keys)
        sink = make_sink(sink_kind(self.type).config.model_validate(settings), made)
        assert isinstance(sink, RequestSink)
        sink.open()
        door.closing.append(sink.close)
        if self.in_tasks:
            assert isinstance(sink, TaskRequestSink)
            sink.write = partial(write_in_tasks, sink)  # type: ignore[method-assign]
            door.closing.append(CONNECTIONS.close)
        if self.ready is not None:
            self.ready(sink, door.backend)
            door.asked.clear()
        return sink, made


class Webhook(Backend):
    """A destination that honours idempotency keys, or does not."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    @override
    def handle(self, asked: Asked) -> Answered:
        """Take NDJSON; one record that is no order spoils its request."""
        records = [json.loads(line) for line in asked.body.splitlines()]
        if any("POISON" in record["body"] for record in records):
            return Answered(422, b"an order has a number")
        self.records += records
        return Answered(200)


def _number(text: str) -> int:
    return int(text.split()[1])


def _numbers(bodies: Any) -> Counter[int]:
    return Counter(_number(body) for body in bodies)


def _poison(number: int) -> Record:
    return log_record(number, body=f"order {number} POISON")


def _padded(number: int) -> Record:
    """Larger than what a Parquet file has beside its rows."""
    dice = random.Random(number)
    return log_record(number, padding=dice.randbytes(4000).hex())


def _poison_point(number: int) -> Record:
    return gauge_record(number, name="queue.POISON")


def _poison_span(number: int) -> Record:
    return span_record(number, name="POISON")


def _ill_typed(number: int) -> Record:
    """`number` is a number in every other record."""
    record = log_record(number)
    return record | {"attributes": {**record["attributes"], "number": "seven"}}


def _ten_hours_old(number: int) -> Record:
    return gauge_record(number, time_ns=NOW_NS - 36_000 * 10**9)


@cache
def running_prometheus() -> MetricServer:
    """One for all tests of this process; its head block begins now, so what is older is refused."""
    server = prometheus()
    atexit.register(server.close)
    warm = FaultDoor(MetricRun(server))
    with tempfile.TemporaryDirectory() as directory:
        sink, _ = CASES["prometheus"].sink(warm, Path(directory))
        sink.write(batch([gauge_record(0)]))
    warm.close()
    return server


def _unsnapped(body: bytes) -> bytes:
    size, shift = 0, 0
    for byte in body:  # Snappy's preamble is the length as a varint
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    found: bytes = pa.decompress(body, size, codec="snappy", asbytes=True)
    return found


def _elastic_documents(backend: FakeElasticsearch | RealElasticsearch) -> Counter[int]:
    if isinstance(backend, RealElasticsearch):
        return _numbers(backend.messages())
    return _numbers(
        document["message"]
        for documents in backend.indices.values()
        for document in documents.values()
    )


def _of_tag(tags: Any) -> int:
    (found,) = (tag for tag in tags if tag.startswith("number:"))
    return int(found.removeprefix("number:n"))


def _of_point(metric: Any) -> int:
    (point,) = metric["gauge"]["dataPoints"]
    return int(point["asDouble"] - 0.5)


def _spans(backend: FakeOtlp | RealJaeger | RealOtelCollector) -> Counter[int]:
    if isinstance(backend, RealJaeger):
        return backend.numbers()
    as_bytes = bytes.fromhex if isinstance(backend, RealOtelCollector) else base64.b64decode
    ids = (as_bytes(span["spanId"]) for span in backend.members["traces"])
    return Counter(int.from_bytes(it) - 1 for it in ids)


_OTLP: Final = RealOtelCollector if OTLP_FILE else FakeOtlp


def _with_a_table(sink: Any, run: ClickHouseRun) -> None:
    run.make(sink.creation())
    wait_until(lambda: not isinstance(sink.see_to_table(), Retryable))


CASES: Final = {
    "clickhouse": Case(
        "clickhouse", ClickHouseRun, lambda it: it.stored(),
        keys={"tokens": False}, poison=_poison, effectively_once=True, ready=_with_a_table,
    ),
    "datadog": Case(
        "datadog", FakeDatadog, lambda it: _numbers(log["message"] for log in it.logs),
        keys={"api_key": DATADOG_KEY}, poison=_poison,
    ),
    "datadog metrics": Case(
        "datadog", FakeDatadog, lambda it: Counter(_of_tag(tags) for _, tags, *_ in it.points),
        keys={"api_key": DATADOG_KEY, "past_s": 86_400}, record=gauge_record,
        poison=_poison_point, takes_future=False,
    ),
    "datadog traces": Case(
        "datadog", FakeDatadog, lambda it: Counter(span["trace_id"] - 1 for span in it.spans),
        keys={"api_key": DATADOG_KEY}, record=span_record, poison=_poison_span,
        urls=("agent_url",),
    ),
    "google_cloud_logging": Case(
        "google_cloud_logging", FakeCloudLogging,
        lambda it: _numbers(entry["jsonPayload"]["message"] for entry in it.queried()),
        poison=_poison, effectively_once=True,
    ),
    "http": Case(
        "http", Webhook,
        lambda it: _numbers(record["body"] for record in it.records),
        poison=_poison,
    ),
    "s3": Case(
        "s3", MotoRun,
        lambda it: _numbers(json.loads(value)["body"] for value in it.lake()["value"].to_pylist()),
        keys=S3_KEYS, record=_padded, effectively_once=True, path="/lake/telemetry",
    ),
    "splunk_hec": Case(
        "splunk_hec", FakeSplunk,
        lambda it: _numbers(event["event"]["body"] for event in it.events),
        keys={"token": TOKEN}, poison=_poison,
    ),
    "splunk_hec acknowledged": Case(
        "splunk_hec", lambda: FakeSplunk(use_ack=True),
        lambda it: _numbers(event["event"]["body"] for event in it.events),
        keys={"token": TOKEN, "acknowledge": True, "acknowledge_interval_s": 0.01},
        poison=_poison, questions="/services/collector/ack",
    ),
    "elasticsearch": Case(
        "elasticsearch", RealElasticsearch if ELASTICSEARCH_URL else FakeElasticsearch,
        _elastic_documents,
        keys={"api_key": API_KEY}, poison=_ill_typed, effectively_once=True,
    ),
    "loki": Case(
        "loki", FakeLoki, lambda it: _numbers(it.lines()),
        keys={"tenant": TENANT}, poison=_poison, effectively_once=True, takes_future=False,
    ),
    "otlp": Case(
        "otlp", _OTLP,
        lambda it: _numbers(member["body"]["stringValue"] for member in it.members["logs"]),
    ),
    "otlp metrics": Case(
        "otlp", _OTLP,
        lambda it: Counter(_of_point(metric) for metric in it.members["metrics"]),
        record=gauge_record,
    ),
    "otlp traces": Case(
        "otlp", RealJaeger if JAEGER_URL else _OTLP, _spans, record=span_record,
    ),
    "prometheus": Case(
        "prometheus", lambda: MetricRun(running_prometheus()),
        lambda it: it.stored(NOW_NS / 1e9 + 60),
        record=gauge_record, poison=_ten_hours_old, effectively_once=True, takes_future=False,
        plain=_unsnapped, path="/api/v1/write",
    ),
}  # fmt: skip

EVERY_WAY: Final = CASES | {
    f"{name} in tasks": replace(case, in_tasks=True) for name, case in CASES.items()
}
"""The same, and once more what Spark's tasks write."""
