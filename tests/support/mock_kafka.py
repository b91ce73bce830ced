"""A Kafka cluster of one broker, librdkafka's own mock, in a process of its own.

It takes what a producer and a consumer say over TCP, with transactions' requests; it makes topics
as they are asked for, keeps what an aborted transaction wrote in sight, and knows
no TLS and no login. `python -m tests.support.mock_kafka` starts it; it prints its port and obeys
lines of JSON.
"""

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import confluent_kafka

PRODUCE: Final = 0
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS: Final = 24
END_TXN: Final = 26
TXN_OFFSET_COMMIT: Final = 28
"""Numbers of Kafka's requests."""


class MockKafka:
    """A running cluster."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.support.mock_kafka"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.port = int(self._line())

    def stand_behind(self, door_port: int) -> None:
        """Tell clients to connect there."""
        self._tell("door", door_port)

    def make_topic(self, topic: str) -> None:
        """One partition."""
        self._tell("make", topic)

    def refuse(self, request: int, *errors: int) -> None:
        """Answer the next requests of a kind with these errors, one each."""
        self._tell("refuse", request, *errors)

    def heal(self, request: int) -> None:
        """Forget the errors that were not said yet."""
        self._tell("heal", request)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _tell(self, *words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        assert self._line() == "done"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class Cluster:
    """The mock itself, by librdkafka's C functions (rdkafka_mock.h)."""

    def __init__(self) -> None:
        (path,) = Path(confluent_kafka.__file__).parent.parent.glob(
            "confluent_kafka.libs/librdkafka-*.so*"
        )
        self._library: Any = ctypes.CDLL(str(path))
        for name in ("conf_new", "new", "mock_cluster_new"):
            getattr(self._library, f"rd_kafka_{name}").restype = ctypes.c_void_p
        self._library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        errors = ctypes.create_string_buffer(512)
        settings = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        handle = self._library.rd_kafka_new(0, settings, errors, len(errors))
        self._cluster = ctypes.c_void_p(
            self._library.rd_kafka_mock_cluster_new(ctypes.c_void_p(handle), 1)
        )
        addresses: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.port = int(addresses.decode().rpartition(":")[2])

    def obey(self, verb: str, *words: Any) -> None:
        """Do what a line says."""
        match verb, words:
            case "door", (port,):
                self._library.rd_kafka_mock_broker_set_host_port(
                    self._cluster, 1, b"127.0.0.1", ctypes.c_int32(port)
                )
            case "make", (topic,):
                self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), 1, 1)
            case "refuse", (request, *errors):
                kinds = (ctypes.c_int * len(errors))(*errors)
                self._library.rd_kafka_mock_push_request_errors_array(
                    self._cluster, ctypes.c_int16(request), ctypes.c_size_t(len(errors)), kinds
                )
            case "heal", (request,):
                self._library.rd_kafka_mock_clear_request_errors(
                    self._cluster, ctypes.c_int16(request)
                )
            case _:
                raise ValueError(verb)


def main() -> None:
    """Run a cluster until the input ends."""
    cluster = Cluster()
    print(cluster.port, flush=True)  # noqa: T201 - to the parent
    for line in sys.stdin:
        cluster.obey(*json.loads(line))
        print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
