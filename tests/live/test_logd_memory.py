"""A logd that has hardly any memory left, under input that asks for much: it refuses, or ends."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import nats.js.errors
import pytest
from nats.aio.client import Client

from penstock.base.errors import ExitCode
from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.envelope import BatchPayload, encode_batch
from penstock.logd.offline.fsck import Inspection
from tests.support.logd import Logd
from tests.support.nats_server import nats_server

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

MIB = 1 << 20
SPARE_BYTES = 12 * MIB
"""Left to the process beyond what it has when the attack begins."""

FAILED = (nats.errors.Error, nats.js.errors.Error, TimeoutError)


def limit_memory(pid: int, spare_bytes: int | None) -> None:
    """Let a process's address space grow by no more than this; None: as it likes."""
    hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    size = pages * resource.getpagesize()
    soft = hard if spare_bytes is None else size + spare_bytes
    resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))


def bomb(sequence: int, size: int) -> bytes:
    """A batch of some kilobytes that decodes to many megabytes, within what a batch may."""
    body = encode_body(build_batch([Record("t.bomb", bytes(size), 1)]), compression="zstd")
    return encode_batch(
        BatchPayload(
            schema_version=1,
            record_count=1,
            producer_id=b"p" * 16,
            previous_sequence=sequence - 1,
            sequence=sequence,
            body=body,
        )
    )


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 8388608\n")
    with nats_server(tmp_path / "nats", config=config) as server:
        connection = await nats.connect(server.url)
        yield connection
        await connection.close()


class Attack:
    """Publishes what takes memory, and among it small records.

    Attributes:
        acked: The small ones, by offset.
        refused: Answers that were none.
    """

    def __init__(self, client: Client) -> None:
        self.acked: dict[int, bytes] = {}
        self.refused = 0
        self._client = client
        self._sequence = 0

    async def small(self, count: int) -> None:
        for number in range(count):
            value = b"small %d" % (len(self.acked) + number)
            await self._publish("t.small", value, keep=True)

    async def large(self, count: int) -> None:
        sending = (self._publish("t.large", bytes(4 * MIB), keep=False) for _ in range(count))
        await asyncio.gather(*sending)

    async def bombs(self, count: int) -> None:
        for _ in range(count):
            self._sequence += 1
            data = bomb(self._sequence, 48 * MIB)
            try:
                await self._client.request("t.bomb", data, timeout=2)
            except FAILED:
                self.refused += 1

    async def _publish(self, subject: str, value: bytes, *, keep: bool) -> None:
        try:
            ack = await self._client.jetstream().publish(subject, value, timeout=2)
        except FAILED:
            self.refused += 1
        else:
            if keep:
                self.acked[ack.seq - 1] = value


async def test_a_logd_short_of_memory_refuses_or_ends_and_corrupts_nothing(
    tmp_path: Path, client: Client
) -> None:
    stream = {"name": "logs", "subject": "t.>", "max_segment_bytes": 8 * MIB, "compact": True}
    url = client.connected_url.geturl()
    with Logd(tmp_path / "logd", url, [stream], compaction_interval_s=0.1) as logd:
        attack = Attack(client)
        await attack.small(50)
        assert len(attack.acked) == 50
        limit_memory(logd.daemon.pid, SPARE_BYTES)
        for _ in range(2):
            if logd.daemon.running:
                await attack.bombs(2)
                await attack.large(12)
                await attack.small(10)
        assert attack.refused, "it had memory for everything"
        code = await asyncio.to_thread(end, logd)
        assert code not in (ExitCode.SOFTWARE, ExitCode.DATA), logd.daemon.log()[-3000:]
        (directory,) = logd.data_dir.glob("streams/logs-*/0")
        report = Inspection(directory).run()
        assert report.verdict in ("sound", "unclean"), report.problems
        await asyncio.to_thread(logd.daemon.start)
        with logd.client() as log:
            found = {offset: record.value for offset, record in log.records("logs", 0)}
        assert {offset: found.get(offset) for offset in attack.acked} == attack.acked


def end(logd: Logd) -> int:
    """The exit code of a logd that has ended, or is stopped with memory enough."""
    if logd.daemon.running:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
            limit_memory(logd.daemon.pid, None)
    if logd.daemon.running:
        return logd.daemon.stop()
    return logd.daemon.wait(within_s=10)
