"""The HTTP sink: records posted as NDJSON, in order, at least once.

    POST URL
    Content-Type: application/x-ndjson
    Idempotency-Key: JOB/SINK/logs.5f2c19aa/0/120-339

Each line is a record as it lies in the log. A row that is no JSON record is wrapped:
`{"kind": "raw", "stream", "partition", "offset", "subject", "value" or "value_base64"}`.

A batch that comes again after a crash is cut into the same requests with the same keys, so that a
destination that honours them stores each record once. Requests that the destination refuses for
good go to the dead letters; what it cannot take now is tried until it can.
"""

import http.client
import random
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, assert_never
from urllib.parse import urlsplit

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, HttpUrl, SecretStr
from typing_extensions import override

from penstock.router.clock import Clock
from penstock.router.core.delivery import (
    Answered,
    Broke,
    Delivered,
    Delivery,
    Effect,
    Event,
    Refused,
    Retrying,
    Send,
    SplitUp,
    Ticked,
)
from penstock.router.dead_letter import as_text, keep_dead_letters
from penstock.router.sinks.guarantee import Guarantee, Replay
from penstock.router.sinks.settings import Batch, Retry, Seconds, SinkConfig
from penstock.router.sinks.sink import Sink, SinkContext

EXCERPT_BYTES: Final = 200
"""Of an answer's body, for reasons."""

_ANSWER_BYTES_MAX: Final = 1024 * 1024
_NEWLINES: Final = bytes.maketrans(b"\r\n", b"  ")
"""A JSON text has line breaks only between its tokens, where a blank means the same."""


@dataclass(frozen=True, slots=True)
class Request:
    """Consecutive rows of one partition that travel together."""

    rows: pa.Table
    name: str
    key: str


class HttpSink(SinkConfig):
    """NDJSON posted to a URL."""

    type: Literal["http"]
    url: HttpUrl
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    timeout_s: Seconds = 10.0
    batch: Batch = Batch()
    retry: Retry = Retry()

    @override
    def about(self) -> str:
        return f"NDJSON to {self.url}; at least once, with idempotency keys"


class HttpPost(Sink):
    """Posts each batch, request by request."""

    config_class = HttpSink
    guarantee = Guarantee(Replay.AT_LEAST_ONCE, "the same requests with the same `Idempotency-Key`")
    columns = ("stream", "partition", "offset", "subject", "kind", "value")

    def __init__(self, config: HttpSink, context: SinkContext) -> None:
        self._config = config
        self._context = context
        self._dice = random.Random()  # noqa: S311 - jitter
        self._poster = Poster(config, context.clock)

    @override
    def open(self) -> None:
        """Nothing is checked: a destination that is away now may come."""

    @override
    def write(self, rows: pa.Table) -> None:
        """Deliver, or lay among the dead letters, every row; returns only then."""
        bounds = self._config.batch
        for part in split_rows(rows, records_max=bounds.records_max, bytes_max=bounds.bytes_max):
            self._deliver(part)
        self._context.meter.problem = None

    def _deliver(self, rows: pa.Table) -> None:
        request = self._request(rows)
        retry = self._config.retry
        delivery = Delivery(
            records=rows.num_rows, first_s=retry.first_s, max_s=retry.max_s, dice=self._dice
        )
        event: Event | None = Ticked()
        while event is not None:
            effects = delivery.handle(event, self._context.clock.monotonic_ns())
            event = self._perform(effects, request, delivery)

    def _perform(self, effects: list[Effect], request: Request, delivery: Delivery) -> Event | None:
        """Carry effects out; returns the next event, None when the request is done with."""
        if not effects:  # woken before the deadline
            return self._sleep(delivery)
        (effect,) = effects
        meter, count = self._context.meter, request.rows.num_rows
        match effect:
            case Send(attempt):
                meter.count("requests")
                return self._poster.post(body_of(request.rows), request.key, attempt)
            case Retrying(reason):
                meter.failed("retries")
                meter.problem = f"{self._config.url}: {reason}"
                return self._sleep(delivery)
            case Delivered():
                meter.sent(count)
                meter.problem = None
            case SplitUp():
                middle = count // 2
                self._deliver(request.rows.slice(0, middle))
                self._deliver(request.rows.slice(middle))
            case Refused():
                keep_dead_letters(request.rows, effect, request.name, self._context)
                meter.failed("dead_letters", records=count)
            case _:
                assert_never(effect)
        return None

    def _sleep(self, delivery: Delivery) -> Event:
        deadline_ns = delivery.next_deadline_ns()
        assert deadline_ns is not None
        pause_ns = deadline_ns - self._context.clock.monotonic_ns()
        self._context.wait(max(pause_ns, 0) / 1e9)
        return Ticked()

    def _request(self, rows: pa.Table) -> Request:
        stream = self._context.stream_tag(rows.column("stream")[0].as_py())
        partition = rows.column("partition")[0].as_py()
        offsets = rows.column("offset")
        first, last = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
        key = f"{self._context.job}/{self._context.sink}/{stream}/{partition}/{first}-{last}"
        return Request(rows, f"{stream}-{partition}-{first:020d}-{last:020d}", key)


def split_rows(rows: pa.Table, *, records_max: int, bytes_max: int) -> Iterator[pa.Table]:
    """Cut a batch into consecutive rows of one partition, bounded; the same rows, the same cuts."""
    order = [("stream", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order))
    places = list(
        zip(rows.column("stream").to_pylist(), rows.column("partition").to_pylist(), strict=True)
    )
    sizes = pc.fill_null(pc.binary_length(rows.column("value")), 0).to_pylist()
    begin, held = 0, 0
    for index, (place, size) in enumerate(zip(places, sizes, strict=True)):
        full = index - begin >= records_max or held + size + 1 > bytes_max
        if index > begin and (full or place != places[begin]):
            yield rows.slice(begin, index - begin)
            begin, held = index, 0
        held += size + 1
    if begin < rows.num_rows:
        yield rows.slice(begin)


def body_of(rows: pa.Table) -> bytes:
    """Rows as NDJSON."""
    return b"".join(_line(row) + b"\n" for row in rows.to_pylist())


def _line(row: dict[str, Any]) -> bytes:
    if row["kind"] != "raw":
        value: bytes = row["value"]
        return value.translate(_NEWLINES)
    about = {name: row[name] for name in ("kind", "stream", "partition", "offset", "subject")}
    return orjson.dumps(about | as_text(row["value"]))


class Poster:
    """One kept-alive connection to the destination."""

    def __init__(self, config: HttpSink, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._url = urlsplit(str(config.url))
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes, key: str, attempt: int) -> Answered | Broke:
        """Send a request and wait for its answer."""
        headers = {name: value.get_secret_value() for name, value in self._config.headers.items()}
        headers |= {
            "Content-Type": "application/x-ndjson",
            "Idempotency-Key": key,
            "Penstock-Attempt": str(attempt),
        }
        path = self._url.path or "/"
        if self._url.query:
            path += f"?{self._url.query}"
        try:
            connection = self._connected()
            connection.request("POST", path, body=body, headers=headers)
            answer = connection.getresponse()
            excerpt = answer.read(_ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            self._close()
            return Broke(f"{type(error).__name__}: {error}")
        if answer.will_close or not answer.isclosed():
            self._close()
        return Answered(
            answer.status,
            self._retry_after_s(answer.headers.get("Retry-After")),
            excerpt[:EXCERPT_BYTES].decode(errors="replace").strip(),
        )

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host = self._url.hostname or ""
            timeout_s = self._config.timeout_s
            if self._url.scheme == "https":
                self._connection = http.client.HTTPSConnection(
                    host, self._url.port, timeout=timeout_s, context=ssl.create_default_context()
                )
            else:
                self._connection = http.client.HTTPConnection(
                    host, self._url.port, timeout=timeout_s
                )
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _retry_after_s(self, text: str | None) -> float | None:
        """Seconds from now, from either form of the header (RFC 9110, section 10.2.3)."""
        if text is None:
            return None
        if text.strip().isdecimal():
            return float(text)
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return None
        return max(moment.timestamp() - self._clock.unix_ns() / 1e9, 0.0)
