"""A stream is copied into a directory while it is written to, and made again from that."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from click.testing import CliRunner
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from penstock.base.errors import ExitCode
from penstock.logd.cli import cli
from penstock.logd.cli.server import Clients
from penstock.logd.client import LogClient, calls
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import Record
from penstock.logd.format.frame import encode_header
from penstock.logd.offline.backup import FILE_BYTES, MANIFEST, PARTIAL, Manifest, frames_of
from tests.support.audited import audited
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster, publish
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAM = {"name": "logs", "subject": "t.logs.>", "max_segment_bytes": 64 * 1024}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with nats_server(tmp_path / "nats") as server:
        yield server.url


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    connection = await nats.connect(url)
    yield connection
    await connection.close()


def run(*arguments: object, file_bytes: int = FILE_BYTES) -> tuple[int, Any]:
    """A command, and what it printed as JSON, or else as text."""
    clients = Clients(file_bytes=file_bytes)
    done = CliRunner().invoke(cli, [*map(str, arguments)], obj=clients)
    try:
        return done.exit_code, json.loads(done.stdout)
    except json.JSONDecodeError:
        return done.exit_code, done.output


async def publish_many(client: Client, first: int, count: int, subject: str = "t.logs.a") -> None:
    for number in range(first, first + count):
        headers = {"Nats-Msg-Id": f"m{number}", "x": f"h{number}"}
        await publish(client, subject, b"%d" % number + b"." * 1000, headers)


async def refusal(client: Client, subject: str, payload: bytes = b"not now") -> int:
    """With which code it is refused; 0: it is stored. One that is opened again is waited for.

    What comes while it is opened may be lost without an answer; a test that checks what is stored
    sees it then.
    """
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await client.request(subject, payload, timeout=10)
            except (NoRespondersError, NatsTimeoutError):
                continue
            return int(json.loads(answer.data).get("error", {}).get("err_code", 0))


def records(log: LogClient, stream: str) -> list[tuple[int, Record]]:
    start, end = log.offsets(stream)
    return list(log.records(stream, start, end))


def frames(directory: Path) -> list[tuple[bytes, int]]:
    """Each frame of a backup of one partition, and where it ends."""
    manifest = Manifest.load(directory / MANIFEST)
    assert manifest is not None
    files = manifest.partitions[0].files
    found = [one for file in files for one in frames_of(directory, file)]
    return [(encode_header(header) + body, header.next_offset) for header, body in found]


async def test_a_stream_is_restored_as_it_was(tmp_path: Path, url: str, client: Client) -> None:
    """Offsets, times, headers; from where a purge left it; another stream of that name stays."""
    with Logd(tmp_path / "logd", url, [STREAM]) as logd, logd.client() as log:
        await publish_many(client, 0, 120)
        assert log.purge("logs", 70) == 70
        server = ("--server", logd.fetch)
        to = tmp_path / "backup"
        code, told = run("backup", "logs", "--to", to, "--json", *server, file_bytes=30_000)
        assert (code, told["partitions"], told["records"]) == (0, [[70, 120]], 50)
        assert len(list(to.glob("*.frames"))) > 1
        await publish_many(client, 120, 5)
        assert run("backup", "logs", "--to", to, *server)[0] == ExitCode.USAGE
        code, told = run("restore", to, *server)
        assert code == 1, "the stream is there, and is another one"
        assert "fix: restore it under another name: --as NAME" in told
        assert "(70,)" not in told
        again = ("restore", to, "--as", "old", "--subject", "t.old.>", *server)
        assert run(*again)[0] == 0
        assert records(log, "old") == records(log, "logs")[:50]
        assert run(*again)[0] == 1, "it is restored already"
        await publish_many(client, 119, 2, "t.old.a")
        assert log.offsets("old") == (70, 121), "an id from before is known, the next one is new"
        logd.restart(kill=True)
        assert records(log, "old")[:50] == records(log, "logs")[:50]


async def test_a_restore_that_was_cut_short_goes_on_and_lets_nobody_in_before_it_is_done(
    tmp_path: Path, url: str, client: Client
) -> None:
    with Logd(tmp_path / "logd", url, [STREAM]) as logd, logd.client() as log:
        await publish_many(client, 0, 12)
        server, to = ("--server", logd.fetch), tmp_path / "backup"
        assert run("backup", "logs", "--to", to, *server)[0] == 0
        parts = frames(to)
        options = {"max_segment_bytes": 64 * 1024, "restore_from": [0], "restore_upto": [12]}
        log.create_stream("old", "t.old.>", **options)
        (first, reached), (later, _) = parts[0], parts[2]
        with pytest.raises(RefusedError, match="wanted is 0"):
            log.ask(calls.restore("old", 0, later))
        with pytest.raises(RefusedError, match="no frames of a backup"):
            log.ask(calls.restore("old", 0, first[:-8]))
        with pytest.raises(RefusedError, match="is not being restored"):
            log.ask(calls.restore("logs", 0, first))
        assert reached == log.ask(calls.restore("old", 0, first))
        assert await refusal(client, "t.old.a") == 20007
        logd.restart(kill=True)
        assert await refusal(client, "t.old.a") == 20007
        assert log.offsets("old") == (0, reached)
        assert run("restore", to, "--as", "old", "--subject", "t.old.>", *server)[0] == 0
        assert records(log, "old") == records(log, "logs")
        await publish_many(client, 12, 1, "t.old.a")
        assert log.offsets("old") == (0, 13)


async def test_a_backup_that_was_cut_short_goes_on_with_the_range_it_began_with(
    tmp_path: Path, url: str, client: Client
) -> None:
    with Logd(tmp_path / "logd", url, [STREAM]) as logd, logd.client() as log:
        await publish_many(client, 0, 20)
        arguments = ("backup", "logs", "--to", tmp_path / "backup", "--server", logd.fetch)
        saves: list[str] = []

        def full(event: str, given: tuple[Any, ...]) -> None:
            """The disk, when the manifest is put in place for the third time."""
            if event == "os.rename" and Path(given[1]).name == PARTIAL:
                saves.append(event)
                if len(saves) == 3:
                    raise OSError(28, "No space left on device")

        with audited(full):
            assert run(*arguments, file_bytes=5_000)[0] == ExitCode.IO
        begun = Manifest.load(tmp_path / "backup" / PARTIAL)
        assert begun is not None
        assert len(begun.partitions[0].files) == 1
        await publish_many(client, 20, 5)
        assert run(*arguments, file_bytes=5_000)[0] == 0
        assert [upto for _, upto in frames(tmp_path / "backup")][-1] == 20
        log.delete_stream("logs")
        assert run("restore", tmp_path / "backup", "--server", logd.fetch)[0] == 0
        assert [offset for offset, _ in records(log, "logs")] == list(range(20))


async def test_a_stream_of_a_cluster_is_restored_while_leaders_are_lost(
    tmp_path: Path, url: str, client: Client
) -> None:
    with LogdCluster(tmp_path, url) as cluster, cluster.client() as log:
        cluster.create("logs", "t.logs", partitions=2)
        await publish_many(client, 0, 10, "t.logs")
        await publish_many(client, 10, 5, "t.logs.1")
        server, to = ",".join(node.fetch for node in cluster.nodes.values()), tmp_path / "backup"
        assert run("backup", "logs", "--to", to, "--server", server)[0] == 0
        before = [list(log.records("logs", 0, partition=number)) for number in (0, 1)]
        log.create_stream("old", "t.old", partitions=2, restore_from=[0, 0], restore_upto=[10, 5])
        part, reached = frames(to)[0]
        assert log.ask(calls.restore("old", 0, part)) == reached
        leader = cluster.leader("old")
        cluster.nodes[leader].daemon.kill()
        wait_until(lambda: cluster.leader("old") != leader, within_s=60, what="another leads")
        done = run("restore", to, "--as", "old", "--subject", "t.old", "--server", server)
        assert done[0] == 0, done[1]
        assert [list(log.records("old", 0, partition=number)) for number in (0, 1)] == before
        cluster.start(leader)
        cluster.wait_in_sync("old")
        await publish_many(client, 15, 1, "t.old")
        assert log.offsets("old").end == 11


async def test_a_restore_that_cannot_be_finished_is_ended_and_lets_publishers_in(
    tmp_path: Path, url: str, client: Client
) -> None:
    with LogdCluster(tmp_path, url) as cluster, cluster.client() as log:
        cluster.create("logs", "t.logs")
        await publish_many(client, 0, 6, "t.logs")
        server, to = ",".join(node.fetch for node in cluster.nodes.values()), tmp_path / "backup"
        assert run("backup", "logs", "--to", to, "--server", server)[0] == 0
        log.create_stream("old", "t.old", restore_from=[0], restore_upto=[6])
        part, reached = frames(to)[0]
        assert log.ask(calls.restore("old", 0, part)) == reached < 6
        log.alter_stream("old", fsync="never")
        assert await refusal(client, "t.old") == 20007, "another change ends nothing"
        done = CliRunner().invoke(cli, ["streams", "alter", "old", "--end-restore",
                                        "--server", server])  # fmt: skip
        assert done.exit_code == 0, done.output
        async with asyncio.timeout(60):
            while await refusal(client, "t.old", b"new") != 0:
                pass  # the replicas hear of it one after another
        assert log.offsets("old") == (0, reached + 1)
        with pytest.raises(RefusedError, match="is not being restored"):
            log.ask(calls.restore("old", 0, part))


async def test_a_backup_whose_records_are_deleted_meanwhile_says_so(
    tmp_path: Path, url: str, client: Client
) -> None:
    with Logd(tmp_path / "logd", url, [STREAM]) as logd, logd.client() as log:
        await publish_many(client, 0, 20)
        saves: list[str] = []

        def purge(event: str, given: tuple[Any, ...]) -> None:
            """When the manifest is put in place for the third time."""
            if event == "os.rename" and Path(given[1]).name == PARTIAL:
                saves.append(event)
                if len(saves) == 3:
                    log.purge("logs", 20)

        to = tmp_path / "backup"
        arguments = ("backup", "logs", "--to", to, "--server", logd.fetch)
        with audited(purge):
            code, said = run(*arguments, file_bytes=1)  # a file for each frame
        assert code == ExitCode.DATA
        assert "were deleted" in said
        assert "remove" in said
        assert not (to / MANIFEST).exists()
