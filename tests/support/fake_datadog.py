"""A fake of Datadog's intakes and of its trace Agent, written from Datadog's documentation.

"Send logs" (v2), "Submit metrics" (v2), and the Agent's `/v0.4/traces`: codes, limits of requests,
what a request must look like, and that points too far from now are dropped without a word.
"""

import gzip
import json
import re
import threading
import zlib
from typing import Any, Final

import msgpack
from typing_extensions import override

from penstock.base.clock import SystemClock
from tests.support.fault_door import Answered, Asked, Backend

API_KEY: Final = "0123456789abcdef0123456789abcdef"
_LOGS_MAX: Final = 1000
_LOGS_BYTES_MAX: Final = 5_000_000
_LOG_BYTES_MAX: Final = 1_000_000
_SERIES_BYTES_MAX: Final = 512_000
_SERIES_INFLATED_MAX: Final = 5_242_880
_METRIC: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,199}")
_RESERVED: Final = ("ddsource", "ddtags", "hostname", "message", "service", "status")
_AHEAD_S: Final = 600
_BEHIND_S: Final = 86_400
"""With "historical metrics ingestion"; else it is an hour."""
_UINT64: Final = ("trace_id", "span_id", "parent_id")
_TEXTS: Final = ("service", "name", "resource", "type")


class RefusedError(Exception):
    """A request is none; the text is the answer's."""


class FakeDatadog(Backend):
    """One account, and an Agent of its own.

    Attributes:
        refused_text: A request with it is answered with 400, as one that is malformed.
        logs: What was taken, as sent; members that are too large are cut off.
        points: Of the series that were taken: metric, tags, type, second, value.
        spans: What the Agent was given.
    """

    def __init__(self) -> None:
        self.refused_text = b"POISON"
        self.logs: list[dict[str, Any]] = []
        self.points: list[tuple[str, tuple[str, ...], int, int, float]] = []
        self.spans: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    @override
    def handle(self, asked: Asked) -> Answered:
        with self._lock:
            try:
                if asked.path == "/v0.4/traces":
                    return self._traces(asked)
                refusal = _stranger(asked)
                if refusal is not None:
                    return refusal
                if asked.path == "/api/v2/logs":
                    return self._take_logs(asked)
                if asked.path == "/api/v2/series":
                    return self._take_series(asked)
            except (RefusedError, ValueError, zlib.error, OSError) as error:
                return _errors(400, str(error))
            return _errors(404, "Not Found")

    def _take_logs(self, asked: Asked) -> Answered:
        body = _inflated(asked)
        if len(body) > _LOGS_BYTES_MAX:
            return _errors(413, "Payload Too Large")
        found = json.loads(body)
        logs = found if isinstance(found, list) else [found]
        if len(logs) > _LOGS_MAX:
            return _errors(413, "Payload Too Large")
        for log in logs:
            _see_log(log)
        if self.refused_text in body:
            return _errors(400, "Bad Request")
        self.logs += [
            log if len(json.dumps(log)) <= _LOG_BYTES_MAX else {"message": "cut off"}
            for log in logs
        ]
        return Answered(202, b"{}")

    def _take_series(self, asked: Asked) -> Answered:
        body = _inflated(asked)
        if len(asked.body) > _SERIES_BYTES_MAX or len(body) > _SERIES_INFLATED_MAX:
            return _errors(413, "Payload Too Large")
        found = json.loads(body)
        if not isinstance(found, dict) or not isinstance(found.get("series"), list):
            raise RefusedError("series is required")
        now_s = SystemClock().unix_ns() / 1e9
        taken = []
        for series in found["series"]:
            _see_series(series)
            point = series["points"][0]
            if now_s - _BEHIND_S <= point["timestamp"] <= now_s + _AHEAD_S:
                about = (series["metric"], tuple(series.get("tags", ())), series["type"])
                taken.append((*about, point["timestamp"], point["value"]))
        if self.refused_text in body:
            raise RefusedError("Payload is not in the expected format")
        self.points += taken
        return Answered(202, b'{"errors":[]}')

    def _traces(self, asked: Asked) -> Answered:
        if asked.headers.get("content-type") != "application/msgpack":
            return Answered(415, b"unsupported media type")
        traces = msgpack.unpackb(asked.body)
        if int(asked.headers["x-datadog-trace-count"]) != len(traces):
            raise RefusedError("trace count")
        for trace in traces:
            if len({span["trace_id"] for span in trace}) != 1:
                raise RefusedError("spans of several traces")
            for span in trace:
                _see_span(span)
        if self.refused_text in asked.body:
            raise RefusedError("decoding error")
        self.spans += [span for trace in traces for span in trace]
        return Answered(200, b'{"rate_by_service":{"service:,env:":1}}')


def _stranger(asked: Asked) -> Answered | None:
    key = asked.headers.get("dd-api-key")
    if key is None:
        return _errors(401, "Unauthorized")
    if key != API_KEY:
        return _errors(403, "Forbidden")
    if asked.headers.get("content-type") != "application/json":
        return _errors(415, "Unsupported Media Type")
    return None


def _inflated(asked: Asked) -> bytes:
    match asked.headers.get("content-encoding", "identity"):
        case "identity":
            return asked.body
        case "gzip":
            return gzip.decompress(asked.body)
        case "deflate":
            return zlib.decompress(asked.body)
        case other:
            raise RefusedError(f"unknown encoding {other}")


def _see_log(log: Any) -> None:
    if not isinstance(log, dict) or "message" not in log:
        raise RefusedError("a log is an object with a message")
    if not all(isinstance(log.get(name, ""), str) for name in _RESERVED):
        raise RefusedError("a reserved attribute is no text")


def _see_series(series: Any) -> None:
    if not _METRIC.fullmatch(series.get("metric", "")):
        raise RefusedError("metric name")
    if series.get("type", 0) not in (0, 1, 2, 3):
        raise RefusedError("type")
    if series.get("type") in (1, 2) and not series.get("interval", 0) > 0:
        raise RefusedError("a count has an interval")
    points = series.get("points")
    if not isinstance(points, list) or len(points) != 1:
        raise RefusedError("these tests send one point of a series")
    (point,) = points
    if type(point["timestamp"]) is not int or not isinstance(point["value"], int | float):
        raise RefusedError("a point is a second and a number")
    if not all(isinstance(tag, str) for tag in series.get("tags", [])):
        raise RefusedError("a tag is a text")
    for resource in series.get("resources", []):
        if set(resource) != {"name", "type"}:
            raise RefusedError("a resource has a name and a type")


def _see_span(span: dict[str, Any]) -> None:
    if not all(type(span[name]) is int and 0 <= span[name] < 2**64 for name in _UINT64):
        raise RefusedError("ids have 64 bits")
    if not all(isinstance(span[name], str) for name in _TEXTS):
        raise RefusedError("texts")
    if not all(type(span[name]) is int for name in ("start", "duration", "error")):
        raise RefusedError("times")
    if not all(isinstance(it, str) for it in span["meta"].values()):
        raise RefusedError("meta holds texts")
    if not all(isinstance(it, int | float) for it in span["metrics"].values()):
        raise RefusedError("metrics holds numbers")


def _errors(status: int, text: str) -> Answered:
    said = {"errors": [{"status": str(status), "title": text}]}
    return Answered(status, json.dumps(said).encode(), {"Content-Type": "application/json"})
