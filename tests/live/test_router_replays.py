"""Dead letters of a job that runs, delivered again because somebody asked its endpoint for it."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


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
                "hook": {"type": "http", "url": destination.url},
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
            assert (status, sum(file["letters"] for file in listed["files"])) == (200, 3)

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
