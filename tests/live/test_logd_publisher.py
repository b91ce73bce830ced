"""Publishing from Python through a real nats-server to a real logd, also when it is killed."""

import asyncio
import faulthandler
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.publisher import (
    BlockingPublisher,
    Nack,
    PublishOptions,
    PublishRefusedError,
    Record,
    connected,
)
from tests.support.logd import Logd
from tests.support.nats_server import NatsServer
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.live

LOGS = {"name": "logs", "subject": "t.>", "max_message_bytes": 200_000}


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as running:
        yield running


def records(subject: str, first: int, count: int) -> list[Record]:
    return [Record(subject, b"%s %d" % (subject.encode(), first + n), n) for n in range(count)]


async def test_each_way_of_publishing_is_stored_as_it_was_meant(logd: Logd, nats_url: str) -> None:
    async with connected(nats_url, PublishOptions(stream="logs", compression="zstd")) as publisher:
        plain = await publisher.publish("t.a", b"plain", headers={"Trace": "1"}, message_id="m1")
        again = await publisher.publish("t.a", b"plain", message_id="m1")
        assert (plain.offset, plain.duplicate, again.offset, again.duplicate) == (0, False, 0, True)
        await publisher.publish("t.a", b"keyed", key="schlüssel".encode())
        await publisher.delete("t.a", key="schlüssel".encode())
        ack = await publisher.publish_batch("t.b", records("t.b", 0, 100))
        assert (ack.stream, ack.offset, ack.count) == ("logs", 102, 100)
    with logd.client() as log:
        stored = [record for _, record in log.records("logs", 0)]
    found = [(record.key, record.value) for record in stored[:3]]
    key = "schlüssel".encode()
    assert found == [(None, b"plain"), (key, b"keyed"), (key, None)]
    assert ("Trace", b"1") in stored[0].headers
    assert [record.value for record in stored[3:]] == [r.value for r in records("t.b", 0, 100)]


async def test_a_batch_above_what_nats_carries_is_stored_in_parts(
    tmp_path: Path, nats_url: str
) -> None:
    values = [b"%06d" % number + bytes(50_000) for number in range(60)]
    batch = [Record("t.b", value, 1) for value in values]
    with Logd(tmp_path / "logd", nats_url, [{"name": "logs", "subject": "t.>"}]) as logd:
        async with connected(nats_url, PublishOptions(stream="logs")) as publisher:
            ack = await publisher.publish_batch("t.b", batch)
            assert (ack.stream, ack.offset, ack.count) == ("logs", 59, 60)
        assert logd.values("logs") == values


async def test_a_key_is_published_to_its_partition(logd: Logd, nats_url: str) -> None:
    key = b"123456789"
    async with connected(nats_url) as publisher:
        await publisher.publish("t.a", b"1", key=key, partitions=7)
        await (await publisher.submit("t.a", b"2", key=key, partitions=7))
        await publisher.delete("t.a", key=key, partitions=7)
        with pytest.raises(ValueError, match="needs a key"):
            await publisher.publish("t.a", b"3", partitions=7)

    def block() -> None:
        with BlockingPublisher(nats_url) as publisher:
            publisher.publish("t.a", b"1", key=key, partitions=7)
            publisher.submit("t.a", b"2", key=key, partitions=7).result()
            publisher.delete("t.a", key=key, partitions=7)

    await asyncio.to_thread(block)
    with logd.client() as log:
        stored = [(record.subject, record.value) for _, record in log.records("logs", 0)]
    assert stored == [("t.a.5", b"1"), ("t.a.5", b"2"), ("t.a.5", None)] * 2


async def test_refusals_say_why_and_what_nobody_stores_is_given_up(
    logd: Logd, nats_url: str
) -> None:
    async with connected(nats_url, PublishOptions(retry_s=0.2)) as publisher:
        with pytest.raises(PublishRefusedError) as raised:
            await publisher.publish("t.a", bytes(300_000))
        assert (raised.value.nack, raised.value.stream) == (Nack.MESSAGE_TOO_LARGE, "logs")
        with pytest.raises(RefusedError) as refused:
            await publisher.publish("t.a", bytes(2_000_000))
        assert refused.value.code == "NATS_MAX_PAYLOAD"
        with pytest.raises(UnavailableError, match="nobody listens"):
            await publisher.publish("nowhere", b"x")
    assert logd.values("logs") == []
    with pytest.raises(UnavailableError, match=r"NATS at 127\.0\.0\.1:1: .*refused|failed"):
        async with connected("nats://u:secret@127.0.0.1:1", PublishOptions(connect_timeout_s=0.2)):
            pass


async def test_a_url_that_will_not_do_is_said_to_be() -> None:
    with pytest.raises(UnavailableError, match="NATS at nats://127"):
        async with connected("nats://127.0.0.1:none"):
            pass


async def test_over_kills_of_logd_nothing_is_lost_and_nothing_stored_twice(
    logd: Logd, nats_url: str
) -> None:
    total = 2000
    options = PublishOptions(max_in_flight=32, ack_timeout_s=1)
    async with connected(nats_url, options) as publisher:

        async def plain() -> list[int]:
            tasks = [await publisher.submit("t.p", b"t.p %d" % n) for n in range(total)]
            return [ack.offset for ack in await asyncio.gather(*tasks)]

        async def batches() -> None:
            for first in range(0, total, 10):
                await publisher.submit_batch("t.b", records("t.b", first, 10))

        publishing = asyncio.gather(plain(), batches())
        for _ in range(3):
            await asyncio.to_thread(_wait_for_more, logd)
            await asyncio.to_thread(logd.restart, kill=True)
        offsets, _ = await publishing
        await publisher.flush()
    values = logd.values("logs")
    assert [values[offset] for offset in offsets] == [b"t.p %d" % n for n in range(total)]
    assert [v for v in values if v and v.startswith(b"t.b")] == [
        record.value for record in records("t.b", 0, total)
    ]
    assert len(values) == 2 * total


def _wait_for_more(logd: Logd) -> None:
    with logd.client() as log:
        log.fetch("logs", log.offsets("logs").end, wait_ms=5_000)


async def test_a_busy_logd_is_asked_again(tmp_path: Path, nats_url: str) -> None:
    with Logd(tmp_path / "small", nats_url, [LOGS], max_intake_bytes=65_536) as logd:
        numbers = itertools.count()
        async with asyncio.timeout(180), connected(nats_url) as publisher:
            # A burst that comes in several reads may find room each time.
            while not logd.stage("logs")["detail"].get("refused_busy"):
                burst = [b"%d" % n + bytes(30_000) for n in itertools.islice(numbers, 60)]
                await asyncio.gather(*[await publisher.submit("t.a", value) for value in burst])
        values = logd.values("logs")
    assert sorted(int(v.rstrip(b"\0")) for v in values if v) == list(range(next(numbers)))


def test_threads_share_a_publisher_and_each_keeps_its_order(logd: Logd, nats_url: str) -> None:
    with BlockingPublisher(nats_url) as publisher:

        def work(number: int) -> None:
            subject = f"t.{number}"
            for first in range(0, 40, 10):
                publisher.submit_batch(subject, records(subject, first, 10))
            for more in range(300):
                publisher.submit(subject, b"more %d" % more)
            publisher.publish(subject, b"plain", key=b"k")

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        publisher.delete("t.0", key=b"k")
        late = publisher.submit("t.0", b"late")
        publisher.flush()
        assert late.result(0).offset == 1365
        with pytest.raises(ValueError, match="none to publish on"):
            publisher.submit("t *", b"x")
    with pytest.raises(UnavailableError, match="closed"):
        publisher.publish("t.0", b"x")
    with logd.client() as log:
        stored = [record for _, record in log.records("logs", 0)]
    for number in range(4):
        subject = f"t.{number}"
        more = [b"more %d" % number for number in range(300)]
        expected = [r.value for r in records(subject, 0, 40)] + more + [b"plain"]
        mine = [record.value for record in stored if record.subject == subject]
        assert list(itertools.islice(mine, 341)) == expected


def test_a_thread_publishes_behind_what_it_has_submitted(logd: Logd, nats_url: str) -> None:
    options = PublishOptions(max_in_flight=2, retry_s=1)
    with BlockingPublisher(nats_url, options) as publisher:
        for first in range(2):  # both are in flight until they are given up
            publisher.submit_batch("nowhere", records("nowhere", first, 1))
        publisher.submit("t.a", b"first")
        publisher.submit("t.a", b"second")
        publisher.publish("t.a", b"third")
    with logd.client() as log:
        stored = [record.value for _, record in log.records("logs", 0)]
    assert stored == [b"first", b"second", b"third"]


def test_closing_ends_every_call_of_every_thread(nats_url: str) -> None:
    publisher = BlockingPublisher(nats_url, PublishOptions(max_in_flight=1, ack_timeout_s=30))
    first = publisher.submit("nowhere", b"x")
    errors: list[BaseException] = []

    def publish() -> None:
        try:
            publisher.publish("nowhere", b"x")
        except UnavailableError as error:
            errors.append(error)

    def callback(_: object) -> None:
        try:
            publisher.publish("nowhere", b"x")
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=publish, daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    first.add_done_callback(callback)
    publisher.close(flush=False)
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert len(errors) == len(threads) + 1
    assert first.exception(0) is not None


def test_a_message_that_cannot_be_sent_fails_alone(logd: Logd, nats_url: str) -> None:
    """A value that is no bytes, and text that UTF-8 has not, stop no message behind them."""
    wrong: list[tuple[Any, str]] = [("text", "of a header"), (None, "v"), (b"x", "lone \udc80")]
    with BlockingPublisher(nats_url) as publisher:
        for value, header in wrong:
            with pytest.raises((TypeError, ValueError)):
                publisher.submit("t.a", value, headers={"Name": header}).result(10)
        with pytest.raises(ValueError, match="none to publish on"):
            publisher.submit("t.\udc80", b"x").result(10)
        assert publisher.submit("t.a", b"sent").result(20).offset == 0


def test_a_value_is_stored_as_it_was_when_it_was_submitted(logd: Logd, nats_url: str) -> None:
    """Also where it is sent later, and where its elements are no single bytes."""
    wide: Any = memoryview(array("i", [1, 2]))
    buffer: Any = bytearray(b"before")
    with BlockingPublisher(nats_url) as publisher:
        first = publisher.submit("t.a", b"first")  # what comes behind it is handed over
        later = publisher.submit("t.a", buffer)
        buffer[:] = b"behind"
        numbers = publisher.submit("t.a", wide)
        assert [one.result(20).offset for one in (first, later, numbers)] == [0, 1, 2]
    assert logd.values("logs") == [b"first", b"before", array("i", [1, 2]).tobytes()]


def test_an_interrupted_close_ends_what_other_threads_wait_for(
    tmp_path: Path, nats_url: str
) -> None:
    host, _, port = nats_url.rpartition("/")[2].rpartition(":")
    with socket.create_connection((host, int(port))) as silent:
        silent.sendall(b"CONNECT {}\r\nSUB silent 1\r\nPING\r\n")
        while b"PONG" not in silent.recv(4096):
            pass
        options = PublishOptions(max_in_flight=2, ack_timeout_s=60)
        publisher = BlockingPublisher(nats_url, options)
        sent = [publisher.submit("silent", b"%d" % number) for number in range(2)]
        assert b"MSG silent" in silent.recv(4096)
        interrupt = threading.Thread(
            target=interrupt_once_closing_waits, args=(tmp_path / "stacks",)
        )
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            publisher.close()
        interrupt.join()
        for future in sent:
            assert isinstance(future.exception(10), UnavailableError)


def interrupt_once_closing_waits(stacks: Path) -> None:
    """SIGINT for this process, once its main thread closes a publisher, and waits for another."""

    def waits() -> bool:
        with stacks.open("w") as file:
            faulthandler.dump_traceback(file)
        return any(
            re.search(r"blocking\.py.* in \S*close$", stack, re.MULTILINE)
            and stack.splitlines()[1].endswith("wait")
            for stack in stacks.read_text().split("\n\n")
        )

    wait_until(waits, what="closing waits")
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def frozen(server: NatsServer) -> Iterator[None]:
    """The server takes nothing any more, and its connections stay."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


LARGE = bytes(900_000)
"""A message; the tests below send more of them than the buffers take."""


async def test_a_server_that_takes_nothing_is_unavailable(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    try:
        options = PublishOptions(ack_timeout_s=0.2, retry_s=0.5)
        async with asyncio.timeout(60), connected(server.url, options) as publisher:
            with frozen(server):
                given = [asyncio.create_task(publisher.publish("x", LARGE)) for _ in range(20)]
                done, waiting = await asyncio.wait(given, timeout=30)
            assert not waiting
        assert all(isinstance(one.exception(), UnavailableError) for one in done)
    finally:
        server.close()


def test_closing_does_not_wait_for_a_server_that_takes_nothing(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    try:
        options = PublishOptions(max_in_flight=64, ack_timeout_s=1)
        publisher = BlockingPublisher(server.url, options)
        with frozen(server):
            given = [publisher.submit("x", LARGE) for _ in range(40)]
            closing = threading.Thread(target=publisher.close, kwargs={"flush": False}, daemon=True)
            closing.start()
            closing.join(30)
            assert not closing.is_alive()
        assert all(isinstance(one.exception(0), UnavailableError) for one in given)
    finally:
        server.close()


def run_example(nats_url: str, server: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "examples/04_publish_and_consume.py", nats_url, server],
        capture_output=True, text=True, timeout=50 * PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout).splitlines()


def test_the_example_goes_on_where_it_stopped(tmp_path: Path, nats_url: str) -> None:
    prices = {"name": "prices", "subject": "prices.>"}
    with Logd(tmp_path / "prices", nats_url, [prices]) as running:
        first = run_example(nats_url, running.fetch)
        assert first == ["stored in prices at 0", "0 tea 3.20", "1 tea deleted"]
        second = run_example(nats_url, running.fetch)
        assert second == ["stored in prices at 2", "2 tea 3.20", "3 tea deleted"]
