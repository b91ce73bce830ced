"""What a publisher sends, and what the answer means. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from penstock.logd.acks import Nack, PubAck, decode_ack, decode_batch_ack
from penstock.logd.batch import SCHEMA_VERSION
from penstock.logd.core.publish_options import EXPECTED_STREAM
from penstock.logd.envelope import BatchPayload, encode_batch
from penstock.logd.errors import CorruptError, LogdError, RefusedError, UnavailableError

_SPACE: Final = frozenset(" \t\r\n\0")
_LINE_ENDS: Final = frozenset("\r\n")

_RESYNC: Final = (Nack.SEQUENCE_GAP, Nack.UNKNOWN_PRODUCER)


class PublishRefusedError(RefusedError):
    """Logd answered that it does not store a message; `code` is the name of the `nack`.

    Attributes:
        nack: Why.
        stream: Which stream says so.
    """

    def __init__(self, ack: PubAck) -> None:
        assert ack.nack is not None
        self.nack = ack.nack
        self.stream = ack.stream
        super().__init__(ack.nack.name, f"stream {ack.stream!r}: {ack.description}")


@dataclass(frozen=True, slots=True)
class Again:
    """Send it again later.

    Attributes:
        error: To raise when there is no time left.
        last_sequence: The producer's last sequence that is stored, where the answer says it.
    """

    error: LogdError
    last_sequence: int | None = None


class Outgoing(Protocol):
    """A message on its way; sent again it is the same to logd."""

    @property
    def subject(self) -> str:
        """The NATS subject."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """The NATS headers."""
        ...

    def payload(self) -> bytes:
        """The NATS payload."""
        ...

    def read(self, data: bytes) -> PubAck | Again:
        """What an answer means.

        Raises:
            PublishRefusedError: It will never be stored.
        """
        ...

    def after(self, again: Again) -> "Outgoing":
        """What to send next."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A plain message; its headers have a message id."""

    subject: str
    value: bytes
    headers: dict[str, str]

    def payload(self) -> bytes:
        """The value."""
        return self.value

    def read(self, data: bytes) -> PubAck | Again:
        """What an answer means; see `Outgoing`."""
        return _judge(decode_ack, data, 1, self.headers)

    def after(self, again: Again) -> "Plain":
        """The same."""
        del again
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Batched:
    """A batch with a producer's sequence."""

    subject: str
    body: bytes
    count: int
    producer_id: bytes
    previous: int
    sequence: int
    headers: dict[str, str] = field(default_factory=dict)

    def payload(self) -> bytes:
        """The envelope."""
        return encode_batch(
            BatchPayload(
                schema_version=SCHEMA_VERSION,
                record_count=self.count,
                producer_id=self.producer_id,
                previous_sequence=self.previous,
                sequence=self.sequence,
                body=self.body,
            )
        )

    def read(self, data: bytes) -> PubAck | Again:
        """What an answer means; see `Outgoing`."""
        return _judge(decode_batch_ack, data, self.count, self.headers)

    def numbered(self, previous: int) -> "Batched":
        """Behind the batch with this sequence."""
        return replace(self, previous=previous, sequence=previous + 1)

    def after(self, again: Again) -> "Batched":
        """Behind what is stored; called when every batch before this one is settled."""
        last = again.last_sequence
        return self if last is None or last >= self.sequence else replace(self, previous=last)


def plain_headers(
    message_id: str, *, key: bytes | None, tombstone: bool, extra: dict[str, str]
) -> dict[str, str]:
    """The headers of a plain message.

    Raises:
        ValueError: The key cannot be written in a header: it is not UTF-8, or has line ends or
            white space around it. A batch takes any bytes.
    """
    headers = dict(extra) | {"Nats-Msg-Id": message_id}
    if key is not None:
        text = key.decode("utf-8", "replace")
        if text.encode() != key or text != text.strip() or set("\r\n") & set(text) or not text:
            msg = f"key {key[:40]!r} cannot stand in a NATS header; publish a batch"
            raise ValueError(msg)
        headers["Penstock-Key"] = text
    if tombstone:
        headers["Penstock-Tombstone"] = "true"
    return headers


def header_bytes(headers: Mapping[str, str]) -> int:
    """Bytes of headers as NATS sends them; 0 where there are none."""
    if not headers:
        return 0
    lines = (f"{name}: {value}\r\n" for name, value in headers.items())
    return len("NATS/1.0\r\n\r\n") + sum(len(line.encode()) for line in lines)


def check_sendable(subject: str, headers: Mapping[str, str]) -> None:
    """Check what NATS would refuse each time, or take for something else.

    Raises:
        ValueError: The subject has wildcards, empty tokens or white space; or a header has line
            ends, or a name that is none.
    """
    tokens = subject.split(".")
    if not all(tokens) or _SPACE & set(subject) or {"*", ">"} & set(tokens):
        msg = f"subject {subject!r} is none to publish on: a wildcard, empty token or white space"
        raise ValueError(msg)
    for name, value in headers.items():
        if not name or (_SPACE | {":"}) & set(name) or _LINE_ENDS & set(value):
            msg = f"header {name[:40]!r}: a name without white space or colon, a value of one line"
            raise ValueError(msg)


def _judge(
    decode: Callable[[bytes], PubAck], data: bytes, count: int, headers: Mapping[str, str]
) -> PubAck | Again:
    """What an answer means to a message of so many records, for the stream its headers name.

    Whoever else is on the subject may answer, too: only what says that this was stored counts.
    """
    try:
        ack = decode(data)
    except (CorruptError, ValueError):
        return Again(UnavailableError(f"the answer is not logd's: {data[:60]!r}"))
    if ack.nack is None:
        wanted = headers.get(EXPECTED_STREAM, ack.stream)
        if ack.stream != wanted or ack.count != count:
            what = f"{ack.count} records in stream {ack.stream!r}"
            text = f"the answer is about {what}, not about these {count} in {wanted!r}"
            return Again(UnavailableError(text))
        return ack
    error = PublishRefusedError(ack)
    if ack.nack in _RESYNC and ack.sequence is not None:
        return Again(error, ack.sequence)
    if ack.nack.retryable:
        return Again(error)
    raise error
