"""A console on its own event loop, parts that say what a test wants, and a log in memory."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from msgspec import structs
from typing_extensions import override

from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.console.daemon import Console
from penstock.deploy.console.poller import NameResolver
from penstock.logd.client import (
    ClusterInfo,
    Fetched,
    NodeInfo,
    OffsetRange,
    PartitionInfo,
    StreamInfo,
)
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from tests.support.waiting import wait_until

READ, ACT = "a token for looking alone", "a token for acting"
NODES = ("logd-1", "logd-2", "logd-3")


def a_stage(name: str, received: int = 0, **more: Any) -> dict[str, Any]:
    """A stage through which everything went."""
    return {"name": name, "received": received, "sent": received, "lag": 0, "errors": 0,
            "detail": {}} | more  # fmt: skip


def a_status(component: str, name: str, *stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What a part that is well says of itself."""
    return {"component": component, "name": name, "version": "0.1.0", "health": "ready",
            "reasons": [], "stages": list(stages), "info": {}} | more  # fmt: skip


Said = tuple[int, dict[str, Any]]
"""A part's answer: status and document."""


class FakePart:
    """A part's admin endpoint: each answer is what `status` gives then.

    Attributes:
        posted: What it was asked to do: path, token, document.
        answers: What it says to that by `do`, with a status, or what makes it of the document; 404
            without any.
        silent: It takes connections and answers nothing while this is set.
    """

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self.posted: list[tuple[str, str, dict[str, Any]]] = []
        self.answers: dict[str, Said | Callable[[dict[str, Any]], Said]] = {}
        self.silent = threading.Event()
        self.goes_on = threading.Event()
        part = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if part.silent.is_set():
                    part.goes_on.wait(60)
                    return
                body = json.dumps(status()).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                part.posted.append((self.path, self.headers["Authorization"], document))
                said = part.answers.get(document.get("do", ""), (404, {"error": "no"}))
                status, answer = said(document) if callable(said) else said
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            @override
            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._server.server_close()


@dataclass
class FakeConsoleLog:
    """What a console uses of `AsyncLogClient`.

    Attributes:
        infos: The streams.
        records: Of streams that can be read; partition 0.
        modes: What was asked of streams.
        away: Nobody answers.
    """

    infos: list[StreamInfo] = field(default_factory=list)
    records: dict[str, list[Record]] = field(default_factory=dict)
    modes: list[tuple[str, bool | None, bool | None]] = field(default_factory=list)
    away: bool = False
    clustered: bool = True

    async def streams(self, *, internal: bool = False) -> list[StreamInfo]:
        self._check()
        return list(self.infos)

    async def cluster(self) -> ClusterInfo:
        nodes = tuple(NodeInfo(node=name, fetch="", admin="") for name in NODES)
        if not self.clustered:
            return ClusterInfo(cluster=None, controller=None, node="logd-1", nodes=())
        return ClusterInfo(cluster="test", controller="logd-1", node="logd-1", nodes=nodes)

    async def offsets(self, stream: str, partition: int = 0) -> OffsetRange:
        return OffsetRange(0, len(self._records(stream)))

    async def offset_for_timestamp(self, stream: str, timestamp_ns: int, partition: int = 0) -> int:
        older = [one for one in self._records(stream) if one.timestamp_ns < timestamp_ns]
        return len(older)

    async def fetch(
        self, stream: str, offset: int, *, partition: int, bytes_max: int, subject: str | None
    ) -> Fetched:
        records = self._records(stream)
        if offset > len(records):
            raise RefusedError("OUT_OF_RANGE", f"offset {offset} is beyond the end {len(records)}")
        frames = []
        if offset < len(records):
            batch = build_batch(records[offset:])
            body = encode_body(batch)
            header = structs.replace(describe_body(body, batch), base_offset=offset)
            frames.append((header, memoryview(body)))
        return Fetched(
            frames=frames, range=OffsetRange(0, len(records)),
            high_watermark=len(records) - 1, next_offset=len(records), epoch=1, incarnation="i",
        )  # fmt: skip

    async def set_stream_mode(
        self,
        name: str,
        *,
        paused: bool | None = None,
        read_only: bool | None = None,
        held: bool = False,
    ) -> StreamInfo:
        self._check()
        found = [info for info in self.infos if info.name == name]
        if not found:
            raise RefusedError("UNKNOWN_STREAM", f"there is no stream {name}")
        self.modes.append((name, paused, read_only))
        options = found[0].options | {"paused": bool(paused), "held": held}
        self.infos[self.infos.index(found[0])] = structs.replace(found[0], options=options)
        return found[0]

    def close(self) -> None:
        pass

    def _records(self, stream: str) -> list[Record]:
        self._check()
        if stream not in self.records:
            raise RefusedError("UNKNOWN_STREAM", f"there is no stream {stream}")
        return self.records[stream]

    def _check(self) -> None:
        if self.away:
            raise UnavailableError("nobody answers at 127.0.0.1:1")


def a_stream(name: str, end: int = 0, *, leader: str | None = "logd-1", **more: Any) -> StreamInfo:
    """A stream of one partition with three replicas in sync."""
    part = PartitionInfo(
        partition=0, start_offset=0, high_watermark=end - 1, end_offset=end, epoch=1,
        size_bytes=end * 100, leader=leader, replicas=NODES, isr=NODES,
    )  # fmt: skip
    options = more.pop("options", {})
    return StreamInfo(
        name=name, subject=f"telemetry.{name}.>", incarnation="i", partitions=(part,),
        options=options, **more,
    )  # fmt: skip


class Names:
    """A name service that says what a test has it say.

    Attributes:
        addresses: Of the name `collectors.test`.
        failed: How often there were none.
    """

    def __init__(self) -> None:
        self.addresses = ["127.0.0.1", "127.0.0.2"]
        self.failed = 0

    def often(self) -> NameResolver:
        return NameResolver(self.look_up, interval_s=0.05)

    def look_up(self, host: Any, port: Any, **named: Any) -> list[Any]:
        assert host == "collectors.test"
        if not self.addresses:
            self.failed += 1
            raise socket.gaierror(socket.EAI_NONAME, "there is no such name")
        kind = (socket.SOCK_STREAM, 6, "")
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(families[":" in one], *kind, (one, port)) for one in self.addresses]


def token_files(directory: Path) -> dict[str, str]:
    """Keys of a console's configuration for the tokens `READ` and `ACT`."""
    for name, token in (("read", READ), ("act", ACT)):
        (directory / name).write_text(f"{token}\n")
    return {"read_token_file": str(directory / "read"), "token_file": str(directory / "act")}


def ask(console: Console, path: str, token: str, body: str | None = None) -> tuple[int, Any]:
    """What a console answers to a GET, or to a POST of `body`: status and document."""
    host, _, port = console.address.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=10)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("GET" if body is None else "POST", path, body, headers if token else {})
    answer = connection.getresponse()
    said = json.loads(answer.read())
    connection.close()
    return answer.status, said


@contextmanager
def running_console(
    tmp_path: Path,
    parts: dict[str, str],
    log: FakeConsoleLog | None = None,
    *,
    names: NameResolver | None = None,
    **more: Any,
) -> Iterator[Console]:
    """A console that serves, on a free port unless `more` says otherwise."""
    document = {"listen": "127.0.0.1:0", "token_file": tmp_path / "token", "parts": parts} | more
    console = Console(ConsoleConfig.model_validate(document), log, names=names)
    with _looping() as run:
        stop = asyncio.Event()
        ended = run(console.run(stop))
        wait_until(lambda: console.address or ended.done())
        try:
            yield console
        finally:
            run(_set(stop)).result(10)
            ended.result(30)


async def _set(stop: asyncio.Event) -> None:
    stop.set()


@contextmanager
def _looping() -> Iterator[Callable[[Coroutine[Any, Any, None]], Any]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
