"""Dead letters of a job that runs, delivered again because somebody asked its endpoint for it."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

TOKEN = "0123456789abcdef"


@pytest.fixture
def destination() -> Iterator[HttpDestination]:
    its = HttpDestination()
    its.open()
    yield its
    its.close()


def ask(job: RouterJob, token: str, **wanted: Any) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"http://{job.config['admin']}/dead-letters",
        json.dumps(wanted).encode(),
        {"Authorization": f"Bearer {token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def sink(destination: HttpDestination) -> dict[str, Any]:
    """A sink's keys; a record that is refused is a dead letter, also when all are refused."""
    return {"type": "http", "url": destination.url, "retry": {"rejected_after": 0}}


def hook(destination: HttpDestination) -> dict[str, Any]:
    """A job's keys: one sink, and a token."""
    return {
        "routes": [{"name": "all", "sinks": ["hook"]}],
        "sinks": {"hook": sink(destination)},
    }


def command(job: RouterJob, directory: Path, *words: str) -> subprocess.Popen[str]:
    """A command about a job: its first word comes before the job's file."""
    path = directory / "job.yaml"
    path.write_text(json.dumps(job.config))
    program = [sys.executable, "-m", "penstock.router", words[0], str(path), *words[1:]]
    return subprocess.Popen(
        program,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(running: subprocess.Popen[str], code: int = 0) -> str:
    """All that a command said, once it has ended so."""
    text = running.communicate(timeout=300)[0]
    assert running.returncode == code, text
    return text


def taken_down(job: RouterJob) -> list[str]:
    path = job.checkpoint_dir / "dead_letters" / "replays.ndjson"
    return [json.loads(line)["what"] for line in path.read_text().splitlines()]


def numbers(destination: HttpDestination) -> list[int]:
    return sorted(record["attributes"]["number"] for record in destination.records)


def test_letters_are_delivered_while_the_job_runs_and_the_sink_goes_on(
    tmp_path: Path, nats_url: str, destination: HttpDestination
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    destination.status = 400
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        job = RouterJob(
            tmp_path / "router",
            logd.fetch,
            actions_token_file=str(tmp_path / "token"),
            routes=[{"name": "all", "sinks": ["hook", "lake"]}],
            sinks={
                "hook": sink(destination),
                "lake": {"type": "parquet", "path": str(tmp_path / "lake")},
            },
        )
        try:
            publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(3)])
            job.daemon.start(within_s=90)

            def replays() -> dict[str, Any]:
                found: dict[str, Any] = job.daemon.status()["info"]["replays"]
                return found

            wait_until(lambda: replays()["files"]["hook"] > 0, within_s=60)
            wait_until(lambda: job.committed().get("logs") == 3, within_s=60)
            assert ask(job, "wrong" * 4, do="list", sink="hook")[0] == 401
            status, listed = ask(job, TOKEN, do="list", sink="hook")
            assert (status, sum(file["dead_letters"] for file in listed["files"])) == (200, 3)

            destination.status = 200
            assert ask(job, TOKEN, do="replay", sink="hook", by="alice")[0] == 202
            wait_until(lambda: replays()["last"] is not None, within_s=60)
            assert replays()["last"]["problem"] == ""
            assert replays()["last"]["records"] == 3
            assert numbers(destination) == [0, 1, 2]
            publish(nats_url, "telemetry.logs.x", [log_line(7)])
            wait_until(lambda: 7 in numbers(destination), within_s=60)
            assert numbers(destination) == [0, 1, 2, 7]
            assert ask(job, TOKEN, do="replay", sink="hook")[0] == 409  # there are none any more
            taken_down = job.checkpoint_dir / "dead_letters" / "replays.ndjson"
            assert '"by": "alice"' in taken_down.read_text()
            assert job.daemon.stop(within_s=60) == 0, job.daemon.log()[-3000:]
        finally:
            job.daemon.close()


def test_a_replay_to_a_dead_destination_is_seen_stopped_and_drained(
    tmp_path: Path, nats_url: str, destination: HttpDestination
) -> None:
    """Stopped by the command, then by the end of the job; a third one delivers each letter once."""
    (tmp_path / "token").write_text(TOKEN)
    destination.status = 400
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        token = str(tmp_path / "token")
        job = RouterJob(
            tmp_path / "router", logd.fetch, actions_token_file=token, **hook(destination)
        )

        def replays() -> dict[str, Any]:
            found: dict[str, Any] = job.daemon.status()["info"]["replays"]
            return found

        def is_stuck() -> bool:
            progress, reasons = replays()["progress"], job.daemon.status()["reasons"]
            is_told = any(it.startswith("replay to hook: ") for it in reasons)
            return bool(progress and progress["problem"]) and is_told

        try:
            publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(3)])
            job.daemon.start(within_s=90)
            wait_until(lambda: job.committed().get("logs") == 3, within_s=60)
            destination.close()
            assert ask(job, TOKEN, do="replay", sink="hook")[0] == 202
            wait_until(is_stuck, within_s=60)
            assert replays()["under_way"] == "hook"
            assert "replay to hook: 0 of " in said(command(job, tmp_path, "status"))
            done = said(command(job, tmp_path, "stop-replay"))
            assert done == "the replay to hook is to stop\n"
            wait_until(lambda: replays()["under_way"] is None, within_s=60)
            assert "stopped by penstock router stop-replay" in replays()["last"]["problem"]
            assert ask(job, TOKEN, do="replay", sink="hook")[0] == 202
            wait_until(is_stuck, within_s=60)
            assert job.daemon.stop(within_s=60) == 0, job.daemon.log()[-3000:]
            notes = [what for what in taken_down(job) if what != "stop asked"]
            assert notes == ["asked", "stopped"] * 2
            destination.status = 200
            destination.open()
            job.daemon.start(within_s=90)
            assert ask(job, TOKEN, do="replay", sink="hook")[0] == 202
            wait_until(lambda: replays()["last"] is not None, within_s=60)
            assert replays()["last"]["problem"] == ""
            assert numbers(destination) == [0, 1, 2]
            assert job.daemon.stop(within_s=60) == 0, job.daemon.log()[-3000:]
        finally:
            job.daemon.close()


class Dying(HttpDestination):
    """Takes two requests and is ill then."""

    @override
    def take(self, key: str, body: bytes) -> int:
        if len(set(self.requests)) == 2:
            self.status = 503
        return super().take(key, body)


def test_a_replay_of_a_range_is_seen_stopped_and_gone_on_with(
    tmp_path: Path, nats_url: str
) -> None:
    """In a process of its own; what was delivered is not sent again."""
    destination = Dying()
    destination.open()
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        trigger = {"max_records": 10}
        job = RouterJob(tmp_path / "router", logd.fetch, trigger=trigger, **hook(destination))
        publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(40)])
        replaying = command(
            job, tmp_path, "replay", "--sink", "hook", "--from", "0", "--to", "40",
            "--stream", "logs",
        )  # fmt: skip

        def progress() -> dict[str, Any]:
            if replaying.poll() is not None:
                raise AssertionError(said(replaying))
            try:
                found: dict[str, Any] = job.daemon.status()["info"]["replays"]["progress"]
            except OSError:
                return {}
            return found

        try:
            wait_until(lambda: progress().get("problem"), within_s=120)
            assert (progress()["done"], progress()["of"], progress()["records"]) == (2, 4, 20)
            shown = said(command(job, tmp_path, "status"))
            assert f"replay to hook (process {replaying.pid}): 2 of 4 batches" in shown
            os.kill(replaying.pid, signal.SIGTERM)
            told = said(replaying, code=75)
            assert "stopped after 2 of 4 batches, 20 records" in told
            assert "--resume" in told
            delivered = set(destination.requests[:2])
            destination.requests.clear()
            destination.status, destination.requests = 200, []
            destination.take = super(Dying, destination).take  # type: ignore[method-assign]
            told = said(command(job, tmp_path, "replay", "--sink", "hook", "--resume"))
            assert "batch 3 of 4" in told
            assert "20 records went to hook again" in told
            assert numbers(destination) == list(range(40))
            assert not delivered & set(destination.requests)
        finally:
            if replaying.poll() is None:
                replaying.kill()
                replaying.wait()
            destination.close()
