"""What goes wrong around a real logd, and what it says about it."""

import asyncio
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
import yaml

from penstock.logd.errors import RefusedError
from penstock.logd.format.acks import Nack
from penstock.logd.storage import EpochFile
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server
from tests.support.processes import free_port
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

LOGS = {"name": "logs", "subject": "telemetry.logs.>"}


def run_logd(directory: Path, config: dict[str, Any], *arguments: str) -> tuple[int, str]:
    """Run a logd that is expected to end by itself; its exit code and output."""
    path = directory / "logd.yaml"
    path.write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [sys.executable, "-m", "penstock.logd", "--config", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def config(directory: Path, nats_url: str, **changes: Any) -> dict[str, Any]:
    return {
        "data_dir": str(directory / "data"),
        "nats": {"url": nats_url},
        "fetch": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "streams": [LOGS],
        "connect_timeout_s": 60,
    } | changes


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"streams": [{"name": "logs", "subject": ">"}]}, "streams.0.ack_on_reply"),
        ({"data_dir": "/proc/nothing"}, "data_dir"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_key(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    code, output = run_logd(tmp_path, config(tmp_path, "nats://127.0.0.1:1", **changes))
    assert code == 78, output
    assert key in output
    assert "fix:" in output


def test_check_prints_the_configuration_without_secrets(tmp_path: Path) -> None:
    secret = {"url": "nats://127.0.0.1:1", "user": "u", "password": "hunter2"}
    code, output = run_logd(tmp_path, config(tmp_path, "", nats=secret), "--check")
    assert code == 0, output
    assert "hunter2" not in output
    assert "telemetry.logs.>" in output


def test_an_unreachable_nats_server_ends_the_start_with_69(tmp_path: Path) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    code, output = run_logd(tmp_path, config(tmp_path, url, connect_timeout_s=1))
    assert code == 69, output
    assert "nats.url" in output


def test_wrong_credentials_end_the_start_with_78(tmp_path: Path) -> None:
    locked = tmp_path / "nats.conf"
    locked.write_text("authorization {user: u, password: p}\n")
    with running_nats_server(tmp_path / "nats", config=locked) as url:
        code, output = run_logd(tmp_path, config(tmp_path, url))
        assert code == 78, output
        assert "nats.user" in output
        right = {"url": url, "user": "u", "password": "p"}
        with Logd(tmp_path / "logd", url, [LOGS], nats=right) as logd:
            assert logd.daemon.status()["health"] == "ready"


def test_a_subject_the_server_does_not_permit_is_refused_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    locked = tmp_path / "nats.conf"
    locked.write_text(
        'authorization {users: [{user: u, password: p, permissions: {subscribe: "telemetry.>"}}]}'
    )
    with running_nats_server(tmp_path / "nats", config=locked) as url:
        right = {"url": url, "user": "u", "password": "p"}
        forbidden = [{"name": "other", "subject": "other.>"}]
        code, output = run_logd(tmp_path, config(tmp_path, url, nats=right, streams=forbidden))
        assert code == 78, output
        assert "ermissions" in output
        with Logd(tmp_path / "logd", url, [LOGS], nats=right) as logd, logd.client() as log:
            with pytest.raises(RefusedError, match="Permissions Violation"):
                log.create_stream("other", "other.>")
            assert [stream.name for stream in log.streams()] == ["logs"]
            log.create_stream("more", "telemetry.more")
            logd.restart()
            assert [stream.name for stream in log.streams()] == ["logs", "more"]


def test_missing_metadata_removes_nothing_and_ends_the_start_with_65(
    tmp_path: Path, nats_url: str
) -> None:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as logd:
        logd.daemon.stop()
        metadata = logd.data_dir / "cluster" / "raft"
        kept = shutil.copytree(metadata, tmp_path / "kept")
        for damage in (False, True):
            shutil.rmtree(metadata)
            if damage:
                shutil.copytree(kept, metadata)
                for path in files_in(metadata):
                    path.write_bytes(b"damaged!" + path.read_bytes()[8:])
            again = config(tmp_path, nats_url, data_dir=str(logd.data_dir))
            code, output = run_logd(tmp_path, again)
            assert code == 65, output
            assert str(metadata) in output
            metadata.mkdir(exist_ok=True)
        shutil.rmtree(metadata)
        shutil.copytree(kept, metadata)
        logd.daemon.start()


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_file()]


def test_a_stream_that_cannot_be_opened_says_so_and_the_others_go_on(
    tmp_path: Path, nats_url: str
) -> None:
    other = {"name": "other", "subject": "other.>"}
    with Logd(tmp_path / "logd", nats_url, [LOGS, other]) as logd, logd.client() as log:
        logd.daemon.stop()
        (epochs,) = logd.data_dir.glob("streams/logs-*/0/epochs")
        sound = epochs.read_bytes()
        EpochFile(epochs).begin(2, 1000)
        logd.daemon.start()
        status = logd.daemon.status()
        assert status["health"] == "degraded"
        assert "epoch 2 began at offset 1000, the log ends at 0" in status["reasons"][0]
        assert "streams open logs" in status["reasons"][0]

        async def publish(*subjects: str) -> None:
            async with await nats.connect(nats_url) as connection:
                for subject in subjects:
                    await connection.jetstream().publish(subject, b"x", timeout=20)

        asyncio.run(publish("other.a"))
        with pytest.raises(nats.js.errors.ServiceUnavailableError, match="storage failed"):
            asyncio.run(publish("telemetry.logs.a"))
        with pytest.raises(RefusedError, match="records have been lost") as refused:
            log.offsets("logs")
        assert refused.value.code == "UNAVAILABLE"
        failed, sound_one = log.streams()
        assert failed.name == "logs"
        assert [partition.is_known for partition in failed.partitions] == [False]
        assert "records have been lost" in failed.problem
        assert (sound_one.name, sound_one.problem) == ("other", "")
        with urllib.request.urlopen(f"http://{logd.daemon.admin}/metrics", timeout=60) as answer:
            assert b'penstock_logd_stream_failed{stream="logs"} 1.0' in answer.read()
        with pytest.raises(RefusedError, match="records have been lost"):
            log.open_stream("logs")
        epochs.write_bytes(sound)
        assert log.open_stream("logs").name == "logs"
        asyncio.run(publish("telemetry.logs.a"))
        assert logd.values("logs") == [b"x"]
        assert logd.stage("logs")["errors"] == 1
        wait_until(lambda: logd.daemon.status()["health"] == "ready")


def test_a_second_logd_on_the_same_directory_is_refused(tmp_path: Path, nats_url: str) -> None:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as logd:
        other = config(tmp_path, nats_url, data_dir=str(logd.data_dir))
        code, output = run_logd(tmp_path, other)
        assert code == 69, output
        assert "in use by process" in output


def test_a_stream_whose_subject_changed_is_refused(tmp_path: Path, nats_url: str) -> None:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as logd:
        logd.daemon.stop()
        changed = [{**LOGS, "subject": "other.>"}]
        code, output = run_logd(
            tmp_path, config(tmp_path, nats_url, data_dir=str(logd.data_dir), streams=changed)
        )
        assert code == 78, output
        assert "telemetry.logs.>" in output
        logd.daemon.start()


async def test_subscriptions_come_back_after_the_nats_server_restarted(tmp_path: Path) -> None:
    port = free_port()
    with running_nats_server(tmp_path / "nats", port=port) as url:
        logd = Logd(tmp_path / "logd", url, [LOGS])
        logd.daemon.start()
        await publish_once(url, b"one")
    with logd_closing(logd):
        wait_until(lambda: logd.daemon.status()["health"] == "degraded", what="degraded")
        assert any("nats" in reason for reason in logd.daemon.status()["reasons"])
        with running_nats_server(tmp_path / "nats", port=port):
            wait_until(lambda: logd.daemon.status()["health"] == "ready", what="ready again")
            await publish_once(url, b"two")
            assert await asyncio.to_thread(logd.values, "logs") == [b"one", b"two"]
            assert logd.daemon.status()["info"]["nats_reconnects"] == 1


@contextmanager
def logd_closing(logd: Logd) -> Iterator[None]:
    try:
        yield
    finally:
        logd.daemon.close()


async def publish_once(url: str, payload: bytes) -> None:
    client = await nats.connect(url)
    await client.jetstream().publish("telemetry.logs.a", payload)
    await client.close()


async def test_busy_refuses_with_429_and_every_message_is_counted(
    tmp_path: Path, nats_url: str
) -> None:
    with Logd(tmp_path / "logd", nats_url, [LOGS], max_intake_bytes=65_536) as logd:
        client = await nats.connect(nats_url)
        js = client.jetstream()
        published, busy = 0, 0
        async with asyncio.timeout(180):
            while not busy:  # a burst that comes in several reads may find room each time
                burst = [
                    js.publish("telemetry.logs.a", bytes(20_000), timeout=20) for _ in range(20)
                ]
                answers = await asyncio.gather(*burst, return_exceptions=True)
                refused = [a for a in answers if isinstance(a, nats.js.errors.APIError)]
                assert {a.code for a in refused} <= {Nack.BUSY.code}
                published, busy = published + 20, busy + len(refused)
        stage = logd.stage("logs")
        assert stage["detail"]["refused_busy"] == stage["errors"] == busy
        assert stage["received"] == published == stage["sent"] + busy
        await client.close()


async def test_stopping_commits_and_acks_what_was_taken(tmp_path: Path, nats_url: str) -> None:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as logd:
        client = await nats.connect(nats_url)
        for number in range(5000):
            await client.publish("telemetry.logs.a", b"%d" % number)
        # nats-py's flush sends its PING ahead of its buffer; a message does not pass the others.
        behind = await client.subscribe("behind")
        await client.publish("behind")
        await behind.next_msg(20)
        assert await asyncio.to_thread(logd.daemon.stop) == 0
        assert not (logd.data_dir / "endpoints.json").exists()
        logd.daemon.start()
        assert (logd.data_dir / "endpoints.json").exists()
        stored = await asyncio.to_thread(logd.values, "logs")
        assert stored == [b"%d" % number for number in range(5000)]
        await client.close()
        wait_until(lambda: logd.daemon.status()["health"] == "ready")
