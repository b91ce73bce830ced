"""Clients of Liftbridge's API: one that sends bytes written by hand, and python-liftbridge."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from typing_extensions import override

from tests.support.logd import Logd
from tests.support.protobuf_bytes import decode, encode

ROOT = Path(__file__).resolve().parents[2]

LEADER, ALL, NONE = range(3)
NEW_ONLY, OFFSET, EARLIEST, LATEST, TIMESTAMP = range(5)
STOP_ON_CANCEL, STOP_OFFSET, STOP_LATEST, STOP_TIMESTAMP = range(4)

Fields = dict[int, list[Any]]


class LiftbridgeCalls(AbstractContextManager["LiftbridgeCalls"]):
    """Calls a server with messages that are fields by their numbers (`protobuf_bytes`).

    Args:
        address: Of the server.
        metadata: That goes with each call.
    """

    def __init__(self, address: str, metadata: Sequence[tuple[str, str]] = ()) -> None:
        # Windows stay small: what a slow subscriber has not taken is not read for it, either.
        self.channel = grpc.insecure_channel(address, options=(("grpc.http2.bdp_probe", 0),))
        self._metadata = tuple(metadata)

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.channel.close()

    def call(
        self, method: str, fields: Mapping[int, Any], *, timeout_s: float | None = 30
    ) -> Fields:
        """One answer."""
        call: Any = self.channel.unary_unary(f"/proto.API/{method}")
        answer: bytes = call(
            encode(fields), timeout=timeout_s, wait_for_ready=True, metadata=self._metadata
        )
        return decode(answer)

    def status(
        self, method: str, fields: Mapping[int, Any], *, timeout_s: float = 30
    ) -> grpc.StatusCode:
        """The status that a call is refused with."""
        try:
            self.call(method, fields, timeout_s=timeout_s)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def publish(self, stream: str, value: bytes, fields: Mapping[int, Any] | None = None) -> Fields:
        """Publish, and the ack."""
        answer = self.call("Publish", {2: value, 3: stream} | dict(fields or {}))
        return decode(answer[1][0])

    def publish_async(self, requests: Iterable[Mapping[int, Any]]) -> list[Fields]:
        """The answers to many publishes."""
        call: Any = self.channel.stream_stream("/proto.API/PublishAsync")
        answers = call(map(encode, requests), timeout=60, metadata=self._metadata)
        return [decode(answer) for answer in answers]

    def subscribe(self, stream: str, fields: Mapping[int, Any] | None = None) -> "Subscription":
        """A subscription that stands, of partition 0 unless the fields say otherwise."""
        call: Any = self.channel.unary_stream("/proto.API/Subscribe")
        asked = encode({1: stream} | dict(fields or {}))
        return Subscription(call(asked, timeout=60, metadata=self._metadata))


class Subscription:
    """What a subscriber is sent.

    Attributes:
        code: How it ended.
        details: Why.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self._messages = self._read()
        self._first: Fields | None = next(self._messages, None)

    @property
    def stands(self) -> bool:
        """Whether the first message came, which is empty."""
        return self._first == {}

    def take(self, count: int) -> list[Fields]:
        """So many messages."""
        return [next(self._messages) for _ in range(count)]

    def rest(self) -> list[Fields]:
        """All that come until the server ends it."""
        return list(self._messages)

    def cancel(self) -> None:
        """Have enough."""
        self._call.cancel()

    def _read(self) -> Iterator[Fields]:
        try:
            for message in self._call:
                yield decode(message)
        except grpc.RpcError as error:
            self.code, self.details = error.code(), error.details() or ""
        else:
            self.code = grpc.StatusCode.OK


def grpc_address(logd: Logd) -> str:
    """Where a running logd serves the API."""
    endpoints = json.loads((logd.data_dir / "endpoints.json").read_text())
    return str(endpoints["grpc"])


def values(messages: Iterable[Fields]) -> list[bytes]:
    """The values of messages."""
    return [message.get(3, [b""])[0] for message in messages]


def python_liftbridge() -> Path:
    """A Python that has python-liftbridge from the package index, in an environment of its own.

    It needs protobuf below 4, whose package for all Pythons is used; logd needs a later one.
    """
    directory = ROOT / ".work" / "python-liftbridge"
    directory.mkdir(parents=True, exist_ok=True)
    python, done = directory / "venv" / "bin" / "python", directory / "done"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            subprocess.run(
                [sys.executable, "-m", "venv", "--clear", str(python.parents[1])], check=True
            )
            wanted = ["python-liftbridge==0.0.7", "protobuf==3.20.3", "grpcio"]
            command = [str(python), "-m", "pip", "install", "--quiet", *wanted]
            subprocess.run([*command, "--disable-pip-version-check"], check=True, timeout=170)
            done.touch()
    return python


def run_python_liftbridge(program: str, address: str) -> list[str]:
    """Run a program that has all of python-liftbridge and a client `lift`; the lines it prints."""
    head = "import sys\nfrom python_liftbridge import *\nlift = Lift(sys.argv[1], timeout=20)\n"
    environment = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    done = subprocess.run(
        [str(python_liftbridge()), "-c", head + program, address],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
