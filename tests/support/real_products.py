"""Real products in place of their fakes, for the sink tests: `tests/extended` starts them."""

import json
import os
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.support.fault_door import Proxy

ELASTICSEARCH_URL: Final = os.environ.get("PENSTOCK_TEST_ELASTICSEARCH_URL", "").rstrip("/")
JAEGER_URL: Final = os.environ.get("PENSTOCK_TEST_JAEGER_URL", "").rstrip("/")
"""Where it is queried; PENSTOCK_TEST_OTLP_URL and PENSTOCK_TEST_OTLP_GRPC are where it receives."""

OTLP_FILE: Final = os.environ.get("PENSTOCK_TEST_OTLP_FILE", "")
"""What the OpenTelemetry Collector at PENSTOCK_TEST_OTLP_URL took, as its file exporter has it."""

_FOUND_MAX: Final = 10_000
_END_US: Final = 2**62 // 1000  # a time that nanoseconds can say


class RealElasticsearch(Proxy):
    """Elasticsearch or OpenSearch; each has an index of its own."""

    def __init__(self) -> None:
        super().__init__(ELASTICSEARCH_URL)
        self._index = f"penstock-sink-{uuid.uuid4().hex[:8]}"
        self.keys = {"index": self._index}

    def messages(self) -> list[str]:
        """The text of each document."""
        query = f"/{self._index}/_search?ignore_unavailable=true&size={_FOUND_MAX}"
        self._ask(f"/{self._index}/_refresh?ignore_unavailable=true", "POST")
        found = self._ask(query)["hits"]["hits"]
        return [hit["_source"]["message"] for hit in found]

    def _ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(ELASTICSEARCH_URL + path, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())


class RealOtelCollector(Proxy):
    """The OpenTelemetry Collector; what its file had before does not count."""

    def __init__(self) -> None:
        super().__init__(os.environ["PENSTOCK_TEST_OTLP_URL"])
        self._file = Path(OTLP_FILE)
        self._before = self._file.stat().st_size

    @property
    def members(self) -> dict[str, list[dict[str, Any]]]:
        """Log records, spans and metrics in OTLP's JSON, by signal."""
        lines = self._file.read_bytes()[self._before :].splitlines()
        return {name: list(_members([json.loads(it) for it in lines], *keys))
                for name, keys in _KEYS.items()}  # fmt: skip


_KEYS: Final = {
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
    "traces": ("resourceSpans", "scopeSpans", "spans"),
    "metrics": ("resourceMetrics", "scopeMetrics", "metrics"),
}


def _members(found: list[Any], *keys: str) -> Iterator[dict[str, Any]]:
    for key in keys:
        found = [each for one in found for each in one.get(key, ())]
    yield from found


class RealJaeger(Proxy):
    """Jaeger; what is there already does not count, for the tests' spans have the same ids."""

    def __init__(self) -> None:
        super().__init__(os.environ["PENSTOCK_TEST_OTLP_URL"])
        self._before = self._numbers()

    def numbers(self) -> Counter[int]:
        """How often each span, by its number, was stored since."""
        return self._numbers() - self._before

    def _numbers(self) -> Counter[int]:
        spans = (span for trace in jaeger_traces() for span in trace["spans"])
        return Counter(int(span["spanID"], 16) - 1 for span in spans)


def jaeger_traces(trace_id: str = "") -> list[dict[str, Any]]:
    """Of the service `checkout`, or with an id, as they were stored."""
    asked = urllib.parse.urlencode(
        {"service": "checkout", "lookback": "custom", "start": 1, "end": _END_US, "limit": 1000,
         "raw": "true"} | ({"traceID": trace_id} if trace_id else {})
    )  # fmt: skip
    with urllib.request.urlopen(f"{JAEGER_URL}/api/traces?{asked}", timeout=20) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]
    return found
