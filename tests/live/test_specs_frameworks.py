"""Real frameworks, set up as the documents say: what arrives of each.

The examples are those of `docs/howto/frameworks.md`; each gets an application below, which says the
same things. The table there is made here.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.collector_socket import CollectorSocket
from tests.support.waiting import wait_until
from tests.support.walkthrough import File, read_document

pytestmark = pytest.mark.live

PAGE = Path(__file__).parents[2] / "docs/howto/frameworks.md"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
SAY = """
import atexit, logging
from penstock import specs

atexit.register(lambda: logging.getLogger("app").warning("last words"))

def say():
    logging.getLogger("app").info("from logging")
    specs.log("app").info("from structlog")
    try:
        raise LookupError("no such order")
    except LookupError:
        logging.getLogger("app").exception("failed")
"""
"""A module of every application; its exit handler is registered first, so it runs last."""

LOGGING = """
import sys
import say
import logging_app
from opentelemetry import propagate, trace
from penstock import specs
parent = propagate.extract({"traceparent": sys.argv[1]})
with trace.get_tracer("app").start_as_current_span("work", parent):
    say.say()
"""

LOGURU = """
import sys
import say
from loguru_app import logger
from opentelemetry import propagate, trace
from penstock import specs
parent = propagate.extract({"traceparent": sys.argv[1]})
with trace.get_tracer("app").start_as_current_span("work", parent):
    logger.bind(order_id="o-1").info("from logging")
    specs.log("app").info("from structlog")
    try:
        raise LookupError("no such order")
    except LookupError:
        logger.exception("failed")
"""

URLS = """
import say
from django.http import HttpResponse
from django.urls import path

def order(request, number):
    say.say()
    return HttpResponse("ok", status=500 if number == 0 else 200)

urlpatterns = [path("orders/<int:number>/", order)]
"""

FLASK = """
import say
from flask_app import app

@app.get("/orders/<int:number>/")
def order(number):
    say.say()
    if number == 0:
        raise ArithmeticError("zero")
    return "ok"
"""

FASTAPI = """
import contextlib, logging
import say
from fastapi_app import app

@contextlib.asynccontextmanager
async def lifespan(app):
    yield
    logging.getLogger("app").warning("last words")

app.router.lifespan_context = lifespan

@app.get("/orders/{number}/")
async def order(number: int):
    say.say()
    if number == 0:
        raise ArithmeticError("zero")
    return "ok"
"""

CELERY = """
import os
import say
from tasks import app
for name in ("queue", "control"):
    os.makedirs(name, exist_ok=True)
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control",
        "polling_interval": 0.05,
    },
    task_ignore_result=True,
)

@app.task
def charge(number):
    say.say()
"""

WORKERS = """
import say
import worker
if __name__ == "__main__":
    worker.run_task(say.say)
    worker.run_pool(say.say, 2)
"""


@dataclass
class Running:
    """What a test drives."""

    directory: Path
    collector: CollectorSocket

    def environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
        return {**kept, "PENSTOCK_SOCKET": str(self.collector.path), "PYTHONPATH": "."}

    def python(self, program: str) -> None:
        (self.directory / "program.py").write_text(program)
        done = subprocess.run(
            [sys.executable, "program.py", PARENT["traceparent"]],
            cwd=self.directory, env=self.environment(),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    @contextmanager
    def server(self, *command: str) -> Iterator[None]:
        """A process until SIGTERM ends it."""
        with (self.directory / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=self.directory, env=self.environment(),
                stdout=output, stderr=output,
            )  # fmt: skip
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)

    def get(self, *paths: str) -> None:
        """Requests to a server at the socket `web.sock`, once it is there."""
        place = str(self.directory / "web.sock")

        def listens() -> bool:
            with socket.socket(socket.AF_UNIX) as attempt:
                return attempt.connect_ex(place) == 0

        wait_until(listens, within_s=30, what="a server")
        transport = httpx.HTTPTransport(uds=place)
        with httpx.Client(transport=transport, base_url="http://shop", timeout=20) as client:
            for path in paths:
                client.get(path, headers=PARENT)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.collector.records]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    for step in read_document(PAGE.read_text()):
        if isinstance(step, File):
            (tmp_path / step.name).write_text(step.text)
    (tmp_path / "say.py").write_text(SAY)
    collector = CollectorSocket(tmp_path / "c.sock")
    collector.start()
    yield Running(tmp_path, collector)
    collector.stop()


def logging_and_structlog(running: Running) -> None:
    running.python(LOGGING)


def loguru(running: Running) -> None:
    running.python(LOGURU)


def django(running: Running) -> None:
    (running.directory / "urls.py").write_text(URLS)
    with running.server("gunicorn", "-b", "unix:web.sock", "wsgi:application"):
        running.get("/orders/7/", "/orders/0/")


def flask(running: Running) -> None:
    (running.directory / "site_.py").write_text(FLASK)
    with running.server("gunicorn", "-b", "unix:web.sock", "site_:app"):
        running.get("/orders/7/", "/orders/0/")


def fastapi(running: Running) -> None:
    (running.directory / "site_.py").write_text(FASTAPI)
    with running.server("uvicorn", "--uds", "web.sock", "site_:app"):
        running.get("/orders/7/", "/orders/0/")


def celery(running: Running, tasks: str = "tasks") -> None:
    (running.directory / "site_.py").write_text(CELERY.replace("from tasks", f"from {tasks}"))
    running.python("import site_\nfor number in range(3): site_.charge.delay(number)")
    said = running.collector.bodies
    worker = ("celery", "-A", "site_", "worker", "-c", "1", "--max-tasks-per-child=1", "-l", "INFO")
    with running.server(*worker):
        wait_until(lambda: said().count("from logging") == 3, what="three tasks", within_s=40)


def celery_alone(running: Running) -> None:
    celery(running, "tasks_alone")


def workers(running: Running) -> None:
    running.python(WORKERS)
    assert running.collector.bodies().count("from logging") == 3


FRAMEWORKS: Sequence[tuple[str, Callable[[Running], None], tuple[str, ...]]] = (
    ("logging, structlog", logging_and_structlog, ()),
    ("loguru", loguru, ()),
    ("Django, gunicorn", django, ("django.request", "gunicorn.error")),
    ("Flask, gunicorn", flask, ("flask_app", "gunicorn.error")),
    ("FastAPI, uvicorn", fastapi, ("uvicorn.error",)),
    ("Celery", celery, ("celery.app.trace", "celery.worker.strategy")),
    ("Celery, `setup_logging`", celery_alone, ("celery.app.trace", "celery.worker.strategy")),
    ("workers", workers, ()),
)


def row(name: str, records: Sequence[dict[str, Any]], scopes: Sequence[str]) -> str:
    """Of the table: what arrived."""
    logs = [record for record in records if record["kind"] == "log"]
    by_body = {record["body"]: record for record in logs}
    app = [by_body.get("from logging"), by_body.get("from structlog")]
    failed = by_body.get("failed", {}).get("attributes", {})
    served = [each for each in records if each["kind"] == "span" and each["span_kind"] == "SERVER"]
    spans = sorted({each["name"] for each in served})
    seen = {record.get("scope") for record in logs}
    cells = [
        name,
        yes(app[0] is not None),
        yes(app[1] is not None),
        yes(all(record is not None and record.get("trace_id") == TRACE for record in app)),
        yes('raise LookupError("no such order")' in failed.get("exception.stacktrace", "")),
        ", ".join(f"`{span}`" for span in spans),
        ", ".join(f"`{scope}`" for scope in scopes if scope in seen),
        yes("last words" in by_body),
    ]
    return "| " + " | ".join(cell or "-" for cell in cells) + " |"


def yes(value: bool) -> str:
    return "yes" if value else ""


@pytest.mark.parametrize(("name", "drive", "scopes"), FRAMEWORKS, ids=[f[0] for f in FRAMEWORKS])
def test_what_arrives_of_a_framework_is_what_the_page_says(
    running: Running, name: str, drive: Callable[[Running], None], scopes: Sequence[str]
) -> None:
    drive(running)
    assert row(name, running.records(), scopes) in PAGE.read_text().splitlines()


@pytest.mark.parametrize("option", ["--preload", "--worker-class=gevent", "--threads=4"])
def test_gunicorns_kinds_of_workers_say_the_same(running: Running, option: str) -> None:
    (running.directory / "site_.py").write_text(FLASK)
    with running.server("gunicorn", option, "-b", "unix:web.sock", "site_:app"):
        running.get("/orders/7/", "/orders/0/")
    name, _, scopes = next(each for each in FRAMEWORKS if each[0].startswith("Flask"))
    assert row(name, running.records(), scopes) in PAGE.read_text().splitlines()
