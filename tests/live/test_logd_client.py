"""Reading on and on, and cursors, against a real logd that is stopped, killed and started."""

import asyncio
import contextlib
import itertools
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from pathlib import Path

import nats
import orjson
import pytest
from nats.aio.client import Client

from penstock.logd.api.protocol import REQUEST_HEAD, encode_response
from penstock.logd.client import (
    AsyncLogClient,
    CommitPolicy,
    Cursor,
    CursorHandle,
    FollowOptions,
    LogClient,
)
from penstock.logd.errors import RefusedError, UnavailableError
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LOGS = {"name": "logs", "subject": "t.>"}


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as running:
        yield running


@pytest.fixture
async def publisher(nats_url: str) -> AsyncIterator[Client]:
    connection = await nats.connect(nats_url)
    yield connection
    await connection.close()


async def publish(publisher: Client, first: int, end: int) -> None:
    js = publisher.jetstream()
    for number in range(first, end):
        await js.publish(f"t.{number % 2}", b"%d" % number, timeout=10)


async def test_endless_reads_go_on_over_restarts_and_kills(logd: Logd, publisher: Client) -> None:
    total, seen, seen_async = 40, list[int](), list[int]()

    def read() -> None:
        with logd.client() as log:
            for offset, record in itertools.islice(log.follow("logs", 0), total):
                assert record.value == b"%d" % offset
                seen.append(offset)

    async def read_async() -> None:
        async with AsyncLogClient(logd.fetch) as log:
            only = FollowOptions(subject="t.1")
            async with aclosing(log.follow("logs", "earliest", only)) as records:
                async for offset, _ in records:
                    seen_async.append(offset)
                    if offset == total - 1:
                        return

    reading = asyncio.gather(asyncio.to_thread(read), read_async())
    for part in range(4):
        await publish(publisher, part * 10, part * 10 + 10)
        if part < 3:
            await asyncio.to_thread(logd.restart, kill=part % 2 == 0)
    await asyncio.wait_for(reading, 40)
    assert seen == list(range(total))
    assert seen_async == list(range(1, total, 2))


async def test_an_offset_that_is_gone_is_an_error_unless_it_may_be_passed_over(
    logd: Logd, publisher: Client
) -> None:
    await publish(publisher, 0, 3)
    with logd.client() as log:
        with pytest.raises(RefusedError) as raised:
            next(log.follow("logs", 9))
        assert raised.value.code == "OUT_OF_RANGE"
        back = FollowOptions(out_of_range="earliest")
        assert next(log.follow("logs", 9, back))[0] == 0
        log.delete_stream("logs")
        log.create_stream("logs", "t.>")
        await publish(publisher, 0, 3)
        following = log.follow("logs", 0, FollowOptions(incarnation="another"))
        with pytest.raises(RefusedError) as raised:
            next(following)
        assert raised.value.code == "STREAM_RECREATED"


def test_a_read_of_a_logd_that_stays_away_gives_up_when_it_was_told_to(logd: Logd) -> None:
    logd.daemon.stop()
    with logd.client() as log, pytest.raises(UnavailableError, match="cannot be reached"):
        next(log.follow("logs", 0, FollowOptions(retry_s=0.3)))


async def test_calls_of_one_client_share_its_connection_and_do_not_wait_for_each_other(
    logd: Logd, publisher: Client
) -> None:
    async with AsyncLogClient(logd.fetch) as log:
        waiting = [asyncio.create_task(log.fetch("logs", 0, wait_ms=30_000)) for _ in range(20)]
        await asyncio.to_thread(
            wait_until, lambda: _info(logd, "requests_outstanding") == len(waiting)
        )
        waiting.pop().cancel()
        assert (await log.offsets("logs")).end == 0
        assert _info(logd, "connections") == 1
        await publish(publisher, 0, 1)
        assert {(await task).next_offset for task in waiting} == {1}
        assert [info.name for info in await log.streams()] == ["logs"]


async def test_a_call_that_is_cancelled_counts_no_more_at_the_server(
    logd: Logd, publisher: Client
) -> None:
    async with AsyncLogClient(logd.fetch, outstanding_max=64) as log:
        for subject in (None, "t.1"):
            polls = [
                asyncio.create_task(log.fetch("logs", 0, wait_ms=60_000, subject=subject))
                for _ in range(64)
            ]
            await asyncio.to_thread(wait_until, lambda: _info(logd, "requests_outstanding") == 64)
            for poll in polls:
                poll.cancel()
            await asyncio.to_thread(wait_until, lambda: not _info(logd, "requests_outstanding"))
        assert (await log.offsets("logs")).end == 0
        assert _info(logd, "connections") == 1, "it is still the one connection"
        await publish(publisher, 0, 1)
        assert (await log.fetch("logs", 0, wait_ms=60_000)).next_offset == 1


class Breaking:
    """A server of which the first connection breaks at its fourth request.

    Attributes:
        commits: Requests to commit cursors.
    """

    def __init__(self) -> None:
        self.commits = 0
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        left = 3 if self._connections == 1 else 100
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                (size,) = REQUEST_HEAD.unpack(await reader.readexactly(REQUEST_HEAD.size))
                request = orjson.loads(await reader.readexactly(size))
                self.commits += request["api"] == "set_cursor"
                if not left:
                    break
                left -= 1
                answer = {"id": request["id"], "node": "a", "streams": [], "cursors": []}
                writer.write(encode_response(answer))
        writer.close()


@pytest.mark.parametrize("rewind", [False, True])
async def test_a_rewind_is_not_sent_again_when_the_connection_breaks(rewind: bool) -> None:
    """Sent twice, it would take back what another commit did in between."""
    server = Breaking()
    wanted = [Cursor(consumer="c", stream="s", partition=0, offset=1, incarnation="")]
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as subscription_manager:
        address = "127.0.0.1:{1}".format(*subscription_manager.sockets[0].getsockname())
        async with AsyncLogClient(address) as log:
            await log.streams()
            await log.streams()  # before it, the client asks which nodes there are
            raises = pytest.raises(UnavailableError) if rewind else contextlib.nullcontext()
            with raises:
                await log.set_cursors(wanted, rewind=rewind)
    assert server.commits == (1 if rewind else 2)


async def test_cursors_are_committed_listed_and_deleted(logd: Logd, publisher: Client) -> None:
    await publish(publisher, 0, 10)
    with logd.client() as log:
        cursor = log.cursor("billing", "logs")
        assert cursor.get() is None
        assert cursor.commit(5).offset == 5
        for code, commit in (
            ("CURSOR_BEHIND", lambda: cursor.commit(4)),
            ("OUT_OF_RANGE", lambda: cursor.commit(11)),
            ("STREAM_RECREATED", lambda: cursor.commit(6, incarnation="x")),
            ("UNKNOWN_STREAM", lambda: log.cursor("billing", "none").commit(0)),
            ("BAD_CONSUMER", lambda: log.cursor("a b", "logs").commit(0)),
            ("RESERVED_NAME", lambda: log.delete_stream("__cursors")),
            ("BAD_REQUEST", lambda: log.create_stream("__mine", "t.a")),
        ):
            with pytest.raises(RefusedError) as raised:
                commit()
            assert raised.value.code == code
        assert cursor.commit(4, rewind=True).offset == 4
        others = [
            Cursor(consumer=f"c{n:03}", stream="logs", partition=0, offset=n % 10, incarnation="")
            for n in range(200)
        ]
        log.set_cursors(others)
        assert [stream.name for stream in log.streams()] == ["logs"]
        own, _ = log.streams(internal=True)
        assert (own.name, own.subject, own.options["compact"]) == ("__cursors", "", True)
    logd.restart()
    with logd.client() as log:
        assert [found.offset for found in log.cursors(consumer="billing")] == [4]
        assert len(log.cursors(stream="logs")) == 201
        assert log.cursor("c007", "logs").delete()
        assert not log.cursor("c007", "logs").delete()
        log.delete_stream("logs")
        assert log.cursors() == []


async def test_a_consumer_goes_on_where_it_stopped(logd: Logd, publisher: Client) -> None:
    await publish(publisher, 0, 10)
    with logd.client() as log:
        cursor = log.cursor("billing", "logs")
        with closing(cursor.follow(commit=CommitPolicy(records=3))) as records:
            assert [offset for offset, _ in itertools.islice(records, 5)] == [0, 1, 2, 3, 4]
            with logd.client() as other:
                assert [found.offset for found in other.cursors()] == [3]
        found = cursor.get()
        assert found is not None
        assert found.offset == 4  # the fifth was given, and nobody has asked for the next
    async with AsyncLogClient(logd.fetch) as alog:
        at_once = alog.cursor("billing", "logs").follow(commit=CommitPolicy(seconds=0))
        async for offset, _ in at_once:
            if offset == 9:
                break
        await at_once.aclose()
        found = await alog.cursor("billing", "logs").get()
        assert found is not None
        assert found.offset == 9


async def test_a_cursor_passes_what_its_consumer_filters_out(logd: Logd, publisher: Client) -> None:
    await publish(publisher, 0, 10)
    only = FollowOptions(subject="t.none", wait_s=0.05)
    async with AsyncLogClient(logd.fetch) as log:
        cursor = log.cursor("idle", "logs")
        following = cursor.follow(commit=CommitPolicy(seconds=0), options=only)
        reading = asyncio.create_task(anext(following))
        await asyncio.to_thread(wait_until, lambda: _cursor(logd, "idle") == 10)
        reading.cancel()
        await asyncio.wait({reading})


def _cursor(logd: Logd, consumer: str) -> int:
    with logd.client() as log:
        found = log.cursor(consumer, "logs").get()
        return -1 if found is None else found.offset


def test_a_committed_cursor_never_goes_back_over_kills(logd: Logd, nats_url: str) -> None:
    asyncio.run(_publish_all(nats_url, 200))
    committed = {f"c{number}": 0 for number in range(3)}
    done = threading.Event()

    def commit(consumer: str) -> None:
        with logd.client() as log:
            cursor = log.cursor(consumer, "logs")
            for offset in range(1, 201):
                wait_until(lambda: done.is_set() or committed_to(cursor, offset))  # noqa: B023
                if done.is_set():
                    return
                committed[consumer] = offset

    threads = [threading.Thread(target=commit, args=(consumer,)) for consumer in committed]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = min(committed.values())
        wait_until(lambda: min(committed.values()) >= min(before + 5, 200), within_s=30)  # noqa: B023
        logd.daemon.kill()
        known = dict(committed)
        logd.daemon.start()
        with logd.client() as log:
            for consumer, offset in known.items():
                found = log.cursor(consumer, "logs").get()
                assert found is not None
                assert found.offset >= offset
    done.set()
    for thread in threads:
        thread.join(20)


def committed_to(cursor: CursorHandle, offset: int) -> bool:
    try:
        return cursor.commit(offset).offset == offset
    except UnavailableError:
        return False


async def _publish_all(nats_url: str, count: int) -> None:
    connection = await nats.connect(nats_url)
    for number in range(count - 1):
        await connection.publish("t.a", b"%d" % number)
    await connection.jetstream().publish("t.a", b"last", timeout=10)
    await connection.close()


def _info(logd: Logd, name: str) -> int:
    return int(logd.daemon.status()["info"][name])


def test_a_client_is_told_of_an_address_that_is_none() -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        LogClient("nowhere")


FORKED = """
import os, sys
from penstock.logd.client import LogClient

log = LogClient(sys.argv[1], timeout_s=5)
assert tuple(log.offsets("logs")) == (0, 4)
pid = os.fork()
stream, there = ("logs", (0, 4)) if pid else ("other", (0, 0))
try:
    found = {tuple(log.offsets(stream)) for _ in range(300)}
    done = found == {there} or print(stream, found, flush=True)
except Exception as error:
    done = print(stream, repr(error), flush=True)
if not pid:
    os._exit(0 if done else 1)
print("both" if os.waitpid(pid, 0)[1] == 0 and done else "not both")
"""

FORKED_THREADS = """
import os, sys
from penstock.logd.client import LogClient
from penstock.logd.publisher import BlockingPublisher

def refused(call):
    try:
        call()
    except RuntimeError:
        return True

pid = -1
try:
    with (
        BlockingPublisher(sys.argv[2]) as publisher,
        LogClient(sys.argv[1]) as log,
        log.join_group("g", "logs") as member,
    ):
        offsets = [member.record().offset for _ in range(4)]
        pid = os.fork()
        if pid:
            assert publisher.publish("t.1", b"parent").offset == 4
            assert member.record().offset == 4
        else:
            assert refused(lambda: publisher.publish("t.1", b"child"))
            assert refused(lambda: publisher.submit("t.1", b"child"))
            assert refused(lambda: publisher.submit_batch("t.1", []))
            assert refused(member.record) and refused(member.commit)
            sys.exit(7)
finally:
    if not pid:
        os._exit(sys.exc_info()[1].code)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


async def test_a_forked_child_is_told_that_its_parent_has_the_threads(
    logd: Logd, nats_url: str, publisher: Client
) -> None:
    """It waited for ever for them, also at its end."""
    await publish(publisher, 0, 4)
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKED_THREADS, logd.fetch, nats_url, stdout=subprocess.PIPE
    )
    try:
        told, _ = await asyncio.wait_for(done.communicate(), 60)
    except TimeoutError:
        done.kill()
        raise
    assert told.decode() == "7\n"


async def test_a_forked_child_has_connections_of_its_own(
    tmp_path: Path, nats_url: str, publisher: Client
) -> None:
    """On its parent's each would read the other's answers, under the same numbers."""
    with Logd(tmp_path / "logd", nats_url, [LOGS, {"name": "other", "subject": "u.>"}]) as logd:
        await publish(publisher, 0, 4)
        done = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FORKED, logd.fetch, stdout=subprocess.PIPE
        )
        told, _ = await asyncio.wait_for(done.communicate(), 60)
    assert told.decode() == "both\n"
