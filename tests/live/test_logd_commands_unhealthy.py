"""Commands against a logd that cannot answer as they ask: not open, damaged, away for a moment."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import nats
import orjson
import pytest
from click.testing import CliRunner

from penstock.base.errors import ExitCode
from penstock.logd.cli import cli
from tests.support.admin import status_code
from tests.support.collector import Collector
from tests.support.encryption import key_file, section
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

AUDIT = {"name": "audit", "subject": "audit.>", "encryption": "aes-256-gcm"}
READING: list[Sequence[str]] = [
    ("tail", "audit"),
    ("tail", "audit", "--follow"),
    ("fetch", "audit"),
    ("fetch", "audit", "--format", "arrow"),
    ("query", "SELECT count(*) FROM audit"),
    ("export", "audit", "-o", "{made}.parquet"),
    ("backup", "audit", "--to", "{made}"),
    ("streams", "purge", "audit", "--all", "--yes"),
]


def run(logd: Logd, *arguments: str) -> tuple[int, str, str]:
    """A command; its exit code, standard output and standard error."""
    done = CliRunner().invoke(cli, [*arguments, "--server", logd.fetch])
    assert "Traceback" not in done.stderr, done.stderr
    return done.exit_code, done.stdout, done.stderr


def files(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.rglob(pattern))


async def publish(url: str, subject: str, *payloads: bytes) -> None:
    client = await nats.connect(url)
    for payload in payloads:
        await client.jetstream().publish(subject, payload)
    await client.close()


async def test_a_stream_that_is_not_open_is_an_error_of_every_command_that_reads_it(
    tmp_path: Path, nats_url: str
) -> None:
    """It must not read as empty: nobody would look for what is there."""
    keys = section(tmp_path, "key")
    made = tmp_path / "made"
    with Logd(tmp_path / "logd", nats_url, [AUDIT], encryption=keys) as logd:
        await publish(nats_url, "audit.a", b"one", b"two")
        key_file(tmp_path, "key", content="22" * 32)
        await asyncio.to_thread(logd.restart)
        for words in READING:
            given = [word.format(made=made) for word in words]
            code, out, error = run(logd, *given)
            assert (code, out) == (ExitCode.UNAVAILABLE, ""), (words, out, error)
            assert "stream 'audit'" in error, words
            assert "master key 'key'" in error, words
            assert "  fix: " in error, words
            assert files(tmp_path, "made*") == [], words
        (listed,) = run(logd, "streams", "ls", "--json")[1].splitlines()
        assert "master key 'key'" in orjson.loads(listed)["problem"]
        assert run(logd, "streams", "ls")[1].splitlines()[1].split()[:2] == ["audit", "failed"]


async def test_a_cluster_names_the_reason_of_a_leader_that_is_not_open(
    tmp_path: Path, nats_url: str
) -> None:
    keys = section(tmp_path, "key")
    with LogdCluster(tmp_path, nats_url, size=1, encryption=keys) as cluster:
        cluster.create("audit", "audit.a", replication_factor=1, encryption="aes-256-gcm")
        await publish(nats_url, "audit.a", b"one")
        node = cluster.nodes["a"]
        key_file(tmp_path, "key", content="22" * 32)
        assert node.daemon.stop() == 0
        node.daemon.launch()
        await asyncio.to_thread(wait_until, node.daemon.answers, what="it answers")
        await asyncio.to_thread(
            wait_until,
            lambda: "master key" in str(node.daemon.status()["reasons"]),
            what="the node has elected itself and tried to open the log",
        )
        code, out, error = run(node, "tail", "audit")
        assert (code, out) == (ExitCode.UNAVAILABLE, "")
        assert "master key 'key'" in error
        assert "fix: give logd the master key" in error


async def test_a_stream_that_has_lost_its_directory_is_damaged_data_to_every_command(
    tmp_path: Path, nats_url: str
) -> None:
    plain = {"name": "audit", "subject": "audit.>"}
    made = tmp_path / "made"
    with Logd(tmp_path / "logd", nats_url, [plain]) as logd:
        await publish(nats_url, "audit.a", b"one")
        assert logd.daemon.stop() == 0
        (directory,) = files(logd.data_dir / "streams", "audit-*")
        directory.rename(tmp_path / "elsewhere")
        await asyncio.to_thread(logd.daemon.start)
        for words in READING:
            code, out, error = run(logd, *[word.format(made=made) for word in words])
            assert (code, out) == (ExitCode.DATA, ""), (words, out, error)
            assert "has lost its data directory" in error, words
            assert "penstock logd check" in error, words
            assert files(tmp_path, "made*") == [], words


def damage(data_dir: Path, *offsets: int) -> None:
    """Flip a byte of the value of records that the log of the only stream has, one to a frame."""
    for path in files(data_dir / "streams", "*.log"):
        content = path.read_bytes()
        with path.open("r+b") as file:
            for offset in offsets:
                at = content.find(b"number %d." % offset)
                if at >= 0:
                    file.seek(at)
                    file.write(b"N")


DAMAGED = [*range(100, 121), 300]
SOUND = [number for number in range(400) if number not in DAMAGED]
SKIPPED = [(100, 121), (300, 301)]


@pytest.fixture
async def damaged(tmp_path: Path, nats_url: str) -> AsyncIterator[Logd]:
    """A node whose stream `logs` of 400 records has some that were damaged on its disk."""
    plain = {"name": "logs", "subject": "t.>", "max_segment_bytes": 64 * 1024}
    with Logd(tmp_path / "logd", nats_url, [plain]) as logd:
        await publish(nats_url, "t.a", *[b"number %d." % number * 20 for number in range(400)])
        assert logd.daemon.stop() == 0
        damage(logd.data_dir, *DAMAGED)
        await asyncio.to_thread(logd.daemon.start)
        yield logd


def test_what_is_sound_can_be_read_past_damage(damaged: Logd, tmp_path: Path) -> None:
    out = tmp_path / "all.ndjson"
    assert run(damaged, "export", "logs", "-o", str(out))[0] == ExitCode.DATA
    assert files(tmp_path, "all*") == []
    code, told, error = run(damaged, "export", "logs", "-o", str(out), "--skip-damaged", "--json")
    assert (code, ranges(told)) == (ExitCode.DATA, SKIPPED)
    assert "22 damaged offsets skipped: logs/0 from offset 100 to 121" in error
    assert offsets(out.read_text()) == SOUND
    for words in (("fetch", "logs"), ("tail", "logs", "--from", "earliest", "--json")):
        code, told, error = run(damaged, *words, "--skip-damaged")
        assert (code, offsets(told)) == (ExitCode.DATA, SOUND), error
    query = "SELECT count(*) AS n FROM logs"
    code, told, _ = run(damaged, "query", query, "--skip-damaged", "--json")
    assert (code, orjson.loads(told)) == (ExitCode.DATA, {"n": len(SOUND)})
    code, told, _ = run(damaged, "fetch", "logs", "--to", "100", "--skip-damaged")
    assert (code, len(offsets(told))) == (0, 100)
    damage(damaged.data_dir, 350)  # rots under a logd that has checked it
    code, told, error = run(damaged, "fetch", "logs", "--from", "310", "--skip-damaged")
    assert (code, len(offsets(told))) == (ExitCode.DATA, 89)
    assert "1 damaged offset skipped: logs/0 from offset 350 to 351" in error


def test_damage_shows_in_list_health_and_metrics(damaged: Logd) -> None:
    assert run(damaged, "tail", "logs", "--from", "earliest", "--skip-damaged")[0] == ExitCode.DATA
    assert run(damaged, "streams", "ls")[1].splitlines()[1].split()[:2] == ["logs", "damaged"]
    status = damaged.daemon.status()
    assert status["health"] == "degraded"
    assert any("22 offsets cannot be read" in reason for reason in status["reasons"])
    with damaged.daemon.get("/metrics") as answer:
        assert b'penstock_logd_damaged_offsets{stream="logs"} 22.0' in answer.read()


def test_a_backup_past_damage_says_what_it_lacks_and_is_restored(
    damaged: Logd, tmp_path: Path
) -> None:
    assert run(damaged, "backup", "logs", "--to", str(tmp_path / "not"))[0] == ExitCode.DATA
    made = str(tmp_path / "backup")
    code, told, error = run(damaged, "backup", "logs", "--to", made, "--skip-damaged", "--json")
    assert (code, ranges(told)) == (ExitCode.DATA, SKIPPED)
    assert "22 damaged offsets skipped" in error
    code, told, _ = run(damaged, "restore", made, "--as", "again", "--subject", "again.>")
    assert code == 0
    assert "22 offsets were damaged before, and are not in it" in told
    with damaged.client() as log:
        assert [offset for offset, _ in log.records("again", 0)] == SOUND


async def test_in_a_cluster_a_record_is_damaged_only_if_no_replica_has_it_sound(
    tmp_path: Path, nats_url: str
) -> None:
    with LogdCluster(tmp_path, nats_url, size=2) as cluster:
        cluster.create("logs", "t.a", replication_factor=2)
        cluster.wait_in_sync("logs", size=2)
        await publish(nats_url, "t.a", *[b"number %d." % number for number in range(10)])
        leader = cluster.nodes[cluster.leader("logs")]
        damage(leader.data_dir, 3)
        words = ("fetch", "logs", "--skip-damaged")
        code, told, error = run(leader, *words)
        assert (code, offsets(told)) == (0, list(range(10))), error
        for node in cluster.nodes.values():
            damage(node.data_dir, 7)
        code, told, error = run(leader, *words)
        assert (code, offsets(told)) == (ExitCode.DATA, [*range(7), 8, 9]), error
        assert "1 damaged offset skipped: logs/0 from offset 7 to 8" in error


def ranges(document: str) -> list[tuple[int, int]]:
    return [(one["first"], one["upto"]) for one in orjson.loads(document)["skipped"]]


def offsets(lines: str) -> list[int]:
    return [orjson.loads(line)["offset"] for line in lines.splitlines()]


async def test_a_follower_goes_on_after_logd_was_away_and_says_so_once(
    tmp_path: Path, nats_url: str
) -> None:
    plain = {"name": "logs", "subject": "t.>"}
    shown, said = tmp_path / "shown", tmp_path / "said"
    with Logd(tmp_path / "logd", nats_url, [plain]) as logd:
        await publish(nats_url, "t.a", b"before")
        words = ["tail", "logs", "--from", "earliest", "--follow", "--json"]
        with shown.open("wb") as out, said.open("wb") as error:
            following = subprocess.Popen(  # noqa: ASYNC220 - it only starts
                [sys.executable, "-m", "penstock.logd", *words, "--server", logd.fetch],
                stdout=out,
                stderr=error,
            )
        try:
            wait_until(lambda: len(offsets(shown.read_text())) == 1, what="it reads")
            logd.daemon.kill()
            wait_until(lambda: said.read_text() != "", what="it says that logd is away")
            await asyncio.to_thread(logd.daemon.start)
            await publish(nats_url, "t.a", b"after")
            wait_until(lambda: len(offsets(shown.read_text())) == 2, what="it goes on")
            following.send_signal(signal.SIGINT)
            assert following.wait(20) == 0
        finally:
            following.kill()
            following.wait()
    away, back = said.read_text().splitlines()
    assert away.endswith("it is tried again")
    assert back == "logd answers again; reading goes on"


async def test_a_command_that_reads_a_range_goes_on_after_logd_was_away(
    tmp_path: Path, nats_url: str
) -> None:
    plain = {"name": "logs", "subject": "t.>"}
    said = tmp_path / "said"
    with Logd(tmp_path / "logd", nats_url, [plain]) as logd:
        await publish(nats_url, "t.a", *[b"x" * 100_000] * 100)  # more than pipe and client hold
        words = [sys.executable, "-m", "penstock.logd", "fetch", "logs", "--server", logd.fetch]
        with said.open("wb") as error:
            reading = subprocess.Popen(  # noqa: ASYNC220 - it only starts
                words, stdout=subprocess.PIPE, stderr=error
            )
        assert reading.stdout is not None
        try:
            first = reading.stdout.readline()
            logd.daemon.kill()
            rest = asyncio.create_task(asyncio.to_thread(reading.stdout.read))
            await asyncio.to_thread(wait_until, said.read_text, what="it says that logd is away")
            await asyncio.to_thread(logd.daemon.start)
            assert offsets((first + await rest).decode()) == list(range(100))
            assert reading.wait(20) == 0
        finally:
            reading.kill()
            reading.wait()
            reading.stdout.close()
    away, back = said.read_text().splitlines()
    assert away.endswith("it is tried again")
    assert back == "logd answers again; reading goes on"


def test_a_follower_of_a_logd_that_was_never_there_ends_at_once() -> None:
    server = f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(cli, ["tail", "logs", "--follow", "--server", server])
    assert done.exit_code == ExitCode.UNAVAILABLE


@pytest.mark.parametrize("part", ["logd", "collector"])
def test_the_admin_endpoint_answers_to_the_names_of_the_configuration(
    tmp_path: Path, nats_url: str, part: str
) -> None:
    made: Logd | Collector = Logd(tmp_path / "l", nats_url, [], admin_hosts=["a.example.org"])
    if part == "collector":
        unix = {"name": "app", "type": "unix", "path": str(tmp_path / "app.sock")}
        made = Collector(tmp_path / "c", nats_url, [unix], admin_hosts=["a.example.org"])
    with made as running:
        for host, expected in (("a.example.org", 200), ("evil.example.org", 421)):
            assert status_code(running.daemon.admin, host) == expected, host
