"""A topic in librdkafka's mock cluster, for the suite of sinks that speak no HTTP."""

import atexit
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from typing_extensions import override

from tests.support import mock_kafka
from tests.support.certificates import Authority
from tests.support.mock_kafka import MockKafka
from tests.support.server_cases import ServerCase, Trouble
from tests.support.tls_door import TlsDoor

TRANSACTIONAL_ID_DENIED = 53
_FEW_REPLICAS = 19
_TOPIC_DENIED = 29
_UNKNOWN = -1
_COORDINATOR_LOADS = 14
_FINE = 0
_MANY = 1000


@cache
def running_kafka() -> MockKafka:
    """One for all tests of this process."""
    made = MockKafka()
    atexit.register(made.close)
    return made


class KafkaCase(ServerCase):
    """A topic, and one for the positions, which the mock makes for no administrator."""

    type = "kafka"
    mark = b"\x00\x1a\x00\x01"
    """Number and version of the request that ends a transaction."""
    code = "kafka_MSG_SIZE_TOO_LARGE"
    asks_again_itself = True

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.stand_behind(self.door.port)
        self.make_topic(self.run)
        self.make_topic(f"{self.run}.positions")

    @override
    def port(self) -> int:
        return running_kafka().port

    @override
    def keys(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": f"127.0.0.1:{self.door.port}",
            "topic": self.run,
            "positions_topic": f"{self.run}.positions",
            "max_message_bytes": 1500,
        }

    @override
    def stored(self) -> Counter[int]:
        return Counter(self.numbers())

    def numbers(self) -> list[int]:
        """The numbers of the records, in the topic's order."""
        bodies = (json.loads(it.value() or b"")["body"] for it in self.messages())
        return [int(body.split()[1]) for body in bodies]

    def messages(self) -> Iterator[Message]:
        """Everything in the topic that a reader of committed messages sees."""
        yield from messages(f"127.0.0.1:{self.door.port}", self.run)

    def make_topic(self, topic: str) -> None:
        """One partition."""
        running_kafka().make_topic(topic)

    def stand_behind(self, door_port: int) -> None:
        """Tell clients to connect there."""
        running_kafka().stand_behind(door_port)

    def refuse(self, request: int, *errors: int) -> Callable[[], None]:
        """Answer the next requests of a kind with these errors, one each; returns what heals it."""
        running_kafka().refuse(request, *errors)
        return partial(running_kafka().heal, request)

    def breaks_after(self, transactions: int) -> Callable[[], None]:
        """So many transactions are taken, and then none; returns what heals it."""
        # One asks for the partition of the records, and for that of the position.
        fine = [_FINE] * 2 * transactions
        return self.refuse(mock_kafka.ADD_PARTITIONS, *fine, *[_UNKNOWN] * _MANY)

    @contextmanager
    def encrypted(self, directory: Path) -> Iterator[tuple[int, Path]]:
        """A port with TLS, and the authority to trust there."""
        authority = Authority(directory)
        with TlsDoor(self.door.port, authority.sign("kafka", "IP:127.0.0.1")) as door:
            self.stand_behind(door.port)
            yield door.port, authority.cert
        self.stand_behind(self.door.port)

    @override
    def close(self) -> None:
        super().close()
        for request in (mock_kafka.PRODUCE, mock_kafka.ADD_PARTITIONS, mock_kafka.INIT_PRODUCER_ID):
            running_kafka().heal(request)

    @override
    def troubles(self) -> Mapping[str, Trouble]:
        return {
            "no answer": partial(self._refuses, mock_kafka.INIT_PRODUCER_ID, _COORDINATOR_LOADS),
            "no right": partial(self._refuses, mock_kafka.PRODUCE, _TOPIC_DENIED),
            "few replicas": partial(self._refuses, mock_kafka.PRODUCE, _FEW_REPLICAS),
            "unknown error": partial(self._refuses, mock_kafka.PRODUCE, _UNKNOWN),
        }

    def _refuses(self, request: int, error: int) -> Callable[[], None]:
        return self.refuse(request, *[error] * _MANY)

    @override
    def locked_out(self) -> tuple[dict[str, Any], Callable[[], None]]:
        """The mock knows no login: it has no right for our transactions instead."""
        return {}, self._refuses(mock_kafka.INIT_PRODUCER_ID, TRANSACTIONAL_ID_DENIED)


def messages(servers: str, topic: str) -> Iterator[Message]:
    """Everything in partition 0 of a topic that a reader of committed messages sees."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": "tests",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while (found := consumer.poll(30)) is not None:
            error = found.error()
            if error is not None and error.name() == "_PARTITION_EOF":
                return
            if error is not None:
                raise KafkaException(error)
            yield found
        raise AssertionError(f"{topic} has no end")
    finally:
        consumer.close()
