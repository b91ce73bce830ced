"""Sinks that Spark's tasks write to, whose Python workers are killed while they write."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from tests.support.fault_door import RESET, Answered, Asked, FaultDoor
from tests.support.http_sink import HttpDestination
from tests.support.kafka_case import KafkaCase
from tests.support.router import RouterJob, job_of_logs, log_line, publish
from tests.support.server_cases import NatsCase, PostgresCase, ServerCase
from tests.support.sink_batches import log_record
from tests.support.sink_cases import CASES, Case
from tests.support.tcp_door import Break
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

RECORDS = 6000
WRITTEN = 18_000
"""Records of one batch. A task writes them long enough for a test to kill it meanwhile."""


def files_open_in(process: psutil.Process) -> set[Path]:
    """The files of the lake that are open in it now."""
    return {Path(file.path) for file in process.open_files() if "_writing" in file.path}


def stopped_behind_a_file(
    job: RouterJob, known: dict[int, set[Path]]
) -> tuple[psutil.Process, set[Path]] | None:
    """A Python worker that has finished files of the lake and has one open, and does no more.

    `known` gets the files that were seen open in each process; those that are finished are returned
    as well.
    """
    for process in psutil.Process(job.daemon.pid).children(recursive=True):
        try:
            if "java" in process.name():  # its files take long to list
                continue
            seen = known.setdefault(process.pid, set())
            seen |= files_open_in(process)
            if not seen:
                continue
            process.suspend()
            now = files_open_in(process)
            seen |= now
            if now and (finished := {path for path in seen - now if path.exists()}):
                return process, finished
            process.resume()
        except psutil.Error:  # it has just ended
            continue
    return None


def replay_all(job: RouterJob, sink: str, records: int) -> None:
    """Deliver all of the log to a sink once more; the job has ended."""
    path = job.checkpoint_dir.parent / "job.yaml"
    path.write_text(json.dumps(job.config))
    program = [sys.executable, "-m", "penstock.router", "replay", str(path)]
    words = ["--sink", sink, "--from", "0", "--to", str(records), "--stream", "logs"]
    subprocess.run([*program, *words], check=True, timeout=300, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(("master", "restarts"), [("local[2,4]", 0), ("local[2]", 1)])
def test_a_worker_killed_behind_files_of_its_task_leaves_each_record_once(
    tmp_path: Path, nats_url: str, master: str, restarts: int
) -> None:
    """Where Spark runs the task again, the batch goes on; else the batch comes again.

    The files that it had finished are of no batch that was committed, and nobody sees them. A
    replay replaces the files by their names, whichever run of a task has written them.
    """
    lines = [log_line(number, service=f"service-{number % 50}") for number in range(WRITTEN)]
    by: Any = ["kind", "date", "service"]  # many files of each task
    lake = {"type": "parquet", "path": str(tmp_path / "router" / "lake"), "partition_by": by}
    keys = {"spark": {"master": master}, "source": {"min_partitions": 3}}
    with job_of_logs(tmp_path, nats_url, lines, {"lake": lake}, **keys) as job:
        job.daemon.start(within_s=60)
        stopped = partial(stopped_behind_a_file, job, {})
        found = wait_until(stopped, within_s=120, what="a file of two", momentary=True)
        assert found is not None
        worker, finished = found
        assert job.delivered() == 0
        assert sum(pq.read_metadata(path).num_rows for path in finished) > 0
        worker.kill()
        wait_until(lambda: job.delivered() == WRITTEN, within_s=180, what="every record")
        assert job.rows()["value"].to_pylist() == lines
        assert job.daemon.status()["info"]["sinks"]["lake"]["restarts"] == restarts
        files = Counter(path.parent for path in job.lake.glob("kind=*/**/*.parquet"))
        assert set(files.values()) == {3}, "one for each of the tasks that were planned once"
        publish(nats_url, "telemetry.logs.x", lines[:1])
        wait_until(lambda: job.committed() == {"logs": WRITTEN + 1}, within_s=120, what="one more")
        sent = job.daemon.stage("sink/lake")["sent"]
        assert sent == WRITTEN + 1, "the files of one run of each task are in it, no other's"
        assert not any(job.lake.glob("_writing/**/*.unfinished"))
        assert job.daemon.stop() == 0
        replay_all(job, "lake", WRITTEN)
        assert job.rows()["value"].to_pylist() == [*lines, lines[0]]


class Held(HttpDestination):
    """Answers nothing while it is held, and 503 then to what was held, unless it `takes_held`."""

    def __init__(self, *, takes_held: bool = False) -> None:
        super().__init__()
        self.released = threading.Event()
        self._takes_held = takes_held

    @override
    def take(self, key: str, body: bytes) -> int:
        is_held = not self.released.is_set()
        self.released.wait(60)
        return 503 if is_held and not self._takes_held else super().take(key, body)


class Timed(HttpDestination):
    """Takes down when how many records came."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: list[tuple[int, int]] = []

    @override
    def take(self, key: str, body: bytes) -> int:
        self.arrivals.append((SystemClock().monotonic_ns(), body.count(b"\n")))
        return super().take(key, body)

    def most_within(self, seconds: float) -> int:
        """The most records that came in so many seconds."""
        span_ns, came = int(seconds * 1e9), sorted(self.arrivals)
        return max(
            sum(count for at_ns, count in came[first:] if at_ns <= begun_ns + span_ns)
            for first, (begun_ns, _) in enumerate(came)
        )


_Listening = TypeVar("_Listening", bound=HttpDestination)


@contextmanager
def listening(destination: _Listening) -> Iterator[_Listening]:
    """A destination that listens within the block."""
    destination.open()
    try:
        yield destination
    finally:
        destination.close()


def hook_at(destination: HttpDestination, **keys: Any) -> dict[str, Any]:
    """Settings of a sink that posts to a destination."""
    return {"type": "http", "url": destination.url, **keys}


def worker_that_sends(job: RouterJob, address: str) -> psutil.Process | None:
    """A Python worker with a connection to the destination now."""
    for process in psutil.Process(job.daemon.pid).children(recursive=True):
        try:
            for connection in process.net_connections("tcp"):
                if connection.status != psutil.CONN_ESTABLISHED:
                    continue
                if f"{connection.raddr.ip}:{connection.raddr.port}" == address:
                    return process
        except psutil.Error:  # it has just ended
            continue
    return None


@pytest.mark.parametrize(("master", "restarts"), [("local[2,4]", 0), ("local[2]", 1)])
def test_a_worker_killed_while_it_sends_leaves_each_record_once_by_its_requests_keys(
    tmp_path: Path, nats_url: str, master: str, restarts: int
) -> None:
    """So does a replay of all that there is, which the driver sends."""
    lines = [log_line(number) for number in range(RECORDS)]
    keys = {"spark": {"master": master}, "source": {"min_partitions": 3}}
    with listening(Held()) as destination:
        hook = hook_at(destination, timeout_s=60, batch={"max_records": 500})
        with job_of_logs(tmp_path, nats_url, lines, {"hook": hook}, **keys) as job:
            job.daemon.start(within_s=60)
            sending = partial(worker_that_sends, job, destination.address)
            worker = wait_until(sending, within_s=120, what="a task that sends")
            journal = job.checkpoint_dir / "hook" / "batches.ndjson"
            assert f'"0": {RECORDS}' in journal.read_text(), "noted before anything is sent"
            assert worker is not None
            worker.kill()
            wait_until(lambda: sending() not in (None, worker), within_s=120, what="another")
            destination.released.set()
            wait_until(lambda: len(destination.records) == RECORDS, within_s=180)
            numbers = [it["attributes"]["number"] for it in destination.records]
            assert sorted(numbers) == [*range(RECORDS)]
            assert len(set(destination.requests)) == RECORDS // 500
            wait_until(lambda: job.committed()["logs"] == RECORDS, within_s=60)
            assert job.daemon.status()["info"]["sinks"]["hook"]["restarts"] == restarts
            assert job.daemon.stop() == 0
            replay_all(job, "hook", RECORDS)
            assert len(destination.records) == RECORDS
            assert len(set(destination.requests)) == RECORDS // 500


@pytest.mark.parametrize(
    ("kind", "master", "restarts"),
    [
        (NatsCase, "local[2,4]", 0),
        (NatsCase, "local[2]", 1),
        (PostgresCase, "local[2,4]", 0),
        (KafkaCase, "local[2,4]", 0),
    ],
)
def test_a_worker_killed_while_a_server_has_its_request_leaves_each_record_once(
    tmp_path: Path, nats_url: str, kind: type[ServerCase], master: str, restarts: int
) -> None:
    """And in order, where the server keeps one."""
    lines = [log_line(number) for number in range(RECORDS)]
    with closing(kind(tmp_path)) as case:
        case.door.faults += [None, None, None, Break.HANG]
        sink = {"type": case.type, "timeout_s": 60, "batch": {"max_records": 500}, **case.keys()}
        keys = {"spark": {"master": master}}
        with job_of_logs(tmp_path, nats_url, lines, {"there": sink}, **keys) as job:
            job.daemon.start(within_s=60)
            wait_until(lambda: not case.door.faults, within_s=120, what="a request that hangs")
            assert 0 < case.stored().total() < RECORDS
            worker = worker_that_sends(job, f"127.0.0.1:{case.door.port}")
            assert worker is not None
            worker.kill()
            wait_until(lambda: job.committed()["logs"] == RECORDS, within_s=180)
            assert case.stored() == Counter(range(RECORDS))
            if isinstance(case, NatsCase | KafkaCase):
                assert case.numbers() == [*range(RECORDS)]
            assert job.daemon.status()["info"]["sinks"]["there"]["restarts"] == restarts
            assert job.daemon.stop() == 0


class TakenInSilence:
    """A rule of a door: the third request with records is taken, and gets no answer.

    Attributes:
        client: The port of its client; 0 before it is there.
    """

    def __init__(self, case: Case, door: FaultDoor) -> None:
        self.client = 0
        self._case, self._door = case, door
        self._lock = threading.Lock()
        self._left = 3

    def __call__(self, asked: Asked) -> Answered | None:
        with self._lock:
            self._left -= self._case.questions not in asked.path
            if self._left != 0 or self.client:
                return None
            self.client = asked.connection
        self._door.backend.handle(asked)
        self._door.hung.wait(60)
        return RESET


@pytest.mark.parametrize(
    "name",
    [
        "clickhouse", "datadog", "elasticsearch", "google_cloud_logging", "loki", "otlp", "s3",
        "splunk_hec",
    ],
)  # fmt: skip
def test_a_worker_killed_before_it_knows_that_its_request_is_there_leaves_what_is_promised(
    tmp_path: Path, nats_url: str, name: str
) -> None:
    """Spark runs the one task again: each record is there once, or as often as it was sent."""
    case, size = CASES[name], 500
    lines = [json.dumps(log_record(number)).encode() for number in range(RECORDS)]
    with closing(FaultDoor(case.backend())) as door:
        if case.ready is not None:
            case.sink(door, tmp_path)
        silence = TakenInSilence(case, door)
        door.rule = silence
        sink = case.settings(door, timeout_s=60, batch={"max_records": size})
        keys = {"spark": {"master": "local[2,4]"}, "source": {"min_partitions": 3}}
        with job_of_logs(tmp_path, nats_url, lines, {"there": sink}, **keys) as job:
            job.daemon.start(within_s=60)
            port = wait_until(lambda: silence.client, within_s=120, what="a request in silence")
            assert port
            worker = job.client(port, door.address)
            assert worker.pid != job.daemon.pid
            worker.kill()
            wait_until(lambda: job.committed()["logs"] == RECORDS, within_s=180)
            stored = case.stored(door.backend)
            assert set(stored) == set(range(RECORDS))
            assert len(case.brought(door)) > RECORDS // size, "its requests came again"
            assert set(stored.values()) == ({1} if case.effectively_once else {1, 2})
            assert job.daemon.status()["info"]["sinks"]["there"]["restarts"] == 0
            assert not any((job.checkpoint_dir / "dead_letters").rglob("*.ndjson"))
            assert job.daemon.stop() == 0


def test_a_destination_gets_no_more_than_the_rate_limit_in_any_seconds(
    tmp_path: Path, nats_url: str
) -> None:
    """Tasks begin a batch of ten seconds' worth, and the driver ends it."""
    rate, size = RECORDS // 10, 50
    lines = [log_line(number) for number in range(RECORDS)]
    keys = {"spark": {"master": "local[3]"}, "source": {"min_partitions": 6}}
    with listening(Timed()) as destination:
        limits = {"batch": {"max_records": size}, "rate_limit": {"records_per_s": rate}}
        hook = hook_at(destination, **limits)
        with job_of_logs(tmp_path, nats_url, lines, {"hook": hook}, **keys) as job:
            job.daemon.start(within_s=60)
            sending = partial(worker_that_sends, job, destination.address)
            assert wait_until(sending, within_s=120, what="a task that sends")
            wait_until(lambda: job.committed()["logs"] == RECORDS, within_s=180)
            numbers = [it["attributes"]["number"] for it in destination.records]
            assert sorted(numbers) == [*range(RECORDS)]
            assert len(destination.requests) == RECORDS // size
            # What is saved up for a second may come before, and again when the driver takes over.
            assert destination.most_within(3) <= (3 + 2) * rate + size
            assert job.daemon.stop() == 0


def test_a_task_that_waits_for_the_rate_limit_ends_with_its_job(
    tmp_path: Path, nats_url: str
) -> None:
    lines = [log_line(number) for number in range(100)]
    with listening(HttpDestination()) as destination:
        limits = {"batch": {"max_records": 1}, "rate_limit": {"records_per_s": 4}}
        hook = hook_at(destination, **limits)
        with job_of_logs(tmp_path, nats_url, lines, {"hook": hook}) as job:
            job.daemon.start(within_s=60)
            wait_until(lambda: len(destination.requests) > 4, within_s=120, what="a paced task")
            destination.answers.clear()
            os.kill(job.daemon.pid, signal.SIGTERM)
            wait_until(lambda: job.daemon.status()["health"] == "draining", within_s=30)
            before = len(destination.requests)
            destination.answers.set()
            assert job.daemon.wait(within_s=60) == 0
            # The task alone would send four at once, and four in each of five seconds.
            assert len(destination.requests) <= before + 1 + 4


def test_the_end_of_a_job_waits_for_tasks_that_send(tmp_path: Path, nats_url: str) -> None:
    """Else what they have sent would be sent again at the next start."""
    lines = [log_line(number) for number in range(10)]
    with listening(Held(takes_held=True)) as destination:
        hook = hook_at(destination, timeout_s=60)
        with job_of_logs(tmp_path, nats_url, lines, {"hook": hook}) as job:
            job.daemon.start(within_s=60)
            sending = partial(worker_that_sends, job, destination.address)
            wait_until(sending, within_s=120, what="a task that sends")
            os.kill(job.daemon.pid, signal.SIGTERM)
            wait_until(lambda: job.daemon.status()["health"] == "draining", within_s=30)
            assert destination.requests == []
            destination.released.set()
            assert job.daemon.wait(within_s=30) == 0
            job.daemon.start(within_s=60)
            wait_until(lambda: job.committed() == {"logs": 10}, within_s=60)
            assert job.daemon.stop() == 0
            assert len(destination.requests) == 1
