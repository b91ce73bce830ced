"""A pipeline to search in: a real logd with 1,000 streams; its parts answer as real ones do."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.deploy.console.daemon import Console
from penstock.router.trace.verdict import ConditionResult, Fate, Verdict
from tests.support.console import FakePart, a_status, running_console
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server
from tests.support.router import FIRST_TIME_NS, publish

STREAMS = 1_000
COLLECTORS = 50
LOGS = 250
TRACE = "0af7651916cd43dd8448eb211c80319c"
HOSTILE = "<img src=x onerror=alert(1)>"
MS = 1_000_000


def a_record(number: int, **more: Any) -> bytes:
    """A log record; every tenth is an error, every 25th is declined."""
    is_error = number % 10 == 0
    return json.dumps(
        {
            "schema": "log/1.0",
            "kind": "log",
            "time_unix_nano": FIRST_TIME_NS + number * MS,
            "observed_time_unix_nano": FIRST_TIME_NS + number * MS + 400_000,
            "severity_number": 17 if is_error else 9,
            "severity_text": "ERROR" if is_error else "INFO",
            "body": f"order {number} {'declined' if number % 25 == 0 else 'placed'}",
            "trace_id": TRACE if number in (3, 10, 11) else f"{number + 1:032x}",
            "span_id": "00000000000000b3",
            "record_id": f"{number:032x}",
            "resource": {"service.name": "checkout" if number % 2 else "cart"},
            **more,
        }
    ).encode()


def a_span(number: int, parent: int | None, start_ms: int, end_ms: int, name: str) -> bytes:
    """A span of the trace; number 5 failed."""
    return json.dumps(
        {
            "schema": "span/1.0",
            "kind": "span",
            "time_unix_nano": FIRST_TIME_NS + start_ms * MS,
            "end_time_unix_nano": FIRST_TIME_NS + end_ms * MS,
            "trace_id": TRACE,
            "span_id": f"{0xB0 + number:016x}",
            "parent_span_id": None if parent is None else f"{0xB0 + parent:016x}",
            "name": name,
            "status_code": "ERROR" if number == 5 else "OK",
            "resource": {"service.name": "checkout" if number < 4 else "payment"},
        }
    ).encode()


SPANS = [
    a_span(1, None, 0, 42, "POST /orders"),
    a_span(2, 1, 1, 8, "check the basket"),
    a_span(3, 1, 9, 40, "pay"),
    a_span(4, 3, 11, 38, "POST /charges"),
    a_span(5, 4, 14, 30, "ask the bank"),
]


def verdicts_of(offset: int) -> list[Verdict]:
    """One verdict of each kind, in the form in which a job gives it."""
    letter = {
        "code": "http_400", "status": 400, "attempt": 1, "time": "2026-11-18T13:06:42+00:00",
        "replay": "penstock router dlq replay JOB search/logs.5f2c19aa-0-7-8",
    }  # fmt: skip
    is_not = ConditionResult("errors", "severity_number >= 17", False, {"severity_number": "9"})
    return [
        Verdict("lake", "parquet", Fate.DELIVERED, route="all", batch=812,
                time_ns=FIRST_TIME_NS + 2_000 * MS,
                found="/srv/lake/kind=log/date=2026-11-18/hour=13/logs.5f2c19aa-0-0-1.parquet"),
        Verdict("search", "elasticsearch", Fate.DEAD_LETTER, "mapper_parsing_exception",
                dead_letter=letter),
        Verdict("errors", "parquet", Fate.NOT_ROUTED, "no route leads it to the sink",
                conditions=(is_not,)),
        Verdict("alerts", "http", Fate.WAITING, "the sink has not got so far", next=0,
                behind=offset),
        Verdict("thin", "parquet", Fate.SAMPLED, "sample of route thin left it out",
                step="routes.1.transforms.0.sample"),
        Verdict("old", "parquet", Fate.LOST, "retention deleted it before the sink had read it",
                lost=(7, 250)),
        Verdict("moved", "loki", Fate.UNKNOWN, "the routes have changed since its batch"),
    ]  # fmt: skip


def explained(job: str, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """A job's answer to `explain`: it reads the stream logs."""
    found = [
        {
            "stream": stream, "partition": partition, "offset": offset,
            "sinks": [it.as_json() for it in verdicts_of(offset)],
        }
        for stream, partition, offset, _ in document["records"]
        if stream == "logs"
    ]  # fmt: skip
    return 200, {"job": job, "records": found}


APPLICATIONS: dict[str, Any] = {
    "reconciliation": {"app": {"received": 5, "delivered": 5}},
    "apps": {
        "app": {
            "senders": {"1": {"service": "checkout", "emitted": 20, "acked": 5, "queued": 3,
                              "dropped": {"queue_full": 12}, "time_ns": FIRST_TIME_NS}},
        },
    },
}  # fmt: skip
"""What the first collector knows of its applications."""


def dropped(document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """A collector's answer about records that never reached the log."""
    if document.get("text") != "declined":
        return 200, {"drops": [], "missed": [], "quarantine": []}
    facts = {"time_unix_nano": FIRST_TIME_NS, "source": "app", "service": "checkout",
             "trace_id": TRACE, "record_id": ""}  # fmt: skip
    drop = {**facts, "reason": "filtered", "step": "quiet", "text": f"card declined {HOSTILE}"}
    kept = {**facts, "reason": "missing_field: body", "replayed": False}
    return 200, {"drops": [drop], "missed": [{"records": 7}], "quarantine": [kept]}


def fill(nats_url: str, names: list[str]) -> None:
    """Publish the logs, the spans, and a record to every 50th of the other streams."""
    values = [a_record(number) for number in range(LOGS)]
    values[7] = a_record(7, body=f"order 7 {HOSTILE}")
    publish(nats_url, "telemetry.logs.checkout", values)
    publish(nats_url, "telemetry.traces.checkout", SPANS)
    for name in names[::50]:
        publish(nats_url, f"telemetry.{name}.x", [a_record(1, body=f"{name} begins")])


@dataclass
class SearchedPipeline:
    """The pipeline, and a console of it.

    Attributes:
        job: The job `main`, which answers.
        collectors: The collectors, of which the first drops records.
        directory: The console's.
    """

    console: Console
    logd: Logd
    job: FakePart
    collectors: list[FakePart]
    directory: Path

    @property
    def address(self) -> str:
        """HOST:PORT of the page."""
        return self.console.address


@contextmanager
def searched_pipeline(directory: Path, **options: Any) -> Iterator[SearchedPipeline]:
    """Run it: 1,000 streams, one job, 50 collectors, of which two do not answer."""
    names = [f"orders-{number}" for number in range(STREAMS - 2)]
    streams = [{"name": "logs", "subject": "telemetry.logs.>"}]
    streams += [{"name": "traces", "subject": "telemetry.traces.>"}]
    streams += [{"name": name, "subject": f"telemetry.{name}.>"} for name in names]
    with ExitStack() as stack:
        nats_url = stack.enter_context(running_nats_server(directory / "nats"))
        logd = stack.enter_context(Logd(directory / "logd", nats_url, streams))
        filling = stack.enter_context(ThreadPoolExecutor(1))  # Playwright has this thread's loop
        filling.submit(fill, nats_url, names).result()
        sinks = {"alerts": {"problem": "HTTP 503", "records_per_s": 0}}
        job = FakePart(lambda: a_status("router", "main", info={"sinks": sinks}))
        job.answers["explain"] = lambda document: explained("main", document)
        parts = {"router": job}
        for number in range(COLLECTORS - 2):
            status = a_status(
                "collector", f"edge-{number}", info=APPLICATIONS if not number else {}
            )
            part = FakePart(lambda status=status: status)  # type: ignore[misc]
            nothing: dict[str, Any] = {"drops": [], "missed": [], "quarantine": []}
            part.answers[""] = dropped if number == 0 else (200, nothing)
            parts[f"collector-{number}"] = part
        for part in parts.values():
            stack.callback(part.close)
        urls = {name: part.url for name, part in parts.items()}
        urls |= {f"collector-{COLLECTORS - 1 - it}": "http://127.0.0.1:1" for it in range(2)}
        home = directory / "console"
        home.mkdir()
        more = {"logd": logd.fetch, **options}
        console = stack.enter_context(running_console(home, urls, **more))
        collectors = [part for name, part in parts.items() if name != "router"]
        yield SearchedPipeline(console, logd, job, collectors, home)
