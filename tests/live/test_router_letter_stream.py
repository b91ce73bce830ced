"""Copies of dead letters with a real nats-server, a real logd and a job of its own."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from penstock.base.clock import SystemClock
from penstock.router.cli.main import cli
from penstock.router.deadletters.stream import NatsDeadLetterPublisher
from penstock.router.deadletters.writer import Reason, send_to_dlq
from penstock.router.job.config import DeadLetterStream
from tests.support.logd import Logd
from tests.support.nats_server import NatsServer
from tests.support.processes import free_port
from tests.support.router import RouterJob, log_line, publish
from tests.support.sink_batches import batch, context, dead_letters, log_record
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

STREAMS = [
    {"name": "logs", "subject": "telemetry.logs.>"},
    {"name": "letters", "subject": "letters.>"},
]
MAX_PAYLOAD = 1024 * 1024
LARGE = b"\xff" * (MAX_PAYLOAD - 4096)
"""NATS takes it, and no letter that has it in base64."""


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        yield running


def letters_stored(logd: Logd) -> list[dict[str, Any]]:
    return [json.loads(value or b"") for value in logd.values("letters")]


def test_a_letter_that_the_stream_cannot_have_keeps_no_batch_from_its_sink(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    """Through the job's own wiring; the other letters of the batch are in the stream."""
    lines = [log_line(number) for number in range(20)]
    publish(nats_url, "telemetry.logs.x", [*lines, b"odd one"])
    publish(nats_url, "telemetry.logs.x", [LARGE])
    publish(nats_url, "telemetry.logs.x", [*lines, "не запись".encode()])
    stream = {"nats": nats_url, "subject": "letters.test"}
    job = RouterJob(tmp_path / "router", logd.fetch, streams=["logs"], dead_letter_stream=stream)
    try:
        job.daemon.start(within_s=60)
        wait_until(lambda: job.committed() == {"logs": 43}, within_s=60)
        stage = job.daemon.stage("sink/lake")
        info = job.daemon.status()["info"]
        with job.daemon.get("/metrics") as answer:
            metrics = answer.read().decode()
    finally:
        job.daemon.close()
    assert stage["sent"] == 40
    assert [row["offset"] for row in job.rows().to_pylist()] == [*range(20), *range(22, 42)]
    counted = {
        name: stage["detail"][name] for name in ("dead_letters", "dead_letters_not_streamed")
    }
    assert counted == {"dead_letters": 3, "dead_letters_not_streamed": 1}
    assert 'penstock_router_dead_letters_not_streamed_total{sink="lake"} 1.0' in metrics
    assert info["sinks"]["lake"]["restarts"] == 0
    assert f"at most {MAX_PAYLOAD} bytes" in info["dead_letter_stream"]
    assert "dead_letter_stream_failed" in job.daemon.log()
    (path,) = (job.checkpoint_dir / "dead_letters" / "lake").glob("*.ndjson")
    kept = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [it["offset"] for it in kept] == [20, 21, 42]
    assert letters_stored(logd) == [kept[0], kept[2]]


def test_a_subject_that_nobody_stores_and_a_nats_that_is_away_cost_copies_only(
    tmp_path: Path, logd: Logd, nats_url: str
) -> None:
    """And the files' letters are sent once there is a stream for them, by a command."""
    server = NatsServer(tmp_path / "gone")
    server.close()
    rows = batch([log_record(number) for number in range(600)])
    made = context(tmp_path, sink="lake")
    for url, subject in ((nats_url, "nobody.stores.this"), (server.url, "letters.test")):
        config = DeadLetterStream(nats=url, subject=subject)
        stream = NatsDeadLetterPublisher(config, SystemClock(), wait_s=0.5)
        send_to_dlq(rows, Reason("http_400", "no"), replace(made, dead_letter_stream=stream))
        stream.close()
        assert stream.problem
    counted = made.meter.stage("lake", received=0, lag=0).detail["dead_letters_not_streamed"]
    assert (counted, letters_stored(logd)) == (2 * 600, [])

    job = RouterJob(
        tmp_path / "router",
        logd.fetch,
        streams=["logs"],
        dead_letter_dir=str(made.dead_letters),
        dead_letter_stream={"nats": nats_url, "subject": "nobody.stores.this"},
    )
    said = dlq_publish(tmp_path, job.config)
    assert (said.exit_code, said.output.count("0 of 600 are in the stream")) == (69, 1), said.output
    job.config["dead_letter_stream"]["subject"] = "letters.test"
    said = dlq_publish(tmp_path, job.config)
    assert (said.exit_code, said.output.count("600 of 600")) == (0, 1), said.output
    assert sorted(letters_stored(logd), key=lambda it: it["offset"]) == dead_letters(made)
    del job.config["dead_letter_stream"]
    assert dlq_publish(tmp_path, job.config).exit_code == 78


def test_after_a_nats_that_was_away_letters_are_in_the_stream_again(
    tmp_path: Path,
) -> None:
    port = free_port()
    server = NatsServer(tmp_path / "nats", port=port)
    with Logd(tmp_path / "logd", server.url, STREAMS) as logd:
        config = DeadLetterStream(nats=server.url, subject="letters.test")
        stream = NatsDeadLetterPublisher(config, SystemClock(), wait_s=5, pause_s=0.0)
        assert stream.publish([b'{"offset": 1}']) == 0
        server.kill()
        assert stream.publish([b'{"offset": 2}']) == 1
        server = NatsServer(tmp_path / "again", port=port)
        wait_until(lambda: logd.daemon.status()["health"] == "ready", what="logd is back")
        wait_until(lambda: stream.publish([b'{"offset": 3}']) == 0, within_s=60)
        assert stream.problem is None
        stream.close()
        assert [it["offset"] for it in letters_stored(logd)] == [1, 3]
    server.close()


def dlq_publish(directory: Path, config: dict[str, Any]) -> Any:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(config))
    return CliRunner().invoke(cli, ["dlq", "publish", str(path)])
