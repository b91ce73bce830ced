"""The Kafka sink's producer, and the topic in which its positions are."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import Any, Final

import orjson
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.router.sinks.kafka.sink import (
    TOO_LARGE,
    UNFIT,
    KafkaSink,
    Message,
    Position,
    TroubleError,
)

_MS: Final = 1000
_TRANSACTION_MS_MIN: Final = 10_000
_SETUP_MS_MIN: Final = 1000
_FETCH_WAIT_MS: Final = 10
HEAR_S: Final = 1.0
"""Seconds between two polls of a producer that has nothing to do."""
_FLUSH_S: Final = 0.05
"""Seconds after which a lost connection is seen while messages are in flight."""
_ABORT_S: Final = 0.5
_LINGER_MS: Final = 100
"""Batches go when they are full, or at the end of the request."""
_POSITIONS_SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""Segment bytes of the compacted topic of positions, which a sink reads at its start.

Small segments leave little that is not compacted.
"""

_VAGUE: Final = frozenset(
    {"_TIMED_OUT", "_MSG_TIMED_OUT", "_TIMED_OUT_QUEUE", "_ALL_BROKERS_DOWN", "_STATE"}
)
"""Errors that say less than what was said of the connection before."""

_UNTRUSTED: Final = "certificate verify failed"
"""Text of OpenSSL's error on a broker whose certificate is not trusted."""

_SILENT: Final = logging.Logger("penstock.kafka")  # noqa: LOG001 - nobody's child: it says nothing
_SILENT.addHandler(logging.NullHandler())
"""librdkafka writes to stderr what it also tells us."""


class Connection:
    """A transactional producer, made when it is needed and made again after trouble.

    Args:
        config: Address and credentials.
        name: Name of job and sink, the same in each process of the sink, and unique.
        producer: One that is there already.
        settings: More of librdkafka's settings, for the producer.
        hear_s: Seconds between two polls of a producer that has nothing to do.

    Attributes:
        said: Last message of librdkafka on the connection.
    """

    def __init__(
        self,
        config: KafkaSink,
        name: str,
        *,
        producer: Producer | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
        hear_s: float = HEAR_S,
    ) -> None:
        self._more = dict(settings)
        self._hear_s = hear_s
        self._config = config
        self._name = f"penstock.{name}"
        self._positions_topic = config.positions_topic or f"{self._name}.positions"
        self._producer = producer
        self._positions: dict[str, Position] = {}
        self.said: KafkaError | None = None
        self._in_use = threading.Lock()
        self._closed = threading.Event()

    def position(self, partition_key: str) -> Position | None:
        """Return how far the last batch came in a partition, by the topic of positions.

        Raises:
            TroubleError: The topic cannot be read.
            OSError: The password's file cannot be read.
        """
        with self._in_use:
            self.said = None
            if self._producer is None:
                self._open()
            return self._positions.get(partition_key)

    def send(
        self, messages: Sequence[Message], partition_key: str, behind: Position
    ) -> dict[int, TroubleError]:
        """Produce messages and the position behind them in one transaction.

        Returns:
            Those that Kafka refuses; if there are any, nothing is there.

        Raises:
            TroubleError: Nothing is there, or nobody knows; then `position` will.
        """
        with self._in_use:
            try:
                refused = self._transact(messages, partition_key, behind)
            except (KafkaException, SystemError) as error:
                self._abort(requires=_error(error).txn_requires_abort())
                raise self._trouble(error) from None
            if refused:
                self._abort(requires=True)
            else:
                self._positions[partition_key] = behind
            return refused

    def close(self) -> None:
        """Forget the producer; a transaction that is open ends when the next one begins."""
        with self._in_use:
            self._forget()

    def _forget(self) -> None:
        self._closed.set()
        if self._producer is not None:
            self._producer.purge()
        self._producer = None
        self._positions = {}

    def _transact(
        self, messages: Sequence[Message], partition_key: str, behind: Position
    ) -> dict[int, TroubleError]:
        assert self._producer is not None, "position() first"
        self._producer.begin_transaction()
        lost: dict[int, TroubleError] = {}
        for number, message in enumerate(messages):
            about = {"headers": list(message.headers), "timestamp": message.time_ms}
            self._produce(
                self._config.topic, message.value, message.key, _note(lost, number), **about
            )
        self._flush(lost)
        refused = {it: why for it, why in lost.items() if why.name in TOO_LARGE | UNFIT}
        if refused:
            return refused
        if not lost:
            value = {"first": behind.first, "end": behind.end, "digest": behind.digest}
            key = f"{self._name}/{partition_key}".encode()
            self._produce(self._positions_topic, orjson.dumps(value), key, None, partition=0)
        # What is lost for another reason makes this fail, and say for which.
        self._producer.commit_transaction(self._config.timeout_s)
        return {}

    def _flush(self, lost: Mapping[int, TroubleError]) -> None:
        """Wait until all is there or something is lost: librdkafka keeps what is behind that."""
        assert self._producer is not None
        for _ in range(ceil(self._config.timeout_s / _FLUSH_S)):
            if not self._producer.flush(_FLUSH_S) or lost:
                return

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        note: Callable[[KafkaError | None, Any], None] | None,
        **about: Any,
    ) -> None:
        assert self._producer is not None
        report = note or _ignore
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=report, **about)
            except BufferError:  # its queue is full: wait until something has gone
                self._producer.poll(0.1)
            except KafkaException as error:
                if note is None or _error(error).name() not in TOO_LARGE:
                    raise
                note(_error(error), None)
                return
            else:
                return

    def _abort(self, *, requires: bool) -> None:
        """End the transaction, or else the producer: the next one ends it."""
        assert self._producer is not None
        if requires:
            try:
                self._abort_in_turns(self._producer)
            except (KafkaException, SystemError) as error:
                self.said = self.said or _error(error)
            else:
                return
        self._forget()

    def _abort_in_turns(self, producer: Producer) -> None:
        """Abort; librdkafka drops what waits and then waits for answers, which make more wait."""
        for left in reversed(range(ceil(self._config.timeout_s / _ABORT_S))):
            try:
                producer.abort_transaction(_ABORT_S)
            except KafkaException as error:
                if not (left and _error(error).retriable()):
                    raise
            else:
                return

    def _open(self) -> None:
        timeout_s = self._config.timeout_s
        shared = self._settings()
        try:
            self._producer = Producer(
                {**shared, **self._transactional(), **self._more}, logger=_SILENT
            )
            self._producer.init_transactions(timeout_s)
            _see_topic(self._producer.list_topics(self._config.topic, timeout_s))
            self._positions = self._read_positions(shared)
        except (KafkaException, SystemError) as error:
            self._listen()
            self._forget()
            raise self._trouble(error) from None
        except TroubleError:
            self._forget()
            raise
        self._closed = threading.Event()
        threading.Thread(
            target=self._hear, args=(self._closed,), name="penstock-kafka-sink", daemon=True
        ).start()

    def _hear(self, closed: threading.Event) -> None:
        """Let the producer say what it has to say: while no batch comes that would pile up."""
        while not closed.wait(self._hear_s):
            if self._in_use.acquire(blocking=False):
                try:
                    if not closed.is_set():
                        self._listen()
                finally:
                    self._in_use.release()

    def _listen(self) -> None:
        """Hear what librdkafka has to say of the connection meanwhile."""
        if self._producer is not None:
            try:
                self._producer.poll(0)
            except (KafkaException, SystemError) as error:
                self.said = _error(error)

    def _read_positions(self, shared: dict[str, Any]) -> dict[str, Position]:
        """Return the committed positions; the producer has ended all our transactions before."""
        topic, timeout_s = self._positions_topic, self._config.timeout_s
        own = f"{self._name}/"
        found: dict[str, Position] = {}
        reading = {
            "group.id": self._name,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
        }
        consumer = Consumer({**shared, **reading}, logger=_SILENT)
        try:
            self._see_to_topic(consumer, shared)
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(timeout_s)
                if message is None:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"reading {topic}"))  # noqa: SLF001 - its name
                error = message.error()
                if error is not None and error.name() == "_PARTITION_EOF":
                    return found
                if error is not None:
                    raise KafkaException(error)
                key = (message.key() or b"").decode(errors="replace")
                position = read_position(message.value() or b"")
                if not key.startswith(own) or position is None:
                    raise TroubleError("_INVALID_ARG", f"{topic} is not this sink's alone: {key}")
                found[key.removeprefix(own)] = position
        finally:
            consumer.close()

    def _see_to_topic(self, consumer: Consumer, shared: dict[str, Any]) -> None:
        """Make the topic of positions where there is none."""
        topic, timeout_s = self._positions_topic, self._config.timeout_s
        error = consumer.list_topics(topic, timeout_s).topics[topic].error
        if error is None:
            return
        if error.name() != "UNKNOWN_TOPIC_OR_PART" or not self._config.create:
            raise KafkaException(error)
        compacted = {
            "cleanup.policy": "compact",
            "segment.bytes": str(_POSITIONS_SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0.01",
        }
        admin = AdminClient(shared, logger=_SILENT)
        made = admin.create_topics(
            [NewTopic(topic, 1, config=compacted)], request_timeout=timeout_s
        )
        try:
            made[topic].result(timeout_s)
        except TimeoutError:
            raise TroubleError("_TIMED_OUT", f"making the topic {topic}") from None
        except KafkaException as refusal:
            if _error(refusal).name() != "TOPIC_ALREADY_EXISTS":
                raise

    def _settings(self) -> dict[str, Any]:
        """Return the settings that producer, consumer and administrator share."""
        config = self._config
        found: dict[str, Any] = {
            "bootstrap.servers": config.bootstrap_servers,
            "client.id": self._name,
            "error_cb": self._note,
            "reconnect.backoff.max.ms": _SETUP_MS_MIN,
            "socket.connection.setup.timeout.ms": max(int(config.timeout_s * _MS), _SETUP_MS_MIN),
            "security.protocol": config.security_protocol,
        }
        if config.security_protocol.endswith("ssl"):
            files = {
                "ssl.ca.location": config.tls.ca_file,
                "ssl.certificate.location": config.tls.cert_file,
                "ssl.key.location": config.tls.key_file or config.tls.cert_file,
            }
            found |= {name: str(path) for name, path in files.items() if path is not None}
        if config.password is not None:
            found |= {
                "sasl.mechanism": config.sasl_mechanism,
                "sasl.username": config.user,
                "sasl.password": config.password.read(),
            }
        return found

    def _transactional(self) -> dict[str, Any]:
        timeout_ms = int(self._config.timeout_s * _MS)
        return {
            "transactional.id": self._name,
            "transaction.timeout.ms": max(3 * timeout_ms, _TRANSACTION_MS_MIN),
            "message.timeout.ms": timeout_ms,
            "message.max.bytes": self._config.max_message_bytes,
            "linger.ms": _LINGER_MS,
            "compression.type": self._config.compression,
            "topic.metadata.propagation.max.ms": timeout_ms // 2,
        }

    def _note(self, error: KafkaError) -> None:
        """Why there is no connection: that says more than that time is up."""
        if self.said is None or self.said.name() in _VAGUE:
            self.said = error

    def _trouble(self, error: BaseException) -> TroubleError:
        found = _error(error)
        if found.name() in _VAGUE and self.said is not None:
            found = self.said
        name, text = found.name(), found.str()
        # librdkafka says _TRANSPORT of it at some moments, and of any connection that breaks.
        return TroubleError("_SSL" if _UNTRUSTED in text else name, text)


def read_position(value: bytes) -> Position | None:
    """A position as we write it; None for what somebody else wrote."""
    try:
        match orjson.loads(value):
            case {"first": int(first), "end": int(end), "digest": str(digest), **others}:
                return None if others else Position(first, end, digest)
            case _:
                return None
    except orjson.JSONDecodeError:
        return None


def _error(error: BaseException) -> KafkaError:
    """Return librdkafka's error, which Python wraps if a callback follows a fatal one."""
    inner = error.__cause__ if isinstance(error, SystemError) else error
    assert isinstance(inner, KafkaException), error
    found: KafkaError = inner.args[0]
    return found


def _note(lost: dict[int, TroubleError], number: int) -> Callable[[KafkaError | None, Any], None]:
    def note(error: KafkaError | None, message: Any) -> None:  # noqa: ARG001 - librdkafka's shape
        if error is not None:
            lost[number] = TroubleError(error.name(), error.str())

    return note


def _see_topic(found: Any) -> None:
    """Raise what is wrong with the only topic."""
    (topic,) = found.topics.values()
    if topic.error is not None:
        raise KafkaException(topic.error)


def _ignore(error: KafkaError | None, message: Any) -> None:
    """Ignore the delivery report of a position: the commit tells."""
