"""The topic of positions: how far each partition of the log has come.

The topic is compacted and has one partition. A message of it is part of the transaction whose end
it notes, so a reader of committed messages sees no position of a transaction that was aborted.

    key      penstock.JOB.SINK/logs.5f2c19aa/0
    value    {"first": 0, "end": 500, "digest": "9f86d081884c7d65", "passed_over": "4"}

`passed_over`, a number in hexadecimal, is there only where it is not 0.

Partitions of the log have transactions of their own, side by side. An open one hides what others
have committed behind it, in this topic, too. So a reader asks where the topic ends before it reads,
and waits until all before that end is committed or aborted. The broker ends what nobody ends after
`transaction.timeout.ms`.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.router.sinks.kafka.producer import SILENT, error_of
from penstock.router.sinks.kafka.sink import Committed, KafkaSink, Position, TroubleError

_FETCH_WAIT_MS: Final = 10
_SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""Segment bytes of the topic, which a sink reads at its start.

Small segments leave little that is not compacted.
"""


class PositionsTopic:
    """The positions of one sink.

    Its two consumers stay open between reads, because a new one has to connect first. One sees the
    topic's end with open transactions, the other one what is committed.

    Args:
        name: Name of job and sink; keys begin with it.
    """

    def __init__(self, config: KafkaSink, name: str) -> None:
        self.name = config.positions_topic or f"{name}.positions"
        self._config = config
        self._group = name
        self._own = f"{name}/"
        self._settings: Mapping[str, Any] = {}
        self._consumers: dict[str, Consumer] = {}

    def key(self, partition_key: str) -> bytes:
        return f"{self._own}{partition_key}".encode()

    def read_on(self, known: Committed, settings: Mapping[str, Any]) -> Committed:
        """Return the positions that are committed now; those that are known were read before.

        Raises:
            TroubleError: The topic has messages of others, or a transaction stays open.
            KafkaException: The topic cannot be read.
        """
        if settings != self._settings:  # the password's file has another one
            self.close()
            self._settings = dict(settings)
        try:
            end = self._end()
            if end < known.next_offset:  # somebody has deleted the topic, and it is another one
                known = Committed()
            if end == known.next_offset:
                return known
            return Committed(dict(known.positions) | self._read(known.next_offset, end), end)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections; the next read makes others."""
        while self._consumers:
            self._consumers.popitem()[1].close()

    def _consumer(self, isolation: str) -> Consumer:
        """The consumer that sees all messages, or only committed ones."""
        found = self._consumers.get(isolation)
        if found is not None:
            return found
        reading = {
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
        }
        made = self._consumers[isolation] = Consumer({**self._settings, **reading}, logger=SILENT)
        return made

    def _read(self, begin: int, end: int) -> dict[str, Position]:
        """Read from `begin` until everything before `end` is committed or aborted."""
        consumer = self._consumer("read_committed")
        # By its number: librdkafka asks for OFFSET_BEGINNING only after half a second.
        consumer.assign([TopicPartition(self.name, 0, begin)])
        try:
            return self._read_to(consumer, end)
        finally:
            consumer.unassign()

    def _read_to(self, consumer: Consumer, end: int) -> dict[str, Position]:
        found: dict[str, Position] = {}
        while True:
            message = consumer.poll(self._config.timeout_s)
            if message is None:
                late = f"reading {self.name} up to {end}"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, late))  # noqa: SLF001 - its name
            error = message.error()
            if error is None:
                key, position = self._entry(message.key() or b"", message.value() or b"")
                found[key] = position
            elif error.name() != "_PARTITION_EOF":
                raise KafkaException(error)
            elif (message.offset() or 0) >= end:
                return found

    def _entry(self, key: bytes, value: bytes) -> tuple[str, Position]:
        named, position = key.decode(errors="replace"), read_position(value)
        if not named.startswith(self._own) or position is None:
            text = f"{self.name} is not this sink's alone: {named}"
            raise TroubleError("_INVALID_ARG", text)
        return named.removeprefix(self._own), position

    def _end(self) -> int:
        """Return the topic's end, behind transactions that are open; make it if there is none."""
        timeout_s = self._config.timeout_s
        consumer = self._consumer("read_uncommitted")  # it makes no topic
        missing = consumer.list_topics(self.name, timeout_s).topics[self.name].error
        if missing is None:
            place = TopicPartition(self.name, 0)
            ends = consumer.get_watermark_offsets(place, timeout_s, cached=False)
            if ends is None:
                raise TroubleError("_TIMED_OUT", f"where {self.name} ends")
            return int(ends[1])
        if missing.name() != "UNKNOWN_TOPIC_OR_PART" or not self._config.create:
            raise KafkaException(missing)
        self._make()
        return 0

    def _make(self) -> None:
        compacted = {
            "cleanup.policy": "compact",
            "segment.bytes": str(_SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0.01",
        }
        admin, timeout_s = AdminClient(dict(self._settings), logger=SILENT), self._config.timeout_s
        made = admin.create_topics(
            [NewTopic(self.name, 1, config=compacted)], request_timeout=timeout_s
        )
        try:
            made[self.name].result(timeout_s)
        except TimeoutError:
            raise TroubleError("_TIMED_OUT", f"making the topic {self.name}") from None
        except KafkaException as refusal:
            if error_of(refusal).name() != "TOPIC_ALREADY_EXISTS":
                raise


def read_position(value: bytes) -> Position | None:
    """A position as we write it; None for what somebody else wrote."""
    try:
        match orjson.loads(value):
            case {"first": int(first), "end": int(end), "digest": str(digest), **others}:
                passed_over = others.pop("passed_over", "0")
                if others or not isinstance(passed_over, str):
                    return None
                return Position(first, end, digest, int(passed_over, 16))
            case _:
                return None
    except ValueError:
        return None


def position_value(position: Position) -> bytes:
    """A position as `read_position` takes it."""
    found: dict[str, int | str] = {
        "first": position.first,
        "end": position.end,
        "digest": position.digest,
    }
    if position.passed_over:
        found["passed_over"] = f"{position.passed_over:x}"
    return orjson.dumps(found)
