"""A fake of Splunk's HTTP Event Collector, written from Splunk's documentation, and as strict.

"Format events for HTTP Event Collector", "Troubleshoot HTTP Event Collector" (the codes) and "About
HTTP Event Collector Indexer Acknowledgment": objects before a bad one are indexed and none after
it; an acknowledgement is true once and then forgotten; ids count from 0 in each channel.
"""

import gzip
import json
import threading
from typing import Any, Final

from typing_extensions import override

from tests.support.fault_door import Answered, Asked, Backend

TOKEN: Final = "11111111-2222-3333-4444-555555555555"
_KEYS: Final = {"time", "host", "source", "sourcetype", "index", "event", "fields"}
_TEXTS: Final = {
    0: "Success", 2: "Token is required", 4: "Invalid token", 5: "No data",
    6: "Invalid data format", 7: "Incorrect index", 10: "Data channel is missing",
    12: "Event field is required", 13: "Event field cannot be blank",
    15: "Error in handling indexed fields",
}  # fmt: skip


class FakeSplunk(Backend):
    """One token.

    Attributes:
        use_ack: Whether the token has indexer acknowledgement.
        indexed: Whether what was taken is indexed already, so that it is acknowledged.
        refused_text: An event that holds it is refused with code 6.
        events: What was indexed, as sent.
    """

    def __init__(self, *, use_ack: bool = False) -> None:
        self.use_ack = use_ack
        self.indexed = True
        self.refused_text = "POISON"
        self.events: list[dict[str, Any]] = []
        self._next_ack: dict[str, int] = {}
        self._open_acks: dict[str, set[int]] = {}
        self._lock = threading.Lock()

    @override
    def handle(self, asked: Asked) -> Answered:
        with self._lock:
            path, _, query = asked.path.partition("?")
            given = asked.headers.get("authorization", "")
            if not given:
                return _says(401, 2)
            if given != f"Splunk {TOKEN}":
                return _says(403, 4)
            in_query = query.removeprefix("channel=")
            channel = asked.headers.get("x-splunk-request-channel") or in_query
            if self.use_ack and not channel:
                return _says(400, 10)
            if path == "/services/collector/ack":
                return self._acks(channel, json.loads(asked.body)["acks"])
            if path != "/services/collector/event":
                return Answered(404, b"not found")
            return self._take(asked, channel)

    def restart(self) -> None:
        """Everything is indexed, and channels are forgotten."""
        self._next_ack.clear()
        self._open_acks.clear()

    def _acks(self, channel: str, wanted: list[int]) -> Answered:
        held = self._open_acks.setdefault(channel, set())
        found = {str(ack): self.indexed and ack in held for ack in wanted}
        held -= {ack for ack in wanted if found[str(ack)]}
        return Answered(200, json.dumps({"acks": found}).encode())

    def _take(self, asked: Asked, channel: str) -> Answered:
        encoding = asked.headers.get("content-encoding", "identity")
        if encoding not in ("identity", "gzip"):
            return Answered(415, b'{"text":"Unsupported Content-Encoding","code":0}')
        text = (gzip.decompress(asked.body) if encoding == "gzip" else asked.body).decode()
        if not text.strip():
            return _says(400, 5)
        number, place = 0, 0
        while place < len(text):
            try:
                event, place = json.JSONDecoder().raw_decode(text, place)
            except json.JSONDecodeError:
                return _says(400, 6, number)
            while place < len(text) and text[place].isspace():
                place += 1
            code = self._fault(event)
            if code:
                return _says(400, code, number)
            self.events.append(event)
            number += 1
        answer: dict[str, Any] = {"text": "Success", "code": 0}
        if self.use_ack:
            ack = self._next_ack.get(channel, 0)
            self._next_ack[channel] = ack + 1
            self._open_acks.setdefault(channel, set()).add(ack)
            answer["ackId"] = ack
        return Answered(200, json.dumps(answer).encode())

    def _fault(self, event: Any) -> int:
        if not isinstance(event, dict) or set(event) - _KEYS:
            return 6
        if "event" not in event:
            return 12
        if event["event"] in ("", {}, None):
            return 13
        if not isinstance(event.get("time", 0), int | float):
            return 6
        fields = event.get("fields", {})
        if not isinstance(fields, dict) or any(isinstance(v, dict) for v in fields.values()):
            return 15
        return 6 if self.refused_text in json.dumps(event["event"]) else 0


def _says(status: int, code: int, event: int | None = None) -> Answered:
    said: dict[str, Any] = {"text": _TEXTS[code], "code": code}
    if event is not None:
        said["invalid-event-number"] = event
    return Answered(status, json.dumps(said).encode())
