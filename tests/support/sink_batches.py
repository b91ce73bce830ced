"""Batches as a job hands them to a sink, with records of every kind, and a context for a sink."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.base.clock import BlockingClock, SystemClock
from penstock.router.meter import Meter
from penstock.router.read.offsets import Offsets, StreamPartition, truncated
from penstock.router.sinks import SinkContext

NOW_NS = SystemClock().unix_ns() // 1_000_000_000 * 1_000_000_000
SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ns", pa.int64()),
        pa.field("subject", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("kind", pa.string()),
        pa.field("service", pa.string()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
    ]
)


def log_record(number: int, *, time_ns: int | None = None, **more: Any) -> dict[str, Any]:
    """A log record; `body` tells it apart."""
    return {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": (NOW_NS if time_ns is None else time_ns) + number,
        "severity_number": 9,
        "severity_text": "INFO",
        "body": f"order {number} ☃",
        "attributes": {"number": number, "http.route": "/orders", "tags": ["a", "b"]},
        "resource": {"service.name": "checkout", "host.name": "web-1"},
        **more,
    }


def gauge_record(number: int, *, time_ns: int | None = None, **more: Any) -> dict[str, Any]:
    """A point of a series of its own."""
    return {
        "schema": "metric/1.1",
        "kind": "metric",
        "time_unix_nano": NOW_NS if time_ns is None else time_ns,
        "name": "queue.depth",
        "unit": "By",
        "metric_type": "gauge",
        "value": number + 0.5,
        "attributes": {"number": f"n{number}"},
        "resource": {"service.name": "checkout", "service.instance.id": "i-1"},
        **more,
    }


def span_record(number: int, **more: Any) -> dict[str, Any]:
    """A span."""
    return {
        "schema": "span/1.0",
        "kind": "span",
        "time_unix_nano": NOW_NS + number,
        "end_time_unix_nano": NOW_NS + number + 5,
        "trace_id": f"{number + 1:032x}",
        "span_id": f"{number + 1:016x}",
        "name": "GET /orders",
        "span_kind": "SERVER",
        "status_code": "ERROR",
        "resource": {"service.name": "checkout"},
        **more,
    }


def batch(records: Sequence[dict[str, Any] | bytes], *, first: int = 0, **columns: Any) -> pa.Table:
    """Records of one partition as rows, from offset `first` on; bytes are rows that are none."""
    rows = []
    for number, record in enumerate(records, first):
        kind = record["kind"] if isinstance(record, dict) else "raw"
        rows.append(
            {
                "stream": "logs",
                "partition": 0,
                "offset": number,
                "timestamp_ns": NOW_NS + number,
                "subject": "telemetry.logs.checkout",
                "key": None,
                "value": record if isinstance(record, bytes) else json.dumps(record).encode(),
                "kind": kind,
                "service": None if kind == "raw" else "checkout",
                "time": NOW_NS // 1000 + number,
                **columns,
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def context(
    directory: Path, *, sink: str = "sink", clock: BlockingClock | None = None, rules: str = ""
) -> SinkContext:
    """For one sink."""
    state = directory / "state"
    state.mkdir(exist_ok=True)
    return SinkContext(
        job="job",
        sink=sink,
        stream_ids={"logs": "5f2c19aa00000000"},
        state_dir=state,
        dead_letters=directory / "dead",
        meter=Meter(),
        stop=threading.Event(),
        clock=clock or SystemClock(),
        rules=rules,
    )


def truncate(found: SinkContext, *, read: int, to: int) -> None:
    """The log of `batch` was read up to an offset, and truncated to a lower one: a batch comes."""
    at = StreamPartition("logs", 0)
    before = Offsets({at: read}, found.stream_ids, {}, dict(found.generations))
    generations = {at: truncated(found.generations.get(at, ()), to)}
    found.begin_batch(before, Offsets({at: read}, found.stream_ids, {}, generations))


def dead_letters(found: SinkContext) -> list[dict[str, Any]]:
    """What a sink has laid there, by offset."""
    dead_letters = [
        json.loads(line)
        for path in (found.dead_letters / found.sink).glob("*.ndjson")
        for line in path.read_text().splitlines()
    ]
    return sorted(dead_letters, key=lambda dead_letter: dead_letter["offset"])
