"""What takes bytes from outside or from disk and is more than a function of them.

Each takes bytes, and raises what it says of itself and nothing else; what its documentation says
that it raises is an answer, and comes to nothing here.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

from penstock.base.http.client import HttpError
from penstock.collector.agent.admin import AdminActions, ControlServer
from penstock.collector.agent.reload import Report
from penstock.collector.agent.taps import Taps
from penstock.collector.checkpoint.state import NewerStateError, read_state
from penstock.collector.decode.units import decode_records
from penstock.collector.drops.query import RecordQuery
from penstock.collector.drops.sampler import Missed
from penstock.collector.limits import CONTROL_LINE_BYTES_MAX, MIB, SPOOL_WRITER_LIMITS
from penstock.collector.sources.network.http import get
from penstock.collector.sources.otlp.http import OtlpHttp
from penstock.collector.sources.otlp.response import Answer, Code
from penstock.collector.spool.memory_budget import Budget
from penstock.collector.spool.quarantine import Kept, facts_of, read_entry
from penstock.collector.spool.replay import Outcome, Wanted
from penstock.collector.spool.spool import decode_unit
from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.format.frame import FrameHeader
from penstock.service import Health, Status
from tests.support.fuzzing import mutated

ENDS_WITHIN_S: Final = 20.0
STATE: Final = {
    "version": 1,
    "incarnation": "6f0d1c5e-7a58-5b2e-9d39-0b6a3f3f8f31",
    "cursor": 7,
    "urgent_cursor": 2,
    "replayed": 0,
    "senders": {"6f": 3},
    "urgent_senders": {},
    "lanes": [["spool", "s", "telemetry.logs.s", 9], ["file/1", "f", "t.logs.s", 9, "b"]],
    "files": [
        {
            "source": "f", "generation": 1, "device": 1, "inode": 2, "head_hash": "00",
            "head_length": 1, "path": "/a.log", "position": 9,
        }
    ],
    "marks": {"1": [9, 10, 5, 4, "00"]},
    "next_generation": 2,
    "sources": ["f"],
}  # fmt: skip


class Peer:
    """A connection's other side, which takes whatever it is sent."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.answered = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.heard += data
        self.answered.set()

    async def drain(self) -> None:
        """It takes it at once."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """It hears that."""

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Of its own accord."""

    @property
    def transport(self) -> "Peer":
        """Itself."""
        return self

    def abort(self) -> None:
        """It hears no more."""

    async def wait_closed(self) -> None:
        """It is."""

    def get_extra_info(self, _: str) -> None:
        """Nothing is known of it."""


def _said(data: bytes, *, limit: int = 64 * 1024) -> asyncio.StreamReader:
    """A connection that brings these bytes in two pieces, and ends."""
    reader = asyncio.StreamReader(limit)
    reader.feed_data(data[: len(data) // 2])
    reader.feed_data(data[len(data) // 2 :])
    reader.feed_eof()
    return reader


def _to_its_end(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(ENDS_WITHIN_S):
            await work()

    asyncio.run(within())


def http_request(data: bytes) -> None:
    """What a sender of OTLP says on its connection."""

    async def take(*_: object) -> Answer:
        return Answer(Code.OK, b"{}")

    async def serve() -> None:
        spool_writer = SimpleNamespace(
            note=lambda _: None,
            limits=SPOOL_WRITER_LIMITS,
            log=SimpleNamespace(warning=lambda *_, **__: None),
            share=Budget(bytes_max=MIB, share_bytes_max=MIB).share("s"),
        )
        server = OtlpHttp(take, cast("Any", spool_writer), body_bytes_max=1000)
        await server.serve(_said(data), cast("Any", Peer()))
        assert spool_writer.share.used == 0

    _to_its_end(serve)


def http_reply(data: bytes) -> None:
    """What an exporter of Prometheus answers."""

    async def connect(*_: object, **__: object) -> tuple[asyncio.StreamReader, Peer]:
        return _said(data), Peer()

    async def ask() -> None:
        with patch.object(asyncio, "open_connection", connect), suppress(HttpError):
            await get("http://h/metrics", {}, timeout_s=9, body_bytes_max=1000, context=None)

    _to_its_end(ask)


def frame_body(subject: str, value: bytes | None, headers: Mapping[str, bytes]) -> bytes:
    """What a frame of a spool or a quarantine holds."""
    record = Record(subject=subject, value=value, timestamp_ns=5, headers=tuple(headers.items()))
    return encode_body(build_batch([record]))


def _header(body: bytes) -> FrameHeader:
    one = Record(subject="s", value=b"v", timestamp_ns=5)
    return describe_body(body or b"\0", build_batch([one]))


def unit_of_spool(data: bytes) -> None:
    """What a frame of the spool holds, whose sum is right."""
    unit = decode_unit(_header(data), data)
    assert unit.count >= 0
    decode_records(unit, {"service.name": "s"})


def entry_of_quarantine(data: bytes) -> None:
    """The same of the quarantine, and how it is shown and put back."""
    entry = read_entry(_header(data), data)
    if isinstance(entry, Kept):
        json.dumps(facts_of(entry, replayed=False))
        assert entry.again is None or isinstance(dict(entry.again.meta), dict)


def checkpoint(data: bytes) -> None:
    """A checkpoint whose sum is right: as it is, or one that the bytes decide how it is changed."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = mutated(Random(data), STATE)
    if not isinstance(document, dict):
        return  # `Checkpoint` takes none
    try:
        state = read_state(document)
    except (NewerStateError, ValueError):
        return
    state.fit_to_spool(0, 9)
    again = json.loads(json.dumps(state.as_document()))
    assert read_state(again).as_document() == state.as_document()


class _Replayer:
    """Of a quarantine of one record."""

    known = Kept(7, 0, "s", "r", "", 1, b"\xff")

    async def replay(self, wanted: Wanted) -> Outcome:
        wanted.takes(self.known)
        return Outcome()

    async def kept(self) -> AsyncIterator[tuple[Kept, bool]]:
        yield self.known, False


class _Drops:
    """A drop journal that holds one record."""

    async def flush(self) -> None:
        """All is written."""

    async def matching(self, query: RecordQuery, _: Missed) -> AsyncIterator[dict[str, Any]]:
        facts = {"time_unix_nano": 1, "service": "", "trace_id": "", "record_id": "", "text": "x"}
        facts |= {"source": "a", "step": "b", "reason": "filtered"}
        if query.takes(facts):
            yield facts


async def _reload() -> Report:
    return Report("unchanged", 1, 5)


def admin_request(data: bytes) -> None:
    """A line on the admin socket, and a request that the bytes decide how it is changed."""
    rng = Random(data)
    actions = ("reload", "replay", "tap", "status", "quarantine", "drops")
    request = {"do": rng.choice(actions), "source": "a*", "every": 2, "point": "in"}
    for line in (data.partition(b"\n")[0], json.dumps(mutated(rng, request)).encode()):
        _ask(line + b"\n")


def _ask(line: bytes) -> None:
    """A client hears lines of JSON, at least one, and sees what passes."""
    taps, peer = Taps(), Peer()
    status = Status("collector", "c", "1", Health.READY)
    replayer, drops = cast("Any", _Replayer()), cast("Any", _Drops())
    actions = AdminActions(_reload, replayer, drops, taps, lambda: status).actions
    server = ControlServer(Path("admin.sock"), actions)

    async def serve() -> None:
        reader = _said(line, limit=CONTROL_LINE_BYTES_MAX)
        # Thousands of requests a second: without a socket and a task of the server for each.
        serving = asyncio.ensure_future(server._serve(reader, cast("Any", peer)))  # noqa: SLF001 - a connection is given to it without a socket
        await asyncio.wait(
            {serving, asyncio.ensure_future(peer.answered.wait())}, return_when="FIRST_COMPLETED"
        )
        taps.show("in", "source", [b"line"])
        taps.show("out", "source", [b"line"], subject="a.b")
        if taps.active:
            serving.cancel()  # it goes on until somebody leaves
            await asyncio.gather(serving, return_exceptions=True)
        await asyncio.gather(serving, return_exceptions=serving.cancelled())

    with patch("penstock.collector.agent.admin._user_of", return_value=os.geteuid()):
        _to_its_end(serve)
    answers = [json.loads(answer) for answer in bytes(peer.heard).splitlines()]
    assert answers, line[:200]
    assert all(isinstance(answer, dict) for answer in answers)
