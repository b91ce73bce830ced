"""Compaction in a real logd: under load, under a reader, through kill -9."""

import asyncio
import contextlib
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from penstock.logd.client import LogClient
from penstock.logd.format.batch import Record, decode_body
from penstock.logd.format.rows import batch_records, slice_rows
from penstock.logd.offline.fsck import Inspection
from tests.support.logd import Logd
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

KEYS = 20


def make_logd(tmp_path: Path, nats_url: str, **options: Any) -> Logd:
    stream = {"name": "logs", "subject": "telemetry.logs.>", "max_segment_bytes": 65_536} | options
    return Logd(
        tmp_path / "logd",
        nats_url,
        [stream],
        compaction_interval_s=0.05,
        compaction_dirty_ratio=0.1,
    )


@pytest.fixture
async def client(nats_url: str) -> Any:
    connection = await nats.connect(nats_url)
    yield connection
    await connection.close()


class Publisher:
    """Publishes numbered values of some keys until it is told to stop; each is tried until acked.

    Attributes:
        acked: By key, the number that was acked last.
    """

    def __init__(self, client: Client) -> None:
        self.acked: dict[bytes, int] = {}
        self.count = 0
        self.stopping = False
        self._js = client.jetstream()

    async def run(self) -> None:
        while not self.stopping:
            wave = range(self.count, self.count + 50)
            for number in wave:
                self.count = number + 1
            await asyncio.gather(*(self._publish(number) for number in wave))

    async def _publish(self, number: int) -> None:
        key = b"k%d" % (number % KEYS)
        headers = {"Penstock-Key": key.decode(), "Nats-Msg-Id": str(number)}
        while True:
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error):
                await self._js.publish(
                    "telemetry.logs.a", b"%s:%d" % (key, number), headers=headers, timeout=0.5
                )
                self.acked[key] = max(self.acked.get(key, 0), number)
                return


class Follower:
    """Reads on from where it is: frames must tile the offsets, records be what was published."""

    def __init__(self) -> None:
        self.position = 0
        self.records: dict[int, Record] = {}

    def read(self, log: LogClient, end: int) -> None:
        while self.position < end:
            fetched = log.fetch("logs", self.position, bytes_max=20_000)
            expected = fetched.frames[0][0].base_offset
            assert expected <= self.position
            for header, body in fetched.frames:
                assert header.base_offset == expected, "a frame is missing"
                expected = header.next_offset
                rows = slice_rows(header, decode_body(body), self.position)
                for offset, record in batch_records(header, rows):
                    assert record.key is not None
                    assert (record.value or b"").startswith(record.key + b":")
                    self.records[offset] = record
            assert fetched.next_offset == expected > self.position
            self.position = expected

    def last(self) -> dict[bytes, int]:
        """The greatest number of each key."""
        found: dict[bytes, int] = {}
        for record in self.records.values():
            number = int((record.value or b"").split(b":")[1])
            found[record.key or b""] = max(found.get(record.key or b"", -1), number)
        return found


async def test_compaction_under_load_and_a_reader_survives_kills(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with make_logd(tmp_path, nats_url, compact=True) as logd, logd.client() as log:
        publisher, follower = Publisher(client), Follower()
        publishing = asyncio.create_task(publisher.run())
        for _ in range(3):
            floor = publisher.count
            for _ in range(3):
                await wait_until_async(lambda: removed(logd) > 0)
                end = log.offsets("logs").end
                await asyncio.to_thread(follower.read, log, end)
                assert follower.position >= end
            await wait_until_async(lambda: publisher.count > floor + 300)  # noqa: B023
            await asyncio.to_thread(logd.restart, kill=True)
        floor = publisher.count  # what is tried again across a kill may be stored in another order
        await wait_until_async(lambda: publisher.count > floor)
        publisher.stopping = True
        await publishing
        await wait_until_async(lambda: removed(logd) > 0)
        await asyncio.to_thread(logd.restart)
        whole = Follower()
        await asyncio.to_thread(whole.read, log, log.offsets("logs").end)
        assert whole.last() == publisher.acked
        await asyncio.to_thread(follower.read, log, log.offsets("logs").end)
        assert follower.last() == publisher.acked, "who followed has seen every last value"
        assert len(whole.records) < publisher.count
        stop_and_check(logd)


def removed(logd: Logd) -> int:
    return int(logd.stage("logs")["detail"]["compaction_records_removed"])


def stop_and_check(logd: Logd) -> None:
    """Whatever compaction was at, a stop leaves a sound log."""
    assert logd.daemon.stop() == 0
    (directory,) = logd.data_dir.glob("streams/logs-*/0")
    report = Inspection(directory).run()
    assert report.verdict == "sound", report.problems


async def test_a_tombstone_removes_its_key_and_then_itself(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    options = {"compact": True, "tombstone_retention_s": 1}
    with make_logd(tmp_path, nats_url, **options) as logd:
        js = client.jetstream()
        filler = bytes(9_000)
        await js.publish("telemetry.logs.a", b"old", headers={"Penstock-Key": "gone"})
        headers = {"Penstock-Key": "gone", "Penstock-Tombstone": "true"}
        await js.publish("telemetry.logs.a", b"", headers=headers)
        for _ in range(8):  # so that the segment is sealed, and the next one is begun
            await js.publish("telemetry.logs.a", filler, headers={"Penstock-Key": "stays"})
        left = [b"old", None]
        await wait_until_async(lambda: not set(left) & set(logd.values("logs")))
        await asyncio.to_thread(follow_from_what_is_gone, logd)
        await asyncio.to_thread(logd.restart)
        assert logd.values("logs")[-1] == filler
        assert not set(left) & set(logd.values("logs"))
        stop_and_check(logd)


def follow_from_what_is_gone(logd: Logd) -> None:
    """An endless read passes offsets that have no record any more, and gives the rest once."""
    with logd.client() as log:
        end = log.offsets("logs").end
        for start in (0, 1):
            seen = []
            with closing(log.follow("logs", start)) as following:
                for offset, record in following:
                    seen.append(offset)
                    assert record.key == b"stays"
                    if offset == end - 1:
                        break
            assert seen == sorted(set(seen))
            assert seen[0] > 1


async def test_single_messages_are_put_together_and_read_the_same(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with make_logd(tmp_path, nats_url) as logd:
        js = client.jetstream()
        for number in range(200):
            ack = await js.publish("telemetry.logs.a", b"%d" % number)
            assert ack.seq == number + 1
        wait_until(lambda: freed(logd) > 80_000)
        assert logd.values("logs") == [b"%d" % number for number in range(200)]
        metrics = await asyncio.to_thread(metrics_of, logd)
        assert 'penstock_logd_compaction_bytes_freed_total{stream="logs"}' in metrics
        await asyncio.to_thread(logd.restart, kill=True)
        assert logd.values("logs") == [b"%d" % number for number in range(200)]
        with logd.client() as log:
            assert log.offsets("logs") == (0, 200)
        await asyncio.to_thread(logd.restart)
        stop_and_check(logd)


def metrics_of(logd: Logd) -> str:
    with urllib.request.urlopen(f"http://{logd.config['admin']}/metrics") as answer:
        return str(answer.read().decode())


def freed(logd: Logd) -> int:
    return int(logd.stage("logs")["detail"]["compaction_bytes_freed"])
