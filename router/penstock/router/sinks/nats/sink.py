"""The NATS sink: records as messages on a subject, stored by JetStream or another logd.

Each message is a record's `value` as it lies in the log, with `Nats-Msg-Id` made of job, sink and
the record's position in the log, and its key as `Penstock-Key`; a tombstone is one again. A record
that comes again within the stream's window for duplicates (JetStream: 2 minutes unless the stream
says otherwise) is known by that id and not stored twice. `Nats-Expected-Stream` holds it to one
`stream` where that is named.

A request is as many messages as `batch` says, sent one after the other; then their answers are
waited for, one for each message, as both products send them (`penstock.logd.format.acks`). A
message that is too large for the stream goes to the dead letters; a stream that is full, busy or
away (429, 503, no responders) gets its messages again later, and no others. What it refuses with
400 for another reason is given up on evidence only: others must be stored meanwhile.

Spark's tasks publish, one for each partition of the log in a batch, so that messages of a partition
come in its order; with `max_in_flight` above 1 more tasks do, with so many connections each, in any
order.

With `acknowledge: false` only subscribers store messages: the server has them when the
request ends, and that is all that is known.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import compress
from typing import Annotated, Any, Final, Literal, NamedTuple

import orjson
from pydantic import Field
from typing_extensions import override

from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Fault,
    PartialFailure,
    Paused,
    Retryable,
    Success,
)
from penstock.router.job.config_errors import needed
from penstock.router.sinks.http.encode import cached, event_id, record_of, section
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import TaskRequestSettings, Tls
from penstock.router.sinks.http.task_sink import TaskRequestSink
from penstock.router.sinks.sink import Guarantee, Preview, Replay, SinkContext
from penstock.service.config_types import Form, Secret

_PART: Final = r"(?:[A-Za-z0-9_-]|\{(?:stream|kind|service|subject)\})+"
_FOREIGN_IN_TOKEN: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NO_SUBJECT: Final = re.compile(r"\s|^$")
_FOREIGN_IN_HEADER: Final = re.compile(r"[\x00-\x1f\x7f]")
_HEADER_BYTES: Final = len("NATS/1.0\r\n\r\n")
_HEADER_LINE_BYTES: Final = len(": \r\n")
_NO_FAULT: Final = Fault("", "")
NO_ANSWER: Final = "no_answer"
_DENIED: Final = "permissions violation"

_NEVER: Final = (10054, 10097, 20001, 20004)
"""Numbers of what is wrong with the message itself: its size, its headers' size, what they say."""

_EXPECTATIONS: Final = (10060, 10070, 10071)
"""Errors of an expectation that is not met: the settings' fault, no record's."""


class NatsSink(TaskRequestSettings):
    """Messages on a subject of NATS, acknowledged by the stream that stores them."""

    type: Literal["nats"]
    servers: Annotated[
        str,
        Form(
            r"^(nats|tls)://[^\s@]+$",
            "nats://HOST:PORT or tls://HOST:PORT, or several joined by commas alone; give a user"
            " by the key `user`",
        ),
    ] = "nats://127.0.0.1:4222"
    subject: Annotated[
        str,
        Form(
            rf"^{_PART}(?:\.{_PART})*$",
            "tokens joined by dots, of A-Z a-z 0-9 _ - and {stream} {kind} {service} {subject}",
        ),
    ]
    stream: str | None = None
    acknowledge: bool = True
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    credentials_file: str | None = None
    tls: Tls = Tls()
    max_in_flight: Annotated[int, Field(ge=1, le=64)] = 1

    @override
    def about(self) -> str:
        return f"messages on {self.subject} at {self.servers}; once within the stream's window"


class Message(NamedTuple):
    """One record on its way."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]


class Fate(Enum):
    """The outcome of one message."""

    STORED = auto()
    LATER = auto()
    NEVER = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A stream's answer; `duplicate` where it already had the message."""

    fate: Fate
    fault: Fault = _NO_FAULT
    duplicate: bool = False


class NatsSubject(TaskRequestSink):
    """Publishes records; see the module's docstring."""

    config_class = NatsSink
    _config: NatsSink
    guarantee = Guarantee(
        Replay.EFFECTIVELY_ONCE,
        "`Nats-Msg-Id` is the record's position in the log",
        within="the stream's window for duplicates",
    )

    def __init__(self, config: NatsSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self.address = config.servers
        connection = needed("penstock.router.sinks.nats.client", extra="nats")
        self._connection: Any = connection.Connection(config, f"{context.job}/{context.sink}")

    @override
    def close(self) -> None:
        self._connection.close()

    @override
    def encode(self, row: Row) -> Item | Fault:
        value: bytes = row["value"] or b""
        headers = {"Nats-Msg-Id": self._message_id(row)}
        if self._config.stream is not None:
            headers["Nats-Expected-Stream"] = self._config.stream
        key = _header_text(row.get("key"))
        if key is not None:
            headers["Penstock-Key"] = key
            if row["value"] is None:
                headers["Penstock-Tombstone"] = "true"
        elif row.get("key"):
            self.context.meter.count("keys_left_out")  # no header can hold it
        message = Message(self._subject(row), value, headers)
        return Item(message, len(value) + _size(headers))

    def _message_id(self, row: Row) -> str:
        return f"{self.context.job}/{self.context.sink}/{event_id(row, self.context)}"

    @override
    def place_of(self, row: Row) -> str | None:
        stream = f"stream {self._config.stream}, " if self._config.stream is not None else ""
        return f"{stream}subject {self._subject(row)}: Nats-Msg-Id {self._message_id(row)}"

    def _subject(self, row: Row) -> str:
        subject = self._config.subject
        if "{service}" in subject:
            service = section(record_of(row) or {}, "resource").get("service.name")
            subject = subject.replace("{service}", _token(service))
        subject = subject.replace("{stream}", _token(row["stream"]))
        subject = subject.replace("{kind}", _token(row["kind"]))
        return subject.replace("{subject}", _subject_of(row))

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        messages = [item.content for item in request.items]
        try:
            limit = self._connection.open()
        except ConnectionError as error:
            return Retryable(str(error))
        except OSError as error:  # it does not let us in, or a secret cannot be read
            return Paused(str(error))
        fits = [_size(it.headers) + len(it.payload) <= limit for it in messages]
        answers, problem = self._connection.exchange([*compress(messages, fits)])
        came = iter(answers)
        too_large = Outcome(
            Fate.NEVER,
            Fault(
                "nats_max_payload",
                f"NATS takes messages of at most {limit} bytes",
                about_record=True,
            ),
        )
        outcomes = [next(came) if fitting else too_large for fitting in fits]
        self.context.meter.count("already_there", sum(it.duplicate for it in outcomes))
        return classify_outcomes(outcomes, problem)

    @override
    def show(self, request: Request) -> Preview:
        lines = "\n".join(
            f"{it.content.subject} {it.content.payload.decode(errors='replace')}"
            for it in request.items
        )
        subjects = Counter(it.content.subject for it in request.items)
        target = f"PUB {', '.join(sorted(subjects)[:5])} at {self.address}"
        return Preview(target, len(request.items), lines)


def read_answer(data: bytes) -> Outcome:
    """Read a stream's answer to its message; those of JetStream and logd are alike."""
    try:
        said = orjson.loads(data)
        if "error" not in said:
            return Outcome(Fate.STORED, duplicate=bool(said["stream"] and said.get("duplicate")))
        error = said["error"]
        code, number = int(error["code"]), int(error.get("err_code", 0))
        text = str(error.get("description", ""))[:200]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        text = f"the answer is none of a stream's: {data[:60]!r}"
        return Outcome(Fate.UNKNOWN, Fault("no_stream", text))
    fault = Fault(f"nats_{number or code}", f"{code} {number} {text}", code)
    if number in _NEVER:
        return Outcome(Fate.NEVER, fault)
    # A stream that is sealed says 400 as well, to every message: `delivery.core` tells the two.
    perhaps = code in (400, 500) and number not in _EXPECTATIONS
    return Outcome(Fate.UNKNOWN if perhaps else Fate.LATER, fault)


def classify_outcomes(outcomes: Sequence[Outcome], problem: str) -> DeliveryResult:
    """Return the result for a request's messages, each with its outcome.

    `problem` is an error of the connection, or of the server beside its answers.
    """
    of: dict[Fate, list[tuple[int, Fault]]] = {fate: [] for fate in Fate}
    for index, outcome in enumerate(outcomes):
        of[outcome.fate].append((index, outcome.fault))
    unknown, later = of[Fate.UNKNOWN], of[Fate.LATER]
    if len(of[Fate.STORED]) == len(outcomes):
        return Success()
    if later or of[Fate.STORED]:  # who answers others may answer these when they come again
        later = sorted((*later, *(it for it in unknown if it[1].code == NO_ANSWER)))
        unknown = [it for it in unknown if it[1].code != NO_ANSWER]
    reasons = sorted({fault.reason for _, fault in (*unknown, *later)})
    reason = "; ".join([problem] * bool(problem) + reasons[:3])
    if _DENIED in problem.lower():  # the server does not say which; nobody's answer is missing else
        later, unknown = later + unknown, []
    if len(unknown) == len(outcomes):
        return Failed(Fault(unknown[0][1].code, reason), answered=False)
    again = tuple(index for index, _ in later)
    return PartialFailure(tuple(of[Fate.NEVER]), tuple(unknown), again, reason)


def _subject_of(row: Row) -> str:
    """Return the record's own subject.

    Raises:
        ValueError: It is none: the row is a DataFrame's, or an edited dead letter's.
    """
    found: str = row["subject"]
    if _NO_SUBJECT.search(found):
        raise ValueError(f"{found[:100]!r} is no subject")
    return found


def _token(value: Any) -> str:
    """A value as one token of a subject."""
    return _fit_token(value) if isinstance(value, str) and value else "-"


@cached
def _fit_token(text: str) -> str:
    return _FOREIGN_IN_TOKEN.sub("_", text)[:100]


def _header_text(key: bytes | None) -> str | None:
    """A key as a header can hold it: logd reads no other."""
    if not key:
        return None
    text = key.decode("utf-8", "replace")
    fits = text.encode() == key and text == text.strip() and not _FOREIGN_IN_HEADER.search(text)
    return text if fits else None


def _size(headers: Mapping[str, str]) -> int:
    size = _HEADER_BYTES
    for name, text in headers.items():
        size += len(name) + len(text if text.isascii() else text.encode()) + _HEADER_LINE_BYTES
    return size
