"""Every id of many records is asked for, after kills in between, and each answer is true."""

import asyncio
import json
import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import nats
import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.trace.command import trace_records
from penstock.deploy.trace.question import TraceQuestion
from penstock.logd.format.acks import decode_batch_ack
from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.envelope import BatchPayload, encode_batch
from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.router import FIRST_TIME_NS, RouterJob, read_lake
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]

COUNT: Final = int(os.environ.get("PENSTOCK_TEST_TRACE_RECORDS", "2000"))
"""Records that are published and asked for, each."""

PER_BATCH: Final = 100
PER_QUESTION: Final = 10_000
KILLS: Final = 3


def record_id(number: int) -> str:
    """Each record has its own, but that every 50th is a copy of the one before."""
    return f"r{number - 1 if number % 50 == 49 else number:08d}"


def line(number: int) -> bytes:
    """A log record; some are errors, some are refused, and a few are no records."""
    if number % 1000 == 7:
        return b'{"record_id": "%s", "kind": 7}' % record_id(number).encode()
    return json.dumps(
        {
            "schema": "log/1.0",
            "kind": "log",
            "time_unix_nano": FIRST_TIME_NS + number * 1_000_001,
            "severity_number": 17 if number % 10 == 0 else 9,
            "body": f"order {number} {'declined' if number % 250 == 0 else 'placed'}",
            "trace_id": f"{number + 1:032x}",
            "record_id": record_id(number),
            "resource": {"service.name": f"service-{number % 3}"},
        }
    ).encode()


class Refusing(HttpDestination):
    """Refuses a request with a declined order for good."""

    @override
    def take(self, key: str, body: bytes) -> int:
        return 400 if b"declined" in body else super().take(key, body)


class Publisher:
    """Publishes all records in batches, each until it is stored, as a collector does."""

    def __init__(self, nats_url: str) -> None:
        self._url = nats_url
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.stored = 0
        self.goes_on = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(300)
        assert self.stored == COUNT

    async def _run(self) -> None:
        client = await nats.connect(self._url)
        producer = uuid.uuid4().bytes
        for previous, first in enumerate(range(0, COUNT, PER_BATCH)):
            records = [
                Record(f"telemetry.logs.service-{first % 3}", line(number), FIRST_TIME_NS + number)
                for number in range(first, first + PER_BATCH)
            ]
            payload = BatchPayload(
                schema_version=1,
                record_count=PER_BATCH,
                producer_id=producer,
                previous_sequence=previous,
                sequence=previous + 1,
                body=encode_body(build_batch(records), compression="zstd"),
            )
            while not await self._is_stored(client, records[0].subject, encode_batch(payload)):
                pass
            self.stored = first + PER_BATCH
            if self.stored >= COUNT // 2:  # the second half comes after the kills
                await asyncio.to_thread(self.goes_on.wait, 600)
        await client.close()

    @staticmethod
    async def _is_stored(client: Any, subject: str, data: bytes) -> bool:
        """Whether logd has it; a batch that comes again is known by its sequence."""
        try:
            answer = await client.request(subject, data, timeout=2)
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
            return False
        return decode_batch_ack(answer.data).nack is None


@pytest.fixture
def search() -> Iterator[Refusing]:
    destination = Refusing()
    destination.open()
    yield destination
    destination.close()


def job_of(directory: Path, logd: Logd, search: Refusing, down: HttpDestination) -> RouterJob:
    def http(destination: HttpDestination) -> dict[str, Any]:
        retry = {"initial_backoff_s": 0.05, "max_backoff_s": 0.5}
        return {"type": "http", "url": destination.url, "batch": {"max_records": 50},
                "retry": retry}  # fmt: skip

    trigger = {"interval_s": 0.1, "max_records": max(COUNT // 20, 100)}
    job = RouterJob(directory, logd.fetch, streams=["logs"], trigger=trigger)
    thin = [{"sample": {"rate": 0.5}}, {"dedupe": {"within_s": 3600}}]
    job.config["routes"] = [
        {"name": "thin", "transforms": thin, "sinks": ["lake"]},
        {"name": "errors", "where": "severity_number >= 17", "sinks": ["errors"]},
        {"name": "orders", "where": "service <> 'service-2'", "sinks": ["search", "down"]},
    ]
    job.config["sinks"] |= {
        "errors": {"type": "parquet", "path": str(directory / "errors")},
        "search": http(search),
        "down": http(down),
    }
    return job


def committed(job: RouterJob, *names: str) -> int:
    """The offset that the slowest of some sinks has reached; 0 while the job does not answer."""
    try:
        sinks = job.daemon.status()["info"]["sinks"]
    except OSError:
        return 0
    reached = (sinks[name]["committed"].get("logs", 0) for name in names if name in sinks)
    return min(reached, default=0)


WORKING: Final = ("lake", "errors", "search")


def has_reached(job: RouterJob, goal: int) -> bool:
    return committed(job, *WORKING) >= goal


def kill_in_between(job: RouterJob, logd: Logd) -> None:
    """Kill the job some times while it delivers, and logd once."""
    for number in range(1, KILLS + 1):
        goal = number * COUNT // (3 * KILLS)
        wait_until(partial(has_reached, job, goal), within_s=300, what=f"offset {goal}")
        job.daemon.kill()
        if number == 2:
            logd.daemon.kill()
            logd.daemon.start()
        job.daemon.start(within_s=120)


Said = dict[str, dict[int, dict[str, Any]]]
"""Verdicts by sink and number of the record."""


def asked_for_all(logd: Logd, job: RouterJob) -> Said:
    """Every id is asked for; what was said, by sink and number of the record."""
    admin = f"http://{job.config['admin']}"
    config = ConsoleConfig(parts={"router": admin}, logd=logd.fetch, timeout_s=20)
    said: Said = {}
    ids = sorted({record_id(number) for number in range(COUNT)})
    wanted = Counter(record_id(number) for number in range(COUNT))
    for begin in range(0, len(ids), PER_QUESTION):
        chosen = tuple(ids[begin : begin + PER_QUESTION])
        trace = trace_records(config, TraceQuestion(record_ids=chosen, limit=2 * PER_QUESTION))
        assert trace.silent == {}
        found = Counter(it.record.fields()["record_id"] for it in trace.records)
        assert found == {it: wanted[it] for it in chosen}
        for record in trace.records:
            for verdict in record.sinks:
                said.setdefault(verdict["sink"], {})[record.record.offset] = dict(verdict)
    return said


def offsets_with(said: dict[int, dict[str, Any]], *fates: str) -> set[int]:
    return {at for at, it in said.items() if it["fate"] in fates}


def check_lake(job: RouterJob, said: dict[int, dict[str, Any]]) -> None:
    lake = set(read_lake(job.lake)["offset"].to_pylist())
    assert offsets_with(said, "delivered") == lake
    files = {it["found"] for it in said.values() if it["fate"] == "delivered"}
    held = {name: set(pq.read_table(name, columns=["offset"])["offset"].to_pylist())
            for name in files}  # fmt: skip
    assert all(at in held[said[at]["found"]] for at in lake)
    assert offsets_with(said, "dead_letter") == MALFORMED
    copies = offsets_with(said, "deduplicated")
    assert copies
    assert all(record_id(at) == record_id(at - 1) and at - 1 in lake for at in copies)
    assert len(offsets_with(said, "sampled")) + len(copies) == COUNT - len(lake) - len(MALFORMED)


def posted(destination: HttpDestination) -> set[int]:
    return {int(record["body"].split()[1]) for record in destination.records}


MALFORMED: Final = set(range(7, COUNT, 1000))
WANTED: Final = {n for n in range(COUNT) if n % 3 != 2} - MALFORMED
"""Numbers of the records that the route `orders` takes."""

REFUSED: Final = {n for n in WANTED if n % 250 == 0}


def check_errors(directory: Path, said: dict[int, dict[str, Any]]) -> None:
    errors = set(read_lake(directory)["offset"].to_pylist())
    assert offsets_with(said, "delivered") == errors == set(range(0, COUNT, 10))
    assert offsets_with(said, "dead_letter") == MALFORMED


def check_orders(search: Refusing, said: Said) -> None:
    """The sink that refuses some, and the one that is down."""
    assert offsets_with(said["search"], "delivered") == posted(search) == WANTED - REFUSED
    assert offsets_with(said["search"], "dead_letter") == REFUSED | MALFORMED
    others = set(range(COUNT)) - WANTED - MALFORMED
    assert offsets_with(said["search"], "not_routed") == others
    assert offsets_with(said["down"], "not_routed") == others
    waiting = offsets_with(said["down"], "waiting")
    assert waiting | offsets_with(said["down"], "dead_letter") == WANTED | MALFORMED
    assert waiting >= WANTED


def test_every_answer_is_true_after_kills_in_between(
    tmp_path: Path, nats_url: str, search: Refusing
) -> None:
    streams = [{"name": "logs", "subject": "telemetry.logs.>"}]
    down = HttpDestination()  # nothing listens there yet
    with Logd(tmp_path / "logd", nats_url, streams) as logd:
        job = job_of(tmp_path / "router", logd, search, down)
        publisher = Publisher(nats_url)
        publisher.start()
        job.daemon.start(within_s=120)
        try:
            kill_in_between(job, logd)
            publisher.goes_on.set()
            publisher.join()
            wait_until(lambda: committed(job, *WORKING) == COUNT, within_s=300, what="the end")
            said = asked_for_all(logd, job)
            assert all(set(it) == set(range(COUNT)) for it in said.values())
            check_lake(job, said["lake"])
            check_errors(tmp_path / "router" / "errors", said["errors"])
            check_orders(search, said)

            down.open()
            wait_until(lambda: committed(job, "down") == COUNT, within_s=300, what="what was down")
            said = asked_for_all(logd, job)
            assert offsets_with(said["down"], "delivered") == posted(down) == WANTED
            assert offsets_with(said["down"], "dead_letter") == MALFORMED
        finally:
            publisher.goes_on.set()
            down.close()
            job.daemon.close()
