"""The HTTP sink: records posted as NDJSON, in order, at least once.

    POST URL
    Content-Type: application/x-ndjson
    Idempotency-Key: JOB/SINK/logs.5f2c19aa/0/120-339

Each line is a record as it lies in the log. A row that is no JSON record is wrapped:
`{"kind": "raw", "stream", "partition", "offset", "subject", "value" or "value_base64"}`. With
`format: json` the body is one JSON array of the same.

A batch that comes again after a crash is cut into the same requests with the same keys, so that a
destination that honours them stores each record once.
"""

from typing import Final, Literal

from typing_extensions import override

from penstock.router.columns.json_objects import write_json
from penstock.router.deadletters.writer import as_text
from penstock.router.delivery.result import Fault
from penstock.router.sinks.http.client import Compression, HttpRequest
from penstock.router.sinks.http.encode import position_of
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import HttpTaskSettings
from penstock.router.sinks.http.task_sink import HttpTaskSink
from penstock.router.sinks.sink import Guarantee, Replay

_NEWLINES: Final = bytes.maketrans(b"\r\n", b"  ")
"""A JSON text has line breaks only between its tokens, where a blank means the same."""


class HttpSink(HttpTaskSettings):
    """NDJSON posted to a URL."""

    type: Literal["http"]
    format: Literal["ndjson", "json"] = "ndjson"
    compression: Compression = "none"

    @override
    def about(self) -> str:
        return f"NDJSON to {self.shown_url}; at least once, with idempotency keys"


class HttpPost(HttpTaskSink):
    """Posts each batch, request by request."""

    config_class = HttpSink
    _config: HttpSink
    guarantee = Guarantee(Replay.AT_LEAST_ONCE, "the same requests with the same `Idempotency-Key`")
    empty_size = 2

    @override
    def encode(self, row: Row) -> Item | Fault:
        line = line_of(row)
        return Item(line, len(line) + 1)

    @override
    def place_of(self, row: Row) -> str | None:
        """Return what is known of the request's key: how a batch was cut is not noted."""
        stream, partition, offset = position_of(row)
        tag = self.context.stream_tag(stream, partition, offset)
        key = f"{self.context.job}/{self.context.sink}/{tag}/{partition}/FIRST-LAST"
        return f"the request whose Idempotency-Key {key} spans {offset}"

    @override
    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        lines = [item.content for item in request.items]
        as_lines = self._config.format == "ndjson"
        headers = {
            "Content-Type": "application/x-ndjson" if as_lines else "application/json",
            "Idempotency-Key": request.key,
            "Penstock-Attempt": str(attempt),
        }
        body = b"\n".join(lines) + b"\n" if as_lines else b"[" + b",".join(lines) + b"]"
        return HttpRequest(
            self.path(), headers, body, self._config.compression, secrets=self.own_headers()
        )


def line_of(row: Row) -> bytes:
    """A row as one line of JSON."""
    if row["kind"] != "raw":
        value: bytes = row["value"]
        return value.translate(_NEWLINES)
    about = {name: row[name] for name in ("kind", "stream", "partition", "offset", "subject")}
    return write_json(about | as_text(row["value"]))
