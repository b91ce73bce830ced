"""What connections hold in the middle of a message, and requests while they are answered."""

import asyncio
import contextlib
import gc
from functools import partial
from pathlib import Path

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from penstock.base.http.server import Request, RequestLimits, Response, serve_http
from penstock.collector.limits import MIB, SpoolWriterLimits
from penstock.collector.sources.network.listener import Listener
from penstock.collector.spool.memory_budget import Budget, Charge
from tests.support.receiving import connect, listening, otlp, syslog
from tests.support.waiting import wait_until_async


async def test_a_syslog_message_that_has_begun_counts_and_may_not_stand_still(
    tmp_path: Path,
) -> None:
    limits = SpoolWriterLimits(unfinished_timeout_s=0.3)
    making = syslog(max_message_bytes=65_536)
    async with listening(tmp_path, making, limits=limits) as (source, spool_writer):
        reader, writer = await connect(source.endpoint)
        writer.write(b"<13>whole\n<13>" + b"x" * 50_000)
        await wait_until_async(lambda: spool_writer.share.used >= 50_000)
        assert await reader.read() == b"", "it ends, and leaves what it brought"
        writer.close()
        await wait_until_async(lambda: sum(unit.count for unit in spool_writer.units()) == 2)
        await wait_until_async(lambda: spool_writer.share.used == 0)
        assert spool_writer.account.notes["messages_unfinished"] == 1
        assert (spool_writer.account.received, spool_writer.account.difference) == (2, 0)


async def test_a_syslog_message_in_the_middle_ends_for_want_of_room(tmp_path: Path) -> None:
    """The one that holds room already must not wait; the one that holds none does."""
    limits = SpoolWriterLimits(unfinished_wait_s=0.05)
    async with listening(tmp_path, syslog(), share_bytes=MIB, limits=limits) as (
        source,
        spool_writer,
    ):
        reader, writer = await connect(source.endpoint)
        writer.write(b"<13>begun")
        await wait_until_async(lambda: spool_writer.share.used == 9)
        spool_writer.leave_room(1)
        writer.write(b" and ended\n<13>next")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert spool_writer.account.dropped == {"no_room": 2}
        assert spool_writer.account.notes["connections_ended_no_room"] == 1

        reader, writer = await connect(source.endpoint)
        writer.write(b"<13>waits for room\n")
        await spool_writer.wait_for_awaited()
        spool_writer.give_room()
        await wait_until_async(lambda: len(spool_writer.units()) == 1)
        writer.close()
        await wait_until_async(lambda: spool_writer.share.used == 0)
        assert (spool_writer.account.received, spool_writer.account.difference) == (3, 0)


async def test_a_body_is_let_go_when_its_charge_is(tmp_path: Path) -> None:
    """Who does not read the answer keeps nothing of the request in memory."""
    budget = Budget(bytes_max=MIB, share_bytes_max=MIB)
    limits = RequestLimits(MIB, head_bytes_max=9999, request_s=60, first_byte_s=60)
    answering = asyncio.Event()

    async def drain() -> None:
        answering.set()
        await asyncio.Event().wait()

    async def handle(request: Request, charge: Charge) -> Response:
        assert isinstance(request.body, bytes)
        assert budget.used == charge.size == len(request.body)
        return Response(200, b"thanks")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.drain = drain  # type: ignore[method-assign]
        await serve_http(reader, writer, handle, limits, partial(Charge, budget.share("net")))

    listener = Listener("net", serve, max_connections=1, note=lambda _, __: None)
    await listener.listen_unix(tmp_path / "s", 0o600)
    _, writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n123456789")
    await asyncio.wait_for(answering.wait(), 20)
    assert budget.used == 0
    assert not [one for one in gc.get_objects() if type(one) is Request and one.path == "/"]
    writer.close()
    await listener.close()


async def test_lines_that_take_many_times_what_was_read_hold_back_other_requests(
    tmp_path: Path,
) -> None:
    """A resource stands in each record's line; only so many requests may lie here as such."""
    made = ExportLogsServiceRequest()
    element = made.resource_logs.add()
    element.resource.attributes.add(key="big").value.string_value = "x" * 4000
    for _ in range(100):
        element.scope_logs.add().log_records.add(time_unix_nano=5).body.string_value = "hi"
    body = made.SerializeToString()
    limits = SpoolWriterLimits(request_room_wait_s=0.05)
    options = {"share_bytes": MIB, "spool_bytes": 64 * MIB}
    async with listening(tmp_path, otlp(), limits=limits, **options) as (source, spool_writer):
        head = f"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/x-protobuf\r\n\r\n"
        connections = [await connect(source.endpoints["http"]) for _ in range(20)]
        async with spool_writer.journal.held():  # the disk is slow
            for _, writer in connections:
                writer.write(head.encode() + body)
            notes = spool_writer.account.notes
            lines_max = 2 * 100 * 5000
            await wait_until_async(
                lambda: notes["requests_deferred"] + len(spool_writer.spool.undurable) >= 19
            )
            assert 1 <= len(spool_writer.spool.undurable) <= 5
            assert MIB < spool_writer.share.peak <= MIB + lines_max
        answers = [await reader.readline() for reader, _ in connections]
        assert {answer.split()[1] for answer in answers} == {b"200", b"429"}
        for _, writer in connections:
            writer.close()
        await wait_until_async(lambda: spool_writer.share.used == 0)
        again = await connect(source.endpoints["http"])
        again[1].write(head.encode() + body)
        assert (await again[0].readline()).startswith(b"HTTP/1.1 200 ")
        again[1].close()
        for _, writer in (*connections, again):
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
