"""Every id of many records is asked for, after kills in between, and each answer is true.

The records come from an application through a collector that filters, samples and holds some in
quarantine. A job's routes sample, deduplicate and choose; one of its sinks refuses some records,
and one is down. The collector, logd and the job are killed meanwhile.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.trace.command import trace_records
from penstock.deploy.trace.question import TraceQuestion
from tests.support.collector import Collector, UnixSender
from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.router import FIRST_TIME_NS, RouterJob, publish, read_lake
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]

COUNT: Final = int(os.environ.get("PENSTOCK_TEST_TRACE_RECORDS", "5000"))
"""Records that are sent and asked for, each."""

PER_BATCH: Final = 100
PER_QUESTION: Final = 10_000
ROUNDS: Final = 1 if COUNT <= 10_000 else 4
"""Times that the job, the collector and logd are killed; a start of the job takes the longest."""

SHARE: Final = COUNT // PER_BATCH // (4 * ROUNDS)
"""Batches of the application between two kills."""

MALFORMED: Final = {f"{COUNT + number:032x}" for number in range(COUNT // 1000)}
"""Ids of records that another publisher stores and no sink takes."""


def record_id(number: int) -> str:
    """Each record has its own, but that every 50th is a copy of the one before."""
    return f"{number - 1 if number % 50 == 49 else number:032x}"


def is_invalid(number: int) -> bool:
    return number % 1000 == 7


def is_heartbeat(number: int) -> bool:
    return number % 20 == 3


def line(number: int) -> bytes:
    """A record as the application sends it."""
    is_error, is_declined = number % 10 == 0, number % 250 == 0
    return json.dumps(
        {
            "schema": "log/1.0",
            "kind": "other" if is_invalid(number) else "log",
            "time_unix_nano": FIRST_TIME_NS + number * 1_000_001,
            "severity_number": 1 if is_heartbeat(number) else 17 if is_error else 9,
            "body": f"order {number} {'declined' if is_declined else 'placed'}",
            "trace_id": f"{number + 1:032x}",
            "record_id": record_id(number),
            "resource": {"service.name": f"service-{number % 3}"},
        }
    ).encode()


def lines(batch: int) -> list[bytes]:
    return [line(number) for number in range((batch - 1) * PER_BATCH, batch * PER_BATCH)]


def number_in(body: str) -> int:
    return int(body.split()[1])


class Refusing(HttpDestination):
    """Refuses a request with a declined order for good."""

    @override
    def take(self, key: str, body: bytes) -> int:
        return 400 if b"declined" in body else super().take(key, body)


TRANSFORMS: Final[dict[str, Any]] = {
    "no_heartbeats": {"type": "filter", "inputs": ["apps"], "where": "severity_number > 1"},
    "edge_sample": {
        "type": "sample", "inputs": ["no_heartbeats"], "ratio": 0.9, "seed": "edge",
        "keep_errors": True,
    },
}  # fmt: skip


def job_of(directory: Path, logd: Logd, search: Refusing, down: HttpDestination) -> RouterJob:
    def http(destination: HttpDestination) -> dict[str, Any]:
        retry = {"initial_backoff_s": 0.05, "max_backoff_s": 0.5}
        return {"type": "http", "url": destination.url, "batch": {"max_records": 50},
                "retry": retry}  # fmt: skip

    trigger = {"interval_s": 0.1, "max_records": max(COUNT // 8, 100)}
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


WORKING: Final = ("lake", "errors", "search")


@dataclass
class Pipeline:
    """An application, a collector, logd, and a job with four sinks, of which one is down."""

    app: UnixSender
    collector: Collector
    logd: Logd
    job: RouterJob
    search: Refusing
    down: HttpDestination
    directory: Path

    def committed(self, *sinks: str) -> int:
        """The offset that the slowest of some sinks has reached; 0 if the job does not answer."""
        try:
            found = self.job.daemon.status()["info"]["sinks"]
        except OSError:
            return 0
        reached = (found[name]["committed"].get("logs", 0) for name in sinks if name in found)
        return min(reached, default=0)

    def wait_delivered(self, goal: int, *sinks: str) -> None:
        reached = partial(self.committed, *(sinks or WORKING))
        wait_until(lambda: reached() >= goal, within_s=300, what=f"offset {goal} of {sinks}")

    def kill_in_between(self) -> None:
        """Kill the job while it delivers, then the collector and logd while records arrive."""
        for _ in range(ROUNDS):
            self.wait_delivered(self.committed(*WORKING) + PER_BATCH)
            self.job.daemon.kill()
            for daemon in (self.collector.daemon, self.logd.daemon):
                self.send_some()
                daemon.kill()
                daemon.start()
            self.job.daemon.start(within_s=120)

    def send_some(self) -> None:
        """Let the application send a share; returns when the first of it is acknowledged."""
        acked = self.app.acked
        self.app.upto = SHARE + (self.app.upto or 0)
        wait_until(lambda: self.app.acked > acked, momentary=True, what="an ack")

    def send_the_rest(self) -> None:
        """Send all others; returns when every record is where it belongs."""
        self.app.upto = COUNT // PER_BATCH
        wait_until(lambda: self.app.acked == self.app.upto, within_s=300, what="every ack")
        wait_until(self.collector.is_idle, within_s=300, what="an idle collector")


@contextmanager
def pipeline(directory: Path, nats_url: str) -> Iterator[Pipeline]:
    streams = [{"name": "logs", "subject": "telemetry.logs.>"}]
    socket = directory / "c.sock"
    sources = [{"type": "unix", "name": "apps", "path": str(socket)}]
    search, down = Refusing(), HttpDestination()  # nothing listens at `down` yet
    with ExitStack() as stack:
        search.open()
        stack.callback(search.close)
        stack.callback(down.close)
        logd = stack.enter_context(Logd(directory / "logd", nats_url, streams))
        malformed = [json.dumps({"record_id": it, "kind": 7}).encode() for it in sorted(MALFORMED)]
        publish(nats_url, "telemetry.logs.other", malformed)
        options = {"transforms": TRANSFORMS, "drops": {"max_rate": 1e6}}
        collector = stack.enter_context(Collector(directory / "c", nats_url, sources, **options))
        job = job_of(directory / "router", logd, search, down)
        stack.callback(job.daemon.close)
        app = UnixSender(socket, "app", lines, upto=SHARE)
        stack.enter_context(app)
        job.daemon.start(within_s=120)
        yield Pipeline(app, collector, logd, job, search, down, directory)


@dataclass
class Answers:
    """What was said of all ids.

    Attributes:
        sinks: Verdicts by sink and offset.
        edges: What the collector said, by record id.
    """

    sinks: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    edges: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def at(self, sink: str, *fates: str) -> set[int]:
        """Offsets at which a sink has one of some verdicts."""
        return {at for at, it in self.sinks[sink].items() if it["fate"] in fates}

    def ids(self, fate: str, reason: str = "", step: str = "") -> set[str]:
        """Ids of the records of which the collector says so."""
        return {
            name
            for name, all_of_it in self.edges.items()
            for it in all_of_it
            if it["fate"] == fate and it["reason"].startswith(reason) and it.get("step", "") == step
        }


def ask_for_all(pipes: Pipeline) -> Answers:
    """Ask for every id."""
    parts = {
        "router": f"http://{pipes.job.config['admin']}",
        "edge": f"http://{pipes.collector.config['admin']}",
    }
    config = ConsoleConfig(parts=parts, logd=pipes.logd.fetch, timeout_s=20)
    answers = Answers()
    ids = sorted({record_id(number) for number in range(COUNT)} | MALFORMED)
    for begin in range(0, len(ids), PER_QUESTION):
        chosen = tuple(ids[begin : begin + PER_QUESTION])
        trace = trace_records(config, TraceQuestion(record_ids=chosen, limit=3 * PER_QUESTION))
        assert (trace.silent, trace.is_cut) == ({}, False)
        for record in trace.records:
            assert record.record.fields()["record_id"] in chosen
            for verdict in record.sinks:
                at = record.record.offset
                answers.sinks.setdefault(verdict["sink"], {})[at] = dict(verdict)
        for edge in trace.edges:
            answers.edges.setdefault(edge["record_id"], []).append(edge)
    return answers


@dataclass
class Stored:
    """What the log has, read without a trace.

    Attributes:
        ids: The id of each record, by offset.
        numbers: The number of each record that the application sent, by offset.
    """

    ids: list[str] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, logd: Logd) -> "Stored":
        found = cls()
        for offset, value in enumerate(logd.values("logs")):
            fields = json.loads(value or b"{}")
            found.ids.append(fields["record_id"])
            if "body" in fields:
                found.numbers[offset] = number_in(fields["body"])
        return found

    @property
    def malformed(self) -> set[int]:
        return set(range(len(self.ids))) - self.numbers.keys()

    def where(self, numbers: set[int]) -> set[int]:
        """Offsets of records with some numbers."""
        return {at for at, number in self.numbers.items() if number in numbers}


def check_edge(stored: Stored, answers: Answers) -> None:
    """Each record is in the log, or the collector says what became of it, and why."""
    arrived = {*stored.numbers.values()}
    every = set(range(COUNT))
    invalid, heartbeats = set(filter(is_invalid, every)), set(filter(is_heartbeat, every))
    heartbeats -= invalid
    assert not arrived & (invalid | heartbeats)

    def ids_of(numbers: set[int]) -> set[str]:
        return {record_id(number) for number in numbers}

    assert answers.ids("quarantined") == ids_of(invalid)
    assert answers.ids("dropped", "filtered", "no_heartbeats") == ids_of(heartbeats)
    sampled = every - arrived - invalid - heartbeats
    assert len(sampled) > COUNT // 30
    assert answers.ids("dropped", "sampled", "edge_sample") == ids_of(sampled)
    texts = {number_in(it["text"]) for all_of_it in answers.edges.values() for it in all_of_it
             if it["fate"] == "dropped"}  # fmt: skip
    assert texts == heartbeats | sampled


def check_lake(pipes: Pipeline, stored: Stored, answers: Answers) -> None:
    said, lake = answers.sinks["lake"], set(read_lake(pipes.job.lake)["offset"].to_pylist())
    assert answers.at("lake", "delivered") == lake
    files = {it["found"] for it in said.values() if it["fate"] == "delivered"}
    held = {name: set(pq.read_table(name, columns=["offset"])["offset"].to_pylist())
            for name in files}  # fmt: skip
    assert all(at in held[said[at]["found"]] for at in lake)
    assert answers.at("lake", "dead_letter") == stored.malformed
    first = dict[str, int]()
    for at in sorted(lake):
        first.setdefault(stored.ids[at], at)
    copies = answers.at("lake", "deduplicated")
    assert copies
    assert all(first[stored.ids[at]] < at for at in copies)
    others = set(range(len(stored.ids))) - lake - stored.malformed - copies
    assert answers.at("lake", "sampled") == others
    assert len(others) > COUNT // 4


def check_errors(pipes: Pipeline, stored: Stored, answers: Answers) -> None:
    errors = set(read_lake(pipes.directory / "router" / "errors")["offset"].to_pylist())
    assert answers.at("errors", "delivered") == errors == stored.where(set(range(0, COUNT, 10)))
    assert answers.at("errors", "dead_letter") == stored.malformed


def posted(stored: Stored, destination: HttpDestination) -> set[int]:
    """Offsets of the records that a destination has."""
    return stored.where({number_in(record["body"]) for record in destination.records})


WANTED: Final = {number for number in range(COUNT) if number % 3 != 2}
"""Numbers of the records that the route `orders` takes."""

REFUSED: Final = {number for number in WANTED if number % 250 == 0}


def check_orders(pipes: Pipeline, stored: Stored, answers: Answers) -> None:
    """The sink that refuses some, and the one that is down."""
    wanted, refused = stored.where(WANTED), stored.where(REFUSED)
    others = set(range(len(stored.ids))) - wanted - stored.malformed
    assert answers.at("search", "delivered") == posted(stored, pipes.search) == wanted - refused
    assert answers.at("search", "dead_letter") == refused | stored.malformed
    assert answers.at("search", "not_routed") == others
    assert answers.at("down", "not_routed") == others
    waiting = answers.at("down", "waiting")
    assert waiting | answers.at("down", "dead_letter") == wanted | stored.malformed
    assert waiting >= wanted


def test_every_answer_is_true_after_kills_in_between(tmp_path: Path, nats_url: str) -> None:
    with pipeline(tmp_path, nats_url) as pipes:
        pipes.kill_in_between()
        pipes.send_the_rest()
        stored = Stored.read(pipes.logd)
        pipes.wait_delivered(len(stored.ids))
        answers = ask_for_all(pipes)
        assert all(set(it) == set(range(len(stored.ids))) for it in answers.sinks.values())
        check_edge(stored, answers)
        check_lake(pipes, stored, answers)
        check_errors(pipes, stored, answers)
        check_orders(pipes, stored, answers)

        pipes.down.open()
        pipes.wait_delivered(len(stored.ids), "down")
        answers = ask_for_all(pipes)
        wanted = stored.where(WANTED)
        assert answers.at("down", "delivered") == posted(stored, pipes.down) == wanted
        assert answers.at("down", "dead_letter") == stored.malformed
