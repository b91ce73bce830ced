"""Rows as sinks get them, and a context for the sinks."""

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.router.meter import Meter
from penstock.router.sinks import SinkContext

MORNING = datetime(2026, 11, 21, 8, 0, 0, 123456, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("subject", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("kind", pa.string()),
        pa.field("service", pa.string()),
        pa.field("severity_text", pa.string()),
        pa.field("status_code", pa.string()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
    ]
)


def row(offset: int, **fields: Any) -> dict[str, Any]:
    return {
        "stream": "logs",
        "partition": 0,
        "offset": offset,
        "subject": "telemetry.logs.checkout",
        "value": b'{"kind":"log","number":%d}' % offset,
        "time": MORNING,
        "kind": "log",
        "service": "checkout",
        "severity_text": "INFO",
        "status_code": None,
        "attributes": [("number", str(offset))],
    } | fields


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


class TestClock(SystemClock):
    """The time stands still and sleeping moves it."""

    __test__ = False

    def __init__(self) -> None:
        self.now_ns = 1_795_000_000 * 10**9
        self.suspended_ns = 0

    @override
    def unix_ns(self) -> int:
        return self.now_ns

    @override
    def monotonic_ns(self) -> int:
        return self.now_ns

    @override
    def elapsed_ns(self) -> int:
        return self.now_ns + self.suspended_ns

    @override
    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


def context(directory: Path) -> SinkContext:
    (directory / "state").mkdir(exist_ok=True)
    return SinkContext(
        job="job",
        sink="lake",
        stream_ids={"logs": "5f2c19aa00000000"},
        state_dir=directory / "state",
        dead_letters=directory / "dead",
        meter=Meter(),
        stop=threading.Event(),
        clock=TestClock(),
    )
