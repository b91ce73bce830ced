"""A fake of Grafana Loki's push API, written from its documentation and its default limits.

"Loki HTTP API" and "limits_config": an entry is dropped when its stream has one with the same time,
line and metadata; one that is too old, too far ahead or too long is refused with 400, and the rest
of its request is stored all the same.
"""

import gzip
import json
import re
import threading
from typing import Any, Final

from typing_extensions import override

from penstock.base.clock import SystemClock
from tests.support.fault_door import Answered, Asked, Backend

TENANT: Final = "team-a"
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_WEEK_NS: Final = 7 * 86_400 * 10**9
_GRACE_NS: Final = 10 * 60 * 10**9
_LINE_BYTES_MAX: Final = 256 * 1024
_METADATA_NAMES_MAX: Final = 128

Entry = tuple[int, str, str]


class FakeLoki(Backend):
    """One tenant.

    Attributes:
        streams: Entries (time, line, metadata as JSON) by labels as JSON, each once.
        refused_text: A line that holds it is refused, as one that is too long is.
    """

    def __init__(self) -> None:
        self.streams: dict[str, set[Entry]] = {}
        self.refused_text = "POISON"
        self._lock = threading.Lock()

    @override
    def handle(self, asked: Asked) -> Answered:
        with self._lock:
            if asked.headers.get("x-scope-orgid") != TENANT:
                return Answered(401, b"no org id")
            if asked.path != "/loki/api/v1/push":
                return Answered(404, b"404 page not found")
            body = asked.body
            if asked.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            try:
                faults = self._take(json.loads(body))
            except (ValueError, KeyError, TypeError) as error:
                return Answered(400, f"couldn't parse push request: {error}".encode())
            return Answered(400, faults[0].encode()) if faults else Answered(204)

    def lines(self) -> list[str]:
        """Every line that is stored."""
        return sorted(line for entries in self.streams.values() for _, line, _ in entries)

    def _take(self, pushed: Any) -> list[str]:
        faults: list[str] = []
        for stream in pushed["streams"]:
            labels: dict[str, str] = stream["stream"]
            if not labels or not all(map(_LABEL.fullmatch, labels)):
                raise ValueError(f"error at least one valid label pair is required: {labels}")
            held = self.streams.setdefault(json.dumps(labels, sort_keys=True), set())
            for time_text, line, *more in stream["values"]:
                metadata = more[0] if more else {}
                if not all(isinstance(value, str) for value in (line, *metadata.values())):
                    raise ValueError("Value looks like Number/Boolean/None")
                if not isinstance(time_text, str):
                    raise TypeError("time is no string")
                fault = self._fault(int(time_text), line, metadata)
                if fault:
                    faults.append(fault)
                else:
                    held.add((int(time_text), line, json.dumps(metadata, sort_keys=True)))
        return faults

    def _fault(self, time_ns: int, line: str, metadata: dict[str, str]) -> str:
        now_ns = SystemClock().unix_ns()
        if time_ns < now_ns - _WEEK_NS:
            return "entry has timestamp too old"
        if time_ns > now_ns + _GRACE_NS:
            return "entry has timestamp too new"
        if len(metadata) > _METADATA_NAMES_MAX:
            return "stream has too many structured metadata labels"
        if len(line.encode()) > _LINE_BYTES_MAX or self.refused_text in line:
            return "Max entry size '262144' bytes exceeded"
        return ""
