"""The transactions of one partition of the log."""

import logging
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.router.sinks.kafka.sink import TOO_LARGE, UNFIT, Message, Position, TroubleError

_FLUSH_S: Final = 0.05
"""Seconds after which a lost connection is seen while messages are in flight."""
_ABORT_S: Final = 0.5

SILENT: Final = logging.Logger("penstock.kafka")  # noqa: LOG001 - nobody's child: it says nothing
SILENT.addHandler(logging.NullHandler())
"""librdkafka writes to stderr what it also tells us."""


class Target(NamedTuple):
    """Where a transaction writes.

    Attributes:
        positions_topic: Topic of the position behind them.
        timeout_s: Seconds for each of flushing, committing and aborting.
    """

    topic: str
    positions_topic: str
    position_key: bytes
    timeout_s: float


class PartitionProducer:
    """A producer with the `transactional.id` of one partition of the log.

    Args:
        producer: It has begun to produce in transactions, which ended those before.
        target: Where its transactions write.
        position: The position that was committed when it began.
        note: Gets errors that concern the connection, or an end of a transaction.

    Attributes:
        position: The position that is committed, as long as no other producer has its id.
        is_over: True if nothing more can be sent by it.
    """

    def __init__(
        self,
        producer: Producer,
        target: Target,
        position: Position | None,
        note: Callable[[KafkaError], None],
    ) -> None:
        self.position = position
        self.is_over = False
        self._note = note
        self._producer = producer
        self._target = target

    def send(
        self, messages: Sequence[Message], position_value: bytes, behind: Position
    ) -> dict[int, TroubleError]:
        """Produce messages and the position behind them in one transaction.

        Returns:
            Those that Kafka refuses; if there are any, nothing is there.

        Raises:
            KafkaException: Nothing is there, or nobody knows; `SystemError` around it likewise.
        """
        try:
            refused = self._transact(messages, position_value)
        except (KafkaException, SystemError) as error:
            self._abort(requires=error_of(error).txn_requires_abort())
            raise
        if refused:
            self._abort(requires=True)
        else:
            self.position = behind
        return refused

    def listen(self) -> None:
        """Let librdkafka say what it has to say of the connection."""
        try:
            self._producer.poll(0)
        except (KafkaException, SystemError) as error:
            self._note(error_of(error))

    def close(self) -> None:
        """Forget what waits; a transaction that is open ends when the next producer begins."""
        self.is_over = True
        self._producer.purge()

    def _transact(
        self, messages: Sequence[Message], position_value: bytes
    ) -> dict[int, TroubleError]:
        self._producer.begin_transaction()
        lost: dict[int, TroubleError] = {}
        for number, message in enumerate(messages):
            about = {"headers": list(message.headers), "timestamp": message.time_ms}
            self._produce(
                self._target.topic, message.value, message.key, _loss_of(lost, number), **about
            )
        self._flush(lost)
        refused = {it: why for it, why in lost.items() if why.name in TOO_LARGE | UNFIT}
        if refused:
            return refused
        if not lost:
            positions, key = self._target.positions_topic, self._target.position_key
            self._produce(positions, position_value, key, None, partition=0)
        # What is lost for another reason makes this fail, and say for which.
        self._producer.commit_transaction(self._target.timeout_s)
        return {}

    def _flush(self, lost: Mapping[int, TroubleError]) -> None:
        """Wait until all is there or something is lost: librdkafka keeps what is behind that."""
        for _ in range(ceil(self._target.timeout_s / _FLUSH_S)):
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
        report = note or _ignore
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=report, **about)
            except BufferError:  # its queue is full: wait until something has gone
                self._producer.poll(0.1)
            except KafkaException as error:
                if note is None or error_of(error).name() not in TOO_LARGE:
                    raise
                note(error_of(error), None)
                return
            else:
                return

    def _abort(self, *, requires: bool) -> None:
        """End the transaction, or else the producer: the next one ends it."""
        if requires:
            try:
                self._abort_in_turns()
            except (KafkaException, SystemError) as error:
                self._note(error_of(error))
            else:
                return
        self.close()

    def _abort_in_turns(self) -> None:
        """Abort; librdkafka drops what waits and then waits for answers, which make more wait."""
        for left in reversed(range(ceil(self._target.timeout_s / _ABORT_S))):
            try:
                self._producer.abort_transaction(_ABORT_S)
            except KafkaException as error:
                if not (left and error_of(error).retriable()):
                    raise
            else:
                return


def error_of(error: BaseException) -> KafkaError:
    """Return librdkafka's error, which Python wraps if a callback follows a fatal one."""
    inner = error.__cause__ if isinstance(error, SystemError) else error
    assert isinstance(inner, KafkaException), error
    found: KafkaError = inner.args[0]
    return found


def _loss_of(
    lost: dict[int, TroubleError], number: int
) -> Callable[[KafkaError | None, Any], None]:
    def note(error: KafkaError | None, message: Any) -> None:  # noqa: ARG001 - librdkafka's shape
        if error is not None:
            lost[number] = TroubleError(error.name(), error.str())

    return note


def _ignore(error: KafkaError | None, message: Any) -> None:
    """Ignore the delivery report of a position: the commit tells."""
