"""The Kafka sink's producers, one for each partition of the log that a process writes.

A producer that begins with the `transactional.id` of a partition ends the transaction that another
one has left open, and fences that one: it can commit nothing any more. So whatever process comes
last is the only one that writes a partition's records, and it reads how far the others came.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.router.sinks.kafka.positions import PositionsTopic, position_value
from penstock.router.sinks.kafka.producer import SILENT, PartitionProducer, Target, error_of
from penstock.router.sinks.kafka.sink import (
    Committed,
    KafkaSink,
    Message,
    Position,
    TroubleError,
)

_MS: Final = 1000
_TRANSACTION_MS_MIN: Final = 10_000
_SETUP_MS_MIN: Final = 1000
_CONNECTING_S: Final = 1.0
"""Maximum seconds to wait for a connection before the first transaction."""
HEAR_S: Final = 1.0
"""Seconds between two polls of producers that have nothing to do."""
_LINGER_MS: Final = 100
"""Batches go when they are full, or at the end of the request."""
MAX_PRODUCERS: Final = 8
"""Maximum producers of a process; each has threads and connections. The oldest one goes first."""

_VAGUE: Final = frozenset(
    {"_TIMED_OUT", "_MSG_TIMED_OUT", "_TIMED_OUT_QUEUE", "_ALL_BROKERS_DOWN", "_STATE"}
)
"""Errors that say less than what was said of the connection before."""

_UNTRUSTED: Final = "certificate verify failed"
"""Text of OpenSSL's error on a broker whose certificate is not trusted."""


class Connection:
    """A process's producers, made when they are needed and made again after trouble.

    Args:
        name: Name of job and sink, the same in each process of the sink, and unique.
        settings: More of librdkafka's settings, for producers.
        hear_s: Seconds between two polls of producers that have nothing to do.
        max_producers: Maximum producers that are kept.

    Attributes:
        said: Last message of librdkafka on the connection.
    """

    def __init__(
        self,
        config: KafkaSink,
        name: str,
        *,
        settings: Mapping[str, Any] = MappingProxyType({}),
        hear_s: float = HEAR_S,
        max_producers: int = MAX_PRODUCERS,
    ) -> None:
        self._more = dict(settings)
        self._hear_s = hear_s
        self._max_producers = max_producers
        self._config = config
        self._name = f"penstock.{name}"
        self._topic = PositionsTopic(config, self._name)
        self._committed = Committed()
        self._producers: OrderedDict[str, PartitionProducer] = OrderedDict()
        self.said: KafkaError | None = None
        self._in_use = threading.Lock()
        self._closed = threading.Event()
        self._closed.set()

    def committed(self) -> Committed:
        """Return the positions of all partitions, by the topic of positions.

        Raises:
            TroubleError: The topic cannot be read.
            OSError: The password's file cannot be read.
        """
        with self._in_use:
            self.said = None
            try:
                self._committed = self._topic.read_on(self._committed, self._settings())
            except (KafkaException, SystemError) as error:
                raise self._trouble(error) from None
            return self._committed

    def continue_after(self, committed: Committed) -> None:
        """Another process has read these positions; forget producers that have others."""
        with self._in_use:
            self._committed = committed
            for key, producer in [*self._producers.items()]:
                if producer.position != committed.positions.get(key):
                    self._forget(key)

    def position(self, partition_key: str) -> Position | None:
        """Return how far the last batch came in a partition; no other process has it any more.

        Raises:
            TroubleError: The partition cannot be had, or the topic of positions cannot be read.
            OSError: The password's file cannot be read.
        """
        with self._in_use:
            self.said = None
            if partition_key not in self._producers:
                while len(self._producers) >= self._max_producers:
                    self._forget(next(iter(self._producers)))
                self._producers[partition_key] = self._opened(partition_key)
                self._begin_listening()
            return self._producers[partition_key].position

    def send(
        self, messages: Sequence[Message], partition_key: str, behind: Position
    ) -> dict[int, TroubleError]:
        """Produce messages and the position behind them in one transaction, after `position`.

        Returns:
            Those that Kafka refuses; if there are any, nothing is there.

        Raises:
            TroubleError: Nothing is there, or nobody knows; then `position` will.
        """
        with self._in_use:
            producer = self._producers[partition_key]
            try:
                return producer.send(messages, position_value(behind), behind)
            except (KafkaException, SystemError) as error:
                raise self._trouble(error) from None
            finally:
                if producer.is_over:
                    self._forget(partition_key)

    def end_transactions(self, partition_keys: Iterable[str]) -> None:
        """End those that other processes have open, as far as that can be done now.

        Until all are ended nobody reads the positions of any: of killed tasks they would be open
        until they time out.
        """
        with self._in_use, suppress(OSError, TroubleError):
            for key in partition_keys:
                if key not in self._producers:
                    self._begun(key).close()

    def release(self) -> None:
        """Forget the producers: other processes write the partitions now."""
        with self._in_use:
            for key in [*self._producers]:
                self._forget(key)

    def close(self) -> None:
        """Forget everything; a transaction that is open ends when the next producer begins."""
        self.release()
        self._closed.set()
        with self._in_use:
            self._topic.close()

    def _forget(self, partition_key: str) -> None:
        self._producers.pop(partition_key).close()

    def _opened(self, partition_key: str) -> PartitionProducer:
        """Fence other producers of the partition, end their transactions, read the positions."""
        made = self._begun(partition_key)
        try:
            self._committed = self._topic.read_on(self._committed, self._settings())
        except (KafkaException, SystemError) as error:
            made.close()
            raise self._trouble(error) from None
        except TroubleError:
            made.close()
            raise
        made.position = self._committed.positions.get(partition_key)
        return made

    def _begun(self, partition_key: str) -> PartitionProducer:
        """Fence other producers of the partition, and end their transactions."""
        timeout_s = self._config.timeout_s
        own = self._transactional(partition_key)
        key = self._topic.key(partition_key)
        target = Target(self._config.topic, self._topic.name, key, timeout_s)
        try:
            producer = Producer({**self._settings(), **own, **self._more}, logger=SILENT)
        except KafkaException as error:
            raise self._trouble(error) from None
        made = PartitionProducer(producer, target, None, self._note)
        self._connect(producer)
        try:
            producer.init_transactions(timeout_s)
            _check_topic(producer.list_topics(self._config.topic, timeout_s))
        except (KafkaException, SystemError) as error:
            made.listen()
            made.close()
            raise self._trouble(error) from None
        return made

    def _connect(self, producer: Producer) -> None:
        """Have a producer connected, if that can be soon: its first transaction says what is wrong.

        librdkafka asks who coordinates transactions, and for an id, only half a second later if it
        has no connection when it wants to.
        """
        with suppress(KafkaException):
            for _ in range(2):  # at an address of `bootstrap_servers`, and at that of the broker
                producer.list_topics(self._config.topic, _CONNECTING_S)

    def _begin_listening(self) -> None:
        if self._closed.is_set():
            self._closed = threading.Event()
            threading.Thread(
                target=self._listen, args=(self._closed,), name="penstock-kafka-sink", daemon=True
            ).start()

    def _listen(self, closed: threading.Event) -> None:
        """Let producers say what they have to say: while no batch comes that would pile up."""
        while not closed.wait(self._hear_s):
            if self._in_use.acquire(blocking=False):
                try:
                    for producer in self._producers.values():
                        producer.listen()
                finally:
                    self._in_use.release()

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

    def _transactional(self, partition_key: str) -> dict[str, Any]:
        timeout_ms = int(self._config.timeout_s * _MS)
        return {
            "transactional.id": f"{self._name}/{partition_key}",
            "transaction.timeout.ms": max(3 * timeout_ms, _TRANSACTION_MS_MIN),
            "message.timeout.ms": timeout_ms,
            "message.max.bytes": self._config.max_message_bytes,
            "linger.ms": _LINGER_MS,
            "compression.type": self._config.compression,
            "topic.metadata.propagation.max.ms": timeout_ms // 2,
        }

    def _note(self, error: KafkaError) -> None:
        """Note why there is no connection: that says more than that time is up."""
        if self.said is None or self.said.name() in _VAGUE:
            self.said = error

    def _trouble(self, error: BaseException) -> TroubleError:
        found = error_of(error)
        if found.name() in _VAGUE and self.said is not None:
            found = self.said
        name, text = found.name(), found.str()
        # librdkafka says _TRANSPORT of it at some moments, and of any connection that breaks.
        return TroubleError("_SSL" if _UNTRUSTED in text else name, text)


def _check_topic(found: Any) -> None:
    """Raise what is wrong with the only topic."""
    (topic,) = found.topics.values()
    if topic.error is not None:
        raise KafkaException(topic.error)
