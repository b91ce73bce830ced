"""One valid record of each kind, as fixed values that golden files and tests share."""

from collections.abc import Mapping
from typing import Any

from penstock.specs.emit.log_writer import LogLines, encode_log
from penstock.specs.models.kinds import BASE_MODELS

RESOURCE: dict[str, Any] = {
    "service.name": "checkout",
    "service.version": "1.4.2",
    "service.instance.id": "0b6c1f0e-8f2b-4c57-9d3a-6a1d8f1f2c11",
    "deployment.environment.name": "test",
    "host.name": "host-1",
    "process.pid": 4711,
}
TIME = 1_700_000_000_123_456_789
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
RECORD_ID = "018bcfe5687b7cc7a3e1b9c4c0d1e2f3"


def log(**changes: Any) -> dict[str, Any]:
    return _record(
        "log",
        changes,
        trace_id=TRACE,
        span_id=SPAN,
        trace_flags=1,
        scope="shop",
        context={"user.id": "u-17", "request.id": "r-1"},
        attributes={"order_id": "o-1", "total": 24.5, "items": 3, "ok": True, "tags": ["a", "b"]},
        severity_number=9,
        severity_text="INFO",
        body="order placed",
    )


def span(**changes: Any) -> dict[str, Any]:
    return _record(
        "span",
        changes,
        trace_id=TRACE,
        span_id=SPAN,
        parent_span_id="00f067aa0ba902b7",
        name="checkout",
        span_kind="SERVER",
        end_time_unix_nano=TIME + 1_000_000,
        status_code="ERROR",
        status_message="payment declined",
        links=[{"trace_id": TRACE, "span_id": "00f067aa0ba902b7", "attributes": {"k": [1, 2]}}],
        events=[{"name": "retry", "time_unix_nano": TIME, "attributes": {"attempt": 2}}],
    )


def gauge(**changes: Any) -> dict[str, Any]:
    return _record(
        "metric", changes, name="shop.stock", unit="{item}", metric_type="gauge", value=17
    )


def gauge_without_number(**changes: Any) -> dict[str, Any]:
    return gauge(name="node_memory_MemAvailable_bytes", value="NaN", **changes)


def total(**changes: Any) -> dict[str, Any]:
    return _record(
        "metric", changes, name="shop.orders", unit="{order}", metric_type="sum", value=4,
        is_monotonic=True, temporality="delta", start_time_unix_nano=TIME - 10,
    )  # fmt: skip


def histogram(**changes: Any) -> dict[str, Any]:
    return _record(
        "metric", changes, name="shop.order.value", unit="EUR", metric_type="histogram", count=5,
        sum=70.5, min=1.5, max=40.0, bucket_counts=[1, 3, 1], explicit_bounds=[5.0, 25.0],
        temporality="cumulative", start_time_unix_nano=TIME - 10,
        exemplars=[{"time_unix_nano": TIME, "value": 40.0, "trace_id": TRACE, "span_id": SPAN}],
    )  # fmt: skip


def exponential(**changes: Any) -> dict[str, Any]:
    return _record(
        "metric", changes, name="shop.latency", unit="s", metric_type="exponential_histogram",
        count=6, sum=3.5, scale=3, zero_count=1, zero_threshold=0.0,
        positive={"offset": -2, "bucket_counts": [1, 0, 3]},
        negative={"offset": 0, "bucket_counts": [1]},
        temporality="cumulative", start_time_unix_nano=TIME - 10,
    )  # fmt: skip


def event(**changes: Any) -> dict[str, Any]:
    return _record(
        "event", changes, record_id=RECORD_ID, event_name="shop.opened", subject="store-1",
        attributes={"shop.country": "SE"},
    )  # fmt: skip


def audit(**changes: Any) -> dict[str, Any]:
    return _record(
        "audit", changes, record_id=RECORD_ID, event_name="user.role_granted",
        actor={"type": "user", "id": "u-1", "address": "192.0.2.7"}, action="grant",
        target={"type": "user", "id": "u-2"}, outcome="success", changed_fields=["roles"],
        **{"auth.method": "passkey"},
    )  # fmt: skip


ALL = {
    "log": log,
    "span": span,
    "metric_gauge": gauge,
    "metric_sum": total,
    "metric_histogram": histogram,
    "metric_exponential_histogram": exponential,
    "event": event,
    "audit": audit,
}


def _record(kind: str, changes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """`changes` win; a field changed to None is left out."""
    record = {
        "schema": BASE_MODELS[kind].spec, "kind": kind, "time_unix_nano": TIME,
        "resource": RESOURCE, **fields, **changes,
    }  # fmt: skip
    return {key: value for key, value in record.items() if value is not None}


def log_line(
    body: Any, severity_number: int, fields: Mapping[Any, Any], scope: Any = None
) -> bytes:
    """The line that a logger's call becomes."""
    return encode_log(LogLines().record(body, severity_number, fields, scope=scope))
