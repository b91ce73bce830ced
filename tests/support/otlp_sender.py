"""Sends log records by OTLP over HTTP, all the time, and remembers which were acknowledged."""

import json
import threading
import time
import urllib.request
from typing import Any, Final

from typing_extensions import override

RECORDS: Final = 5
_PAUSE_S: Final = 0.02
_TIMEOUT_S: Final = 10.0


class OtlpSender(threading.Thread):
    """One request after another until it is stopped; no record is ever sent twice.

    A request without an answer may have been taken or not: its records are in neither account.

    Args:
        port: Where a collector takes OTLP over HTTP on this machine.

    Attributes:
        acked: Ids of records that were acknowledged.
        failures: Requests that were not.
    """

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True, name="otlp-sender")
        self.acked: list[str] = []
        self.failures = 0
        self._url = f"http://127.0.0.1:{port}/v1/logs"
        self._ended = threading.Event()
        self._next = 0

    @override
    def run(self) -> None:
        """Send."""
        while not self._ended.is_set():
            ids = [f"appliance-{self._next + index}" for index in range(RECORDS)]
            self._next += RECORDS
            if self._post(_request(ids)):
                self.acked += ids
            else:
                self.failures += 1
            time.sleep(_PAUSE_S)

    def stop(self) -> None:
        """Let the request under way end, and send no more."""
        self._ended.set()
        self.join(_TIMEOUT_S + 5)
        assert not self.is_alive()

    def _post(self, document: dict[str, Any]) -> bool:
        request = urllib.request.Request(
            self._url, json.dumps(document).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                taken = json.load(answer)
        except (OSError, ValueError):
            return False
        assert not taken.get("partialSuccess", {}).get("rejectedLogRecords"), taken
        return True


def _request(ids: list[str]) -> dict[str, Any]:
    now = str(time.time_ns())  # noqa: TID251 - records of now
    records = [
        {"timeUnixNano": now, "severityNumber": 9, "body": {"stringValue": one}} for one in ids
    ]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "appliance"}}]}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": records}]}]}
