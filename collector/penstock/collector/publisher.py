"""The way to logd: one NATS connection, batches out as requests, acks back as events."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID, uuid5

import pyarrow as pa
import structlog
from nats.errors import Error, MaxPayloadError, NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from penstock.collector import failpoints
from penstock.collector.config import NatsSection
from penstock.collector.core.batch import Batch, LaneKey
from penstock.collector.core.delivery import Behind, Failed, Publish, Refused, Stored
from penstock.collector.limits import NATS_OVERHEAD_BYTES
from penstock.logd.acks import Nack, PubAck, decode_batch_ack
from penstock.logd.batch import SCHEMA, SCHEMA_VERSION, encode_body
from penstock.logd.envelope import BatchPayload, encode_batch
from penstock.logd.errors import CorruptError
from penstock.logd.publisher import connect_within, nats_client
from penstock.logd.security.tls import CertificateFiles, TlsFileError
from penstock.service import ConfigError, Span, Tracer, UnavailableError
from penstock.service.tracing import span_of, trace_of

Answer = Stored | Behind | Refused | Failed

_RESYNC: Final = (Nack.SEQUENCE_GAP, Nack.UNKNOWN_PRODUCER)
_LEAVE_POLL_S: Final = 0.05
_RECONNECT_WAIT_S: Final = 0.5
_PENDING_BYTES_MAX: Final = 32 * 1024 * 1024


class Publisher:
    """Sends batches and reads their acks.

    Args:
        incarnation: Made with the data directory; with a lane's key it makes a producer id, so that
            a new spool, whose offsets start again, is never taken for the old one, nor records that
            are sorted otherwise for those before. Another one holds from what is sent next.
        on_change: Called when the connection is lost or found.
        tracer: Has spans of batches from here to their acks; None: there are none.
    """

    def __init__(
        self,
        config: NatsSection,
        incarnation: UUID,
        on_change: Callable[[], None],
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._config = config
        self.incarnation = incarnation
        self._on_change = on_change
        self._client: Any = nats_client(encrypted=config.encrypted)
        self._log = structlog.get_logger()
        self._context: ssl.SSLContext | None = None
        self._last_error = ""
        self._unanswered = 0

    @property
    def is_connected(self) -> bool:
        """Whether a server can be reached now."""
        return bool(self._client.is_connected)

    @property
    def _address(self) -> str:
        """The URL for people, without credentials: the collector reads its own log."""
        scheme, separator, rest = self._config.url.partition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"

    async def connect(self, name: str, timeout_s: float) -> None:
        """Connect; from then on the connection is kept up for ever.

        Raises:
            UnavailableError: No server within the time.
        """
        config = self._config
        self._context = _context(config)
        tls = {} if self._context is None else {"tls": self._context}
        options: dict[str, Any] = {
            "servers": [config.url],
            "name": f"penstock-collector {name}",
            "user": config.user,
            "password": config.password.get_secret_value() if config.password else None,
            "token": config.token.get_secret_value() if config.token else None,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": _RECONNECT_WAIT_S,
            "pending_size": _PENDING_BYTES_MAX,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            **tls,
        }
        try:
            await connect_within(self._client, timeout_s, **options)
        except (TimeoutError, OSError, Error) as error:
            reason = self._last_error or str(error) or type(error).__name__
            raise UnavailableError(
                f"nats.url: no NATS server at {self._address} within {timeout_s:g} s: {reason}",
                fix="start the server, or correct the key `nats.url`",
            ) from None

    async def publish(self, effect: Publish) -> Answer:
        """Send one batch and wait for what logd says to it; never raises for what can happen."""
        if not self.is_connected:
            return Failed(effect.request, "nats_disconnected")
        span = None if self._tracer is None else self._begin_span(self._tracer, effect)
        answer = await self._publish(effect)
        if span is not None:
            _end_span(span, effect, answer)
        return answer

    def _begin_span(self, tracer: Tracer, effect: Publish) -> Span | None:
        """A span for a batch, if it is not one of Penstock's own spans."""
        if tracer.is_own(effect.lane.subject):
            return None
        producer = producer_id(self.incarnation, effect.lane)
        return tracer.start(
            "publish", kind="PRODUCER", trace_id=trace_of(producer, effect.batch.last)
        )

    async def _publish(self, effect: Publish) -> Answer:
        batch = effect.batch
        if batch.body is None:
            batch.body = encode_lines(effect.lane.subject, batch)
        data = encode_batch(
            BatchPayload(
                schema_version=SCHEMA_VERSION,
                record_count=len(batch),
                producer_id=producer_id(self.incarnation, effect.lane),
                previous_sequence=effect.previous,
                sequence=batch.last,
                body=batch.body,
            )
        )
        if len(data) > self._client.max_payload - NATS_OVERHEAD_BYTES:
            return Refused(effect.request, "nats_max_payload")
        return await self._request(effect.request, effect.lane.subject, data)

    async def _request(self, request: int, subject: str, data: bytes) -> Answer:
        failpoints.passed("publish_before_request")
        self._unanswered += 1
        try:
            reply = await self._client.request(subject, data, timeout=self._config.ack_timeout_s)
        except NoRespondersError:
            return Failed(request, "no_responders")
        except (NatsTimeoutError, TimeoutError):
            return Failed(request, "ack_timeout")
        except MaxPayloadError:
            return Refused(request, "nats_max_payload")
        except (Error, OSError) as error:
            return Failed(request, f"nats: {type(error).__name__}")
        finally:
            self._unanswered -= 1
        failpoints.passed("publish_after_ack")
        return read_answer(request, reply.data)

    async def leave(self) -> None:
        """Close the connection once what was sent is answered, or can be no more."""
        while self._unanswered:  # noqa: ASYNC110 - each has its timeout
            await asyncio.sleep(_LEAVE_POLL_S)
        await self.close()

    async def close(self) -> None:
        """Close the connection; what is unanswered stays unanswered."""
        if not self._client.is_closed:
            await self._client.close()

    async def _on_error(self, error: Exception) -> None:
        if str(error) != self._last_error:
            self._last_error = str(error)
            self._log.warning("nats error", error=str(error) or type(error).__name__)

    async def _on_disconnected(self) -> None:
        self._log.warning("nats disconnected", url=self._address)
        self._show_anew()
        self._on_change()

    def _show_anew(self) -> None:
        """Show the certificate as its files are now when the server is connected to again."""
        config = self._config
        if self._context is None or config.cert_file is None:
            return
        try:
            _context(config)  # the one in use is not touched by files that are unusable
            self._context.load_cert_chain(config.cert_file, config.key_file)
        except (ConfigError, OSError) as error:
            self._log.warning("the certificate cannot be read again", error=str(error))

    async def _on_reconnected(self) -> None:
        self._last_error = ""
        self._log.info("nats reconnected", url=self._address)
        self._on_change()


def _end_span(span: Span, effect: Publish, answer: Answer) -> None:
    error = ""
    if isinstance(answer, Stored):
        span.span_id = span_of(span.trace_id)  # a batch is stored once; logd's span refers to it
    else:
        error = "sequence" if isinstance(answer, Behind) else answer.reason
    batch = effect.batch
    span.end(
        error=error,
        messaging__destination__name=effect.lane.subject,
        messaging__batch__message_count=len(batch),
        messaging__message__body__size=len(batch.body or b""),
        penstock__source=effect.lane.source,
    )


def _context(config: NatsSection) -> ssl.SSLContext | None:
    """TLS by the configuration's files; None without any.

    Raises:
        ConfigError: One is not what it should be.
    """
    files = CertificateFiles(
        ca_file=config.ca_file, cert_file=config.cert_file, key_file=config.key_file
    )
    try:
        return files.client() if files.paths() else None
    except TlsFileError as error:
        raise ConfigError(f"nats.{error.key}: {error}", fix=error.fix) from None


def producer_id(incarnation: UUID, lane: LaneKey) -> bytes:
    """The identity under which logd counts a lane's sequences."""
    names = [lane.origin, lane.source, lane.subject]
    if lane.branch:
        names.append(str(lane.branch))
    return uuid5(incarnation, "\n".join(names)).bytes


def encode_lines(subject: str, batch: Batch) -> bytes:
    """A lane's batch as the log's Arrow body."""
    count = len(batch)
    types = {field.name: field.type for field in SCHEMA}
    columns = {
        "offset_delta": pa.array(range(count), types["offset_delta"]),
        "timestamp": pa.array(batch.timestamps, pa.int64()).cast(types["timestamp"]),
        "subject": pa.repeat(subject, count),
        "value": pa.array(batch.lines, types["value"]),
    }
    arrays = [columns.get(name, pa.nulls(count, type_)) for name, type_ in types.items()]
    return encode_body(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), compression="zstd")


def read_answer(request: int, data: bytes) -> Answer:
    """What a reply says of the request's batch."""
    try:
        ack = decode_batch_ack(data)
    except (CorruptError, ValueError):
        return Failed(request, "reply_is_not_from_logd")
    return _read_ack(request, ack)


def _read_ack(request: int, ack: PubAck) -> Answer:
    if ack.nack is None:
        return Stored(request)
    if ack.nack in _RESYNC and ack.sequence is not None:
        return Behind(request, ack.sequence)
    reason = ack.nack.name.lower()
    if ack.nack in (Nack.BAD_BATCH, Nack.MESSAGE_TOO_LARGE, Nack.BAD_HEADER):
        return Refused(request, f"{reason}: {ack.description}"[:200])
    return Failed(request, reason)
