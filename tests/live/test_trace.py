"""Where is my record: every answer of `penstock trace` compared with what is really there."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.deploy.cli import cli
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.console.search.form import read_form
from penstock.deploy.console.search.searches import Searches
from penstock.deploy.trace.find import PartitionRange, by_id, scan
from penstock.logd.client import LogClient
from penstock.router.checkpoint.local import lock_holder
from penstock.service import ExitCode
from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.router import FIRST_TIME_NS, RouterJob, publish, read_lake
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

COUNT = 300
STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]
MALFORMED = 7
"""Number of the record that is none."""


def line(number: int) -> bytes:
    """A log record; every tenth is an error, every 25th is declined, ids come twice."""
    if number == MALFORMED:
        return b"no record"
    return json.dumps(
        {
            "schema": "log/1.0",
            "kind": "log",
            "time_unix_nano": FIRST_TIME_NS + number * 1_000_001,
            "severity_number": 17 if number % 10 == 0 else 9,
            "body": f"order {number} {'declined' if number % 25 == 0 else 'placed'}",
            "trace_id": f"{number // 2 + 1:032x}",
            "record_id": record_id(number),
            "resource": {"service.name": "checkout"},
        }
    ).encode()


def record_id(number: int) -> str:
    """Records 3 and 4, 23 and 24 and so on have one id."""
    return f"r{number - 1 if number % 20 == 4 else number:06d}"


class Refusing(HttpDestination):
    """Refuses a request with a declined order for good."""

    @override
    def take(self, key: str, body: bytes) -> int:
        return 400 if b"declined" in body else super().take(key, body)


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        yield running


@pytest.fixture
def search() -> Iterator[Refusing]:
    destination = Refusing()
    destination.open()
    yield destination
    destination.close()


def job_of(
    directory: Path, logd: Logd, search: HttpDestination, down: HttpDestination
) -> RouterJob:
    def http(destination: HttpDestination) -> dict[str, Any]:
        batch = {"max_records": 20}
        return {"type": "http", "url": destination.url, "batch": batch,
                "retry": {"initial_backoff_s": 0.05, "max_backoff_s": 0.2}}  # fmt: skip

    made = RouterJob(
        directory, logd.fetch, streams=["logs"], trigger={"interval_s": 0.1, "max_records": 100}
    )
    made.config["routes"] = [
        {"name": "thin", "transforms": [{"sample": {"rate": 0.5}}, {"dedupe": {"within_s": 600}}],
         "sinks": ["lake"]},
        {"name": "errors", "where": "severity_number >= 17", "sinks": ["errors"]},
        {"name": "orders", "where": "body like 'order%'", "sinks": ["search", "down"]},
    ]  # fmt: skip
    made.config["sinks"] |= {
        "errors": {"type": "parquet", "path": str(directory / "errors")},
        "search": http(search),
        "down": http(down),
    }
    return made


def asked(logd: Logd, job: RouterJob, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the answer of the command; the job may be stopped."""
    file = f"--job={job.checkpoint_dir.parent / 'router.yaml'}"
    return asked_without_file(logd, job, file, *arguments)


def asked_without_file(logd: Logd, job: RouterJob, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The same, where the command does not know the job file."""
    admin = f"http://{job.config['admin']}"
    base = ["trace", "--server", logd.fetch, "--url", admin, "--json", "--limit", "10000"]
    done = CliRunner().invoke(cli, [*base, *arguments])
    assert done.exit_code in (0, 1, 69), done.output
    return done.exit_code, json.loads(done.stdout)


def offsets_in(lake: Path) -> set[int]:
    return set(read_lake(lake)["offset"].to_pylist()) if any(lake.rglob("*.parquet")) else set()


def fates_of(answer: dict[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """By sink and offset, what was said."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for record in answer["records"]:
        for verdict in record["sinks"]:
            found.setdefault(verdict["sink"], {})[record["offset"]] = verdict
    return found


def is_delivered(job: RouterJob) -> bool:
    """Whether every sink but the one that is down has got everything."""
    sinks = job.daemon.status()["info"]["sinks"]
    return all(
        sinks[name]["committed"].get("logs") == COUNT for name in ("lake", "errors", "search")
    )


def test_every_answer_about_every_record_is_true(
    tmp_path: Path, nats_url: str, logd: Logd, search: Refusing
) -> None:
    values = [line(number) for number in range(COUNT)]
    publish(nats_url, "telemetry.logs.checkout", values, records=50)
    down = HttpDestination()  # nothing listens there
    job = job_of(tmp_path / "router", logd, search, down)
    job.daemon.start(within_s=120)
    try:
        wait_until(lambda: is_delivered(job), within_s=120, what="the sinks that work")
        positions = [f"--position=logs/0/{number}" for number in range(COUNT)]
        code, answer = asked(logd, job, *positions)
        assert (code, len(answer["records"]), answer["not_asked"]) == (ExitCode.FAILURE, COUNT, {})
        said = fates_of(answer)
        check_thin(job, said["lake"])
        check_errors(tmp_path / "router" / "errors", said["errors"])
        check_search(search, said["search"])
        fates = {at: it["fate"] for at, it in said["down"].items() if at != MALFORMED}
        assert set(fates.values()) == {"waiting"}
        assert said["down"][5]["behind"] == 5
        assert said["down"][5]["problem"]
        check_searches(logd, job)
        job.daemon.kill()
        wait_until(lambda: lock_holder(job.checkpoint_dir) is None, what="the end of its JVM")
        check_the_stopped_job(logd, job, answer)
        check_what_is_gone(logd, job)
    finally:
        job.daemon.close()


Said = dict[int, dict[str, Any]]
"""Verdicts by offset."""


def check_thin(job: RouterJob, said: Said) -> None:
    """The lake has what it is said to have, in the files that are named."""
    lake = {at for at, it in said.items() if it["fate"] == "delivered"}
    assert lake == offsets_in(job.lake)
    for at in lake:
        held = pq.read_table(said[at]["found"], columns=["offset"])["offset"].to_pylist()
        assert at in held
        assert said[at]["batch"] == at // 100
    fates = {it["fate"] for at, it in said.items() if at not in lake}
    assert fates == {"sampled", "deduplicated", "dead_letter"}
    for at, it in said.items():
        if it["fate"] == "deduplicated":
            assert record_id(at) in {record_id(other) for other in lake if other < at}


def check_errors(directory: Path, said: Said) -> None:
    """Only errors are delivered, and the condition that left another out is shown."""
    errors = {at for at, it in said.items() if it["fate"] == "delivered"}
    assert errors == offsets_in(directory) == set(range(0, COUNT, 10))
    assert said[3]["fate"] == "not_routed"
    (condition,) = said[3]["conditions"]
    assert condition == {
        "route": "errors",
        "where": "severity_number >= 17",
        "result": False,
        "values": {"severity_number": "9"},
    }


def check_search(search: Refusing, said: Said) -> None:
    """The destination has what is said, and the rest are dead letters with its answer."""
    posted = {int(record["body"].split()[1]) for record in search.records}
    assert posted == {at for at, it in said.items() if it["fate"] == "delivered"}
    refused = {at for at, it in said.items() if it["fate"] == "dead_letter"}
    assert refused == {*range(0, COUNT, 25), MALFORMED}
    assert posted | refused == set(range(COUNT))
    letter = said[25]["dead_letter"]
    assert (letter["code"], letter["status"]) == ("http_400", 400)
    assert said[MALFORMED]["dead_letter"]["code"] == "malformed"


def check_searches(logd: Logd, job: RouterJob) -> None:
    """Each way to name a record finds it, and no other."""

    def offsets(*arguments: str) -> list[int]:
        return sorted(it["offset"] for it in asked(logd, job, *arguments)[1]["records"])

    assert offsets("--trace-id", f"{6:032x}") == [10, 11]
    assert offsets("--record-id", record_id(3)) == [3, 4]
    assert offsets("--record-id", record_id(3), "--stream", "logs", "--to", "4") == [3]
    assert offsets("--record-id", "r-nobody") == []
    where = "service = 'checkout' and body like '%declined%' and severity_number < 17"
    wanted = [number for number in range(0, COUNT, 25) if number % 10]
    assert offsets("--where", where) == wanted
    assert offsets("--where", "substring_index(body, ' ', 2) = 'order 42'") == [42]
    refused = CliRunner().invoke(
        cli,
        [
            "trace",
            "--server",
            logd.fetch,
            "--url",
            f"http://{job.config['admin']}",
            "--where",
            "x =",
        ],
    )
    assert (refused.exit_code, "is not a condition" in refused.output) == (ExitCode.USAGE, True)


def check_the_stopped_job(logd: Logd, job: RouterJob, before: dict[str, Any]) -> None:
    """A job that does not run is asked by its files, and says the same."""
    positions = [f"--position=logs/0/{number}" for number in range(COUNT)]
    code, answer = asked(logd, job, *positions)
    assert (code, answer["not_asked"]) == (ExitCode.FAILURE, {})
    assert answer["not_running"]["test"].startswith("it does not run;")
    said, running = fates_of(answer), fates_of(before)
    for sink in ("lake", "errors", "search"):
        assert said[sink] == running[sink]
    fates = {at: it["fate"] for at, it in said["down"].items() if at != MALFORMED}
    assert set(fates.values()) == {"waiting"}
    where = "substring_index(body, ' ', 2) = 'order 42'"
    assert [it["offset"] for it in asked(logd, job, "--where", where)[1]["records"]] == [42]


def searched(logd: Logd, job_files: list[Path], **form: str) -> dict[str, Any]:
    """The answer of the console's search page."""
    config = ConsoleConfig(logd=logd.fetch)
    searches = Searches(config, SystemClock())
    name = searches.start(read_form(form, streams=(), max_records=100, job_files=job_files))

    def answer() -> dict[str, Any]:
        told = json.loads(searches.describe(name) or b"{}")
        assert told["state"] in ("running", "done"), told
        found: dict[str, Any] = told.get("answer", {})
        return found

    return wait_until(answer, within_s=120, what="an answer")


def test_a_job_that_never_ran_says_what_it_would_do(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    publish(nats_url, "telemetry.logs.checkout", [line(number) for number in range(20)])
    job = RouterJob(tmp_path / "router", logd.fetch, streams=["logs"])
    job.config["routes"] = [{"name": "e", "where": "severity_number >= 17", "sinks": ["lake"]}]
    job.daemon.write_config()
    code, answer = asked(logd, job, "--position=logs/0/10", "--position=logs/0/11")
    assert (code, answer["not_asked"]) == (ExitCode.FAILURE, {})
    assert answer["not_running"]["test"].startswith("it does not run and never has;")
    said = fates_of(answer)["lake"]
    assert (said[10]["fate"], said[11]["fate"]) == ("waiting", "not_routed")
    files = [job.checkpoint_dir.parent / "router.yaml"]
    shown = searched(logd, files, where="severity_number >= 17", stopped="yes")
    assert [it["offset"] for it in shown["records"]] == [0, 10]
    assert {it["sinks"][0]["fate"] for it in shown["records"]} == {"waiting"}
    assert [*shown["not_running"]] == ["test"]
    assert not job.checkpoint_dir.exists(), "asking leaves nothing"
    job.config["starting_offsets"] = "latest"
    job.daemon.write_config()
    said = fates_of(asked(logd, job, "--position=logs/0/10")[1])["lake"]
    assert said[10]["fate"] == "not_read"


def check_what_is_gone(logd: Logd, job: RouterJob) -> None:
    """What the log deleted before a sink had read it is lost there, and unknown elsewhere."""
    with LogClient(logd.fetch) as log:
        log.purge("logs", COUNT)
        assert log.offsets("logs").start == COUNT
    code, answer = asked(logd, job, "--position", "logs/0/5")
    said = fates_of(answer)
    assert code == ExitCode.FAILURE
    assert said["down"][5]["fate"] == "lost"
    assert said["lake"][5]["fate"] in ("unknown", "dead_letter")
    assert (
        fates_of(asked(logd, job, "--position", "logs/0/25")[1])["search"][25]["fate"]
        == "dead_letter"
    )
    code, answer = asked_without_file(logd, job, "--position", "logs/0/5")
    assert (code, list(answer["not_asked"])) == (
        ExitCode.UNAVAILABLE,
        [f"http://{job.config['admin']}"],
    )


def test_an_id_is_found_by_the_index_of_logd(nats_url: str, logd: Logd) -> None:
    """A search reads only the ranges of the log that may hold the id, also after a restart."""
    count, per_batch = 60_000, 2000
    ids = [f"{random.Random(number).getrandbits(128):032x}" for number in range(count)]
    values = [b'{"kind":"log","record_id":"%s"}' % it.encode() for it in ids]
    publish(nats_url, "telemetry.logs.checkout", values, records=per_batch)
    wanted = random.Random(7).sample(range(count), 5)

    def is_indexed(log: LogClient) -> bool:
        nobody = log.find_ids("logs", ["nobody"], 0, count)
        return sum(upto - first for first, upto in nobody) < count / 2

    def check(log: LogClient) -> None:
        for number in wanted:
            found = log.find_ids("logs", [ids[number]], 0, count)
            assert any(first <= number < upto for first, upto in found)
        part = [PartitionRange("logs", 0, 0, count)]
        result = scan(log, part, by_id([], [ids[wanted[0]]]), limit=2)
        assert [it.offset for it in result.records] == [wanted[0]]

    with logd.client() as log:
        check(log)
        wait_until(lambda: is_indexed(log), within_s=60, what="the index")
        check(log)
    (index,) = logd.data_dir.glob("streams/*/0/ids")
    held = index.read_bytes()
    assert len(held) < 20 * count
    logd.daemon.kill()
    logd.daemon.start()
    with logd.client() as log:
        assert is_indexed(log)
        check(log)
    assert index.read_bytes() == held
