"""Base of all sinks that send requests: cutting, sending, classifying, dead letters.

A sink of this kind says how a record is encoded, how encoded records make a request, and what an
answer means. The rest is here, and the same for all:

- Rows go in the order of the log. A request holds consecutive rows of one partition; it ends
  before `batch.max_records` records or `batch.max_bytes` bytes, counted as they are encoded and
  before they are compressed. The same rows make the same requests, with the same key.
- A record that cannot be encoded goes to the dead letters, and so does what the destination
  refuses for good. `delivery.core` decides when that is.
"""

import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, assert_never

import pyarrow as pa
from typing_extensions import override

from penstock.router.deadletters.writer import Reason, send_each_to_dlq
from penstock.router.delivery.batch_names import POSITION, in_log_order
from penstock.router.delivery.breaker import Breaker, Circuit
from penstock.router.delivery.classify import HttpResponse, Meaning, classify_response
from penstock.router.delivery.core import (
    Answered,
    Ask,
    Confirmed,
    Delivered,
    Delivery,
    Effect,
    Event,
    Part,
    Refused,
    Retrying,
    Send,
    Ticked,
)
from penstock.router.delivery.result import DeliveryResult, Fault, Paused
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.sinks.http.client import HttpRequest, Transport, encoding_of
from penstock.router.sinks.http.settings import (
    HIDDEN,
    HttpSettings,
    RequestBatch,
    RequestSettings,
    hidden_query,
)
from penstock.router.sinks.sink import Place, Preview, Sink, SinkContext
from penstock.service.config_types import Secret

Row = dict[str, Any]

TIME_REPLACED: Final = "time_replaced"
"""A row has it where the sink took the log's time for the record's: the reason, to be counted."""


_NOT_ENCODABLE: Final = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""Errors that a record may raise in code that encodes it, such as by deep nesting."""


class Item(NamedTuple):
    """One record as the destination takes it.

    Attributes:
        content: Content that the sink's `request` combines.
        size: Bytes that it adds to a request's body before compression.
        group: Records of different groups never share a request.
    """

    content: Any
    size: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """Records of one partition of the log that travel together.

    Attributes:
        items: In the order of the log.
        rows: Their places in the batch's table.
        key: The same for the same records: job, sink, stream, partition, first and last offset.
        result: Result when a task sent it first; None: it was not sent.
        is_doubtful: Whether the destination may have records of it, for all that its task knows.
    """

    group: str
    items: tuple[Item, ...]
    rows: tuple[int, ...]
    key: str
    result: DeliveryResult | None = None
    is_doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Faulty:
    """A row of the batch that cannot be encoded."""

    row: int
    fault: Fault


class RequestSink(Sink):
    """A sink that sends requests; see the module's docstring."""

    columns: tuple[str, ...] = (
        "stream", "partition", "offset", "timestamp_ns", "subject", "key", "kind", "value",
    )  # fmt: skip
    empty_size = 0
    """Bytes of a request's body beside its records."""
    paces_requests: ClassVar[bool] = True
    """False if a batch is written in one go, so that a rate limit makes whole batches wait."""

    address: str
    """Address of the destination for messages; without secrets."""
    _config: RequestSettings

    def __init__(self, config: RequestSettings, context: SinkContext) -> None:
        self.context = context
        self._config = config
        limit, batch = config.rate_limit, config.batch
        pause_s = 0.0
        if self.paces_requests:
            self.rate_limiter = limit.limiter(context.clock.monotonic_ns())
            pause_s = limit.pause_s(batch.max_records, batch.max_bytes)
        self._policy = config.retry.policy(config.timeout_s, pause_s)
        dice = random.Random()  # noqa: S311 - jitter
        self._breaker = Breaker(config.retry.limits(), dice)

    # What a sink of this kind says.

    def encode(self, row: Row) -> Item | Fault | None:
        """One record, or why it cannot be one.

        None when the destination can store nothing of it; the sink counts it then.
        """
        raise NotImplementedError

    def place_of(self, row: Row) -> str | None:  # noqa: ARG002 - for subclasses
        """Return the key by which the destination has a delivered row; None: it has none.

        It is made of the row alone: the destination is not asked.
        """
        return None

    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        """Send a request; returns what became of it."""
        raise NotImplementedError

    def confirmed(self, tokens: Sequence[str]) -> Iterable[str]:
        """Return those tokens of `Accepted` results that the destination confirms now."""
        raise NotImplementedError

    def show(self, request: Request) -> Preview:
        """The request for people."""
        raise NotImplementedError

    # What is the same for all.

    @override
    def open(self) -> None:
        """Nothing is checked: a destination that is away now may come."""

    @override
    def locate(self, rows: pa.Table) -> Sequence[Place]:
        return [self.place_of(row) for row in rows.to_pylist()]

    @override
    def write(self, rows: pa.Table) -> None:
        """Deliver, or send to the DLQ, every row; returns only then."""
        rows = in_log_order(rows)
        requests, faulty = self.to_requests(rows)
        self.deliver(rows, requests, faulty)

    def deliver(
        self,
        rows: pa.Table,
        requests: Sequence[Request],
        faulty: Sequence[Faulty],
        *,
        delivered: int = 0,
    ) -> None:
        """Bring requests to an end, whatever that takes, one after the other.

        Args:
            rows: Those of the requests, and of the faulty ones.
            requests: Requests; the result of one that tasks have sent counts, and it is not sent
                again.
            faulty: Rows that become dead letters.
            delivered: Records of the batch that tasks have delivered.
        """
        refused = [(each.row, each.fault, 0) for each in faulty]
        counts = [len(request.items) for request in requests]
        delivery = Delivery(
            counts, policy=self._policy, breaker=self._breaker, rate_limiter=self.rate_limiter
        )
        if delivered:
            self.context.meter.sent(delivered)
            delivery.note_delivered(self.context.clock.monotonic_ns())
        event: Event = Ticked()
        while not delivery.done:
            effects = delivery.handle(event, self.context.clock.monotonic_ns())
            event = self._perform(effects, requests, rows, delivery, refused)
        self._send_to_dlq(rows, refused)  # all at once, so that a batch makes one file of them
        self.context.meter.circuit = self._breaker.circuit
        self.context.meter.problem = None

    @override
    def preview(self, rows: pa.Table) -> list[Preview]:
        """The requests themselves; nothing is sent."""
        rows = in_log_order(rows)
        requests, faulty = self.to_requests(rows)
        refused = [Preview(f"dead letters: {it.fault.reason}", 1, "") for it in faulty]
        return [self.show(request) for request in requests] + refused

    def to_requests(self, rows: pa.Table) -> tuple[list[Request], list[Faulty]]:
        present = [name for name in self.columns if name in rows.column_names]
        whole = rows.select(present).to_pylist()
        faulty: list[Faulty] = []
        requests: list[Request] = []
        for begin, end in _partitions(whole):
            groups: dict[str, list[tuple[int, Item]]] = {}
            for index in range(begin, end):
                item = self._encoded(whole[index])
                if isinstance(item, Fault):
                    faulty.append(Faulty(index, item))
                elif item is not None:
                    groups.setdefault(item.group, []).append((index, item))
            for group, encoded in groups.items():
                chunks = cut(encoded, self._config.batch, self.empty_size)
                requests.extend(self._request(group, chunk, whole) for chunk in chunks)
        return requests, faulty

    def _encoded(self, row: Row) -> Item | Fault | None:
        """A record that breaks its spec may not block its sink."""
        try:
            return self.encode(row)
        except _NOT_ENCODABLE as error:
            return Fault("not_encodable", f"{type(error).__name__}: {error}")
        finally:
            if (reason := row.get(TIME_REPLACED)) is not None:
                self.context.meter.count(f"{TIME_REPLACED}_{reason}")

    def _request(self, group: str, chunk: Sequence[tuple[int, Item]], rows: list[Row]) -> Request:
        indices = tuple(index for index, _ in chunk)
        key = self._key(rows[indices[0]], rows[indices[-1]])
        return Request(group, tuple(item for _, item in chunk), indices, key)

    def _key(self, first: Row, last: Row) -> str:
        tag = self.context.stream_tag(first["stream"], first["partition"], first["offset"])
        span = f"{first['offset']}-{last['offset']}"
        return f"{self.context.job}/{self.context.sink}/{tag}/{first['partition']}/{span}"

    def _perform(
        self,
        effects: list[Effect],
        requests: Sequence[Request],
        rows: pa.Table,
        delivery: Delivery,
        refused: list[tuple[int, Fault, int]],
    ) -> Event:
        """Carry effects out, noting in `refused` what is; returns the next event."""
        self.context.meter.circuit = self._breaker.circuit
        next_: Send | Ask | None = None
        for effect in effects:
            match effect:
                case Send() | Ask():
                    next_ = effect
                case Delivered(part):
                    self.context.meter.sent(len(part.records))
                    self.context.meter.problem = None
                case Refused(part, fault, attempt):
                    places = requests[part.request].rows
                    refused += [(places[it], fault, attempt) for it in part.records]
                case Retrying(circuit):
                    self.context.meter.failed("retries")
                    self.context.meter.problem = self._problem(circuit)
                case _:
                    assert_never(effect)
        if isinstance(next_, Send):
            self.context.meter.count("requests")
            request = self._part(requests, next_.part, rows)
            if request.result is not None and next_.attempt == 1:
                return Answered(request.result)
            self._book(request)
            return Answered(self.exchange(request, next_.attempt))
        if isinstance(next_, Ask):
            return Confirmed(frozenset(self.confirmed(next_.tokens)))
        deadline_ns = delivery.next_deadline_ns()
        if deadline_ns is not None:
            self._wait_until(deadline_ns)
        return Ticked()

    def _wait_until(self, deadline_ns: int) -> None:
        now_ns = self.context.clock.monotonic_ns()
        pause_ns = max(deadline_ns - now_ns, 0)
        paced_ns = 0 if self.rate_limiter is None else self.rate_limiter.wait_ns(now_ns)
        if paced_ns:
            self.context.wait_for_rate(min(pause_ns, paced_ns))
        else:
            self.context.wait(pause_ns / 1e9)

    def size_of(self, request: Request) -> int:
        """Bytes of a request's body, before compression."""
        return self.empty_size + sum(item.size for item in request.items)

    def _book(self, request: Request) -> None:
        if self.rate_limiter is not None:
            self.rate_limiter.book(
                records=len(request.items),
                size=self.size_of(request),
                now_ns=self.context.clock.monotonic_ns(),
            )

    def _problem(self, circuit: Circuit) -> str:
        said = f"{self.address}: {circuit.reason}"
        if circuit.state == "rejected":
            return (
                f"{said}; rejected: every record is refused for this reason, and kept. Correct the"
                " sink's settings or the destination; or set retry.rejected_after to 0, and each"
                " becomes a dead letter"
            )
        return f"{said}; paused until that is corrected" if circuit.state == "paused" else said

    def _part(self, requests: Sequence[Request], part: Part, rows: pa.Table) -> Request:
        whole = requests[part.request]
        if len(part.records) == len(whole.items):
            return whole
        indices = tuple(whole.rows[it] for it in part.records)
        ends = rows.select(POSITION).take([indices[0], indices[-1]])
        first, last = ends.to_pylist()
        items = tuple(whole.items[it] for it in part.records)
        key = self._key(first, last)
        return replace(whole, items=items, rows=indices, key=key, result=None)

    def _send_to_dlq(self, rows: pa.Table, refused: Sequence[tuple[int, Fault, int]]) -> None:
        """Send rows to the DLQ: which row, why, and at which attempt."""
        if refused:
            reasons = [Reason(it.code, it.reason, it.status, attempt) for _, it, attempt in refused]
            send_each_to_dlq(rows.take([row for row, _, _ in refused]), reasons, self.context)


def cut(
    encoded: Sequence[tuple[int, Item]], batch: RequestBatch, empty_size: int
) -> Iterator[Sequence[tuple[int, Item]]]:
    """Cut records into requests as large as allowed; a record that is too large goes alone."""
    begin, held = 0, empty_size
    for index, (_, item) in enumerate(encoded):
        full = index - begin >= batch.max_records or held + item.size > batch.max_bytes
        if index > begin and full:
            yield encoded[begin:index]
            begin, held = index, empty_size
        held += item.size
    if begin < len(encoded):
        yield encoded[begin:]


def _partitions(rows: list[Row]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the rows of each partition; rows are in the log's order."""
    place, begin = itemgetter("stream", "partition"), 0
    while begin < len(rows):
        end = bisect_right(rows, place(rows[begin]), begin, key=place)
        yield begin, end
        begin = end


class HttpRequestSink(RequestSink):
    """A sink whose requests are HTTP's; a subclass says what is in them and what answers mean."""

    differing: ClassVar[Mapping[int, Meaning]] = {}
    """Status codes to which the protocol gives another meaning."""
    _config: HttpSettings

    def __init__(self, config: HttpSettings, context: SinkContext) -> None:
        super().__init__(config, context)
        self.url = str(config.url).rstrip("/")
        self.address = f"{config.url.scheme}://{config.url.host}:{config.url.port}"
        self._transport: Transport | None = None

    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        """Return the HTTP request to send.

        Raises:
            OSError: A secret's file cannot be read.
        """
        raise NotImplementedError

    def classify_answer(self, answer: HttpResponse, request: Request) -> DeliveryResult:  # noqa: ARG002 - for subclasses
        return classify_response(answer, self.differing)

    @override
    def open(self) -> None:
        """Read the certificates; the destination itself may come later.

        Raises:
            ConfigError: They cannot be read.
        """
        self._transport = self._transport_to(str(self._config.url))

    def _transport_to(self, url: str) -> Transport:
        config = self._config
        try:
            tls = config.tls.context() if url.startswith("https:") else None
        except OSError as error:
            raise WrongKeyError(
                f"sinks.{self.context.sink}.tls: {error}", fix="name PEM files that can be read"
            ) from None
        return Transport(url, timeout_s=config.timeout_s, clock=self.context.clock, tls=tls)

    @override
    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        try:
            made = self.request_of(request, attempt)
        except OSError as error:
            return Paused(f"a secret cannot be read: {error}")
        return self.send(made, request)

    def send(self, made: HttpRequest, request: Request) -> DeliveryResult:
        """Send what `request_of` made; returns what became of it."""
        assert self._transport is not None, "open() first"
        reply = self._transport.send(made)
        return self.classify_answer(reply, request) if isinstance(reply, HttpResponse) else reply

    def fetch(self, made: HttpRequest) -> HttpResponse | None:
        """Send something that is no records; None without an answer."""
        assert self._transport is not None, "open() first"
        reply = self._transport.send(made)
        return reply if isinstance(reply, HttpResponse) else None

    @override
    def show(self, request: Request) -> Preview:
        made = self.request_of(request, 1)
        secrets = dict.fromkeys(made.secrets, HIDDEN)
        headers = {**made.headers, **encoding_of(made.compression), **secrets}
        return Preview(
            f"{made.method} {self.address}{self.shown_path(made.path)}",
            len(request.items),
            made.body.decode(errors="replace"),
            tuple(sorted(headers.items())),
        )

    def path(self, below: str = "") -> str:
        """The path of the configured URL, with something below it."""
        parts = str(self._config.url).split("/", 3)
        own = "/" + (parts[3] if len(parts) > 3 else "")
        before, question, query = own.partition("?")
        return f"{before.rstrip('/')}{below}{question}{query}" if below else own

    def shown_path(self, path: str) -> str:
        """A path for people: what the configured URL's query says may be a key."""
        query = str(self._config.url).partition("?")[2]
        return path.replace(f"?{query}", f"?{hidden_query(query)}", 1) if query else path

    def query(self, path: str, query: str) -> str:
        """A path with (more of) a query."""
        return f"{path}{'&' if '?' in path else '?'}{query}"

    def own_headers(self) -> dict[str, str]:
        """Return the headers of the job file; their values are secrets.

        Raises:
            OSError: A secret cannot be read.
        """
        return revealed(self._config.headers)


def revealed(headers: Mapping[str, Secret]) -> dict[str, str]:
    """Headers with their values, which HTTP has no blanks or line breaks around.

    Raises:
        OSError: A secret cannot be read.
    """
    return {name: value.read() for name, value in headers.items()}
