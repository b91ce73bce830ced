"""Set-up, structlog, the standard library's logging, bindings: what comes out is checked."""

import ast
import asyncio
import json
import logging
import logging.config
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext as does_not_raise
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from typing_extensions import override

from penstock import specs
from penstock.specs import Audit, Emitter, EmitterLimits, Event
from penstock.specs.emit import process_emitter
from penstock.specs.emit.delivery import unpatched
from penstock.specs.emit.delivery.core import Delivery
from penstock.specs.emit.delivery.queue import RecordQueue
from penstock.specs.emit.delivery.transport import Report, StreamLink
from penstock.specs.emit.delivery.worker import DeliveryWorker
from penstock.specs.emit.handler import SpecHandler, severity_of
from penstock.specs.emit.structlog_processor import SpecProcessor, configure_structlog
from tests.unit.specs.output import Output


class AppOpened(Event, spec="app_test.opened/1.0"):
    """A specialised spec of this test."""

    door: int


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    made = Output(tmp_path / "out.ndjson")
    configure_structlog()
    process_emitter.use_emitter(made.emitter)
    yield made
    process_emitter.use_emitter(None)
    structlog.reset_defaults()
    made.close()


def test_structlog_call_becomes_a_record(output: Output) -> None:
    specs.log("shop").warning("low stock", product="mug", left=3)
    (record,) = output.records()
    assert record["scope"] == "shop"
    assert (record["severity_number"], record["severity_text"]) == (13, "WARN")
    assert record["body"] == "low stock"
    assert record["attributes"] == {"product": "mug", "left": 3}
    assert record["resource"]["service.name"] == "app"


def test_level_filters(output: Output) -> None:
    specs.log().debug("quiet")
    assert output.records() == []


def test_exception_is_attached(output: Output) -> None:
    try:
        {}.popitem()
    except KeyError:
        specs.log().exception("failed")
    specs.log().error("given", exc_info=ValueError("v"))
    specs.log().error("none", exc_info=True)
    found = [record.get("attributes", {}).get("exception.type") for record in output.records()]
    assert found == ["KeyError", "ValueError", None]


def test_bound_context_and_attributes_are_on_every_record(output: Output) -> None:
    with specs.bind(user_id="u", shop="s"), specs.bind(**{"request.id": "r"}, shop="t"):
        specs.log().info("inside")
        AppOpened(door=1).emit()
    specs.log().info("outside")
    log, event, outside = output.records()
    assert log["context"] == event["context"] == {"user.id": "u", "request.id": "r"}
    assert log["attributes"] == {"shop": "t"}
    assert event["attributes"] == {"shop": "t", "app_test.door": 1}
    assert "context" not in outside
    assert "attributes" not in outside


async def test_binding_crosses_tasks_and_not_threads(output: Output) -> None:
    async def work() -> None:
        specs.log().info("task")

    with specs.bind(user_id="u"):
        await asyncio.create_task(work())
        await asyncio.to_thread(specs.log().info, "to_thread")
        thread = threading.Thread(target=specs.log().info, args=("thread",))
        thread.start()
        thread.join()
    found = {record["body"]: record.get("context") for record in output.records()}
    assert found == {"task": {"user.id": "u"}, "to_thread": {"user.id": "u"}, "thread": None}


def test_trace_ids_are_on_logs_and_events(output: Output) -> None:
    tracer = TracerProvider().get_tracer("t")
    with tracer.start_as_current_span("work") as span:
        specs.log().info("inside")
        AppOpened(door=2).emit()
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert [record["trace_id"] for record in output.records()] == [trace_id] * 2


def test_audit_record_emits_itself(output: Output) -> None:
    Audit(
        event_name="door.opened",
        actor=specs.Actor(type="user", id="u"),
        action="update",
        target=specs.Target(type="door", id="1"),
        outcome="success",
        auth_method="passkey",
    ).emit()
    (record,) = output.records()
    assert record["auth.method"] == "passkey"


def test_standard_logging_becomes_records(output: Output) -> None:
    logger = logging.getLogger("app_test")
    logger.propagate = False
    handler = SpecHandler(output.emitter)
    logger.addHandler(handler)
    try:
        logger.error("hello %s", "you", extra={"door": 3})
        logger.error("broken %d", "you")
    finally:
        logger.removeHandler(handler)
    record, broken = output.records()
    assert (record["body"], record["scope"]) == ("hello you", "app_test")
    assert record["attributes"]["door"] == 3
    assert record["attributes"]["code.function.name"] == "test_standard_logging_becomes_records"
    assert broken["body"] == "broken %d"


def test_a_message_that_breaks_when_it_is_looked_at_does_not_break_its_logger(
    output: Output,
) -> None:
    class Hostile:
        @override
        def __str__(self) -> str:
            raise RuntimeError("no")

    record = logging.LogRecord("app_test", logging.INFO, "", 1, Hostile(), None, None)
    SpecHandler(output.emitter).handle(record)
    (sent,) = output.records()
    assert sent["body"] == "<Hostile>"


@pytest.mark.parametrize(
    ("level", "expected"), [(0, 1), (5, 1), (10, 5), (20, 9), (25, 9), (30, 13), (40, 17), (90, 21)]
)
def test_levels_become_severity_numbers(level: int, expected: int) -> None:
    assert severity_of(level) == expected


def test_processor_never_raises(output: Output) -> None:
    class Hostile(dict[str, Any]):
        @override
        def keys(self) -> Any:
            raise RuntimeError("no")

        @override
        def __iter__(self) -> Any:
            raise RuntimeError("no")

    SpecProcessor()(None, "info", Hostile(event="x", a=1))
    (record,) = output.records()
    assert (record["body"], record["attributes"]) == ("x", {"penstock.sanitised": "RuntimeError"})


def test_what_cannot_be_a_record_is_counted_and_not_sent(output: Output) -> None:
    assert not output.emitter.emit("log", b"x" * (256 * 1024 + 1))
    assert not output.emitter.emit("logs", b"{}")
    assert output.emitter.counters().dropped == {
        "log": {"too_large": 1},
        "logs": {"bad_kind": 1},
    }
    assert output.records() == []


def test_event_without_setup_is_dropped_quietly() -> None:
    process_emitter.use_emitter(None)
    assert not AppOpened(door=1).emit()


def test_a_thread_that_begins_after_it_was_ended_ends_quietly() -> None:
    late: list[Callable[[], None]] = []
    lock = unpatched.reentrant_lock()
    delivery = Delivery(RecordQueue(records_max=1, bytes_max=9), EmitterLimits())
    flusher = DeliveryWorker(delivery, StreamLink(1, b"{}"), lock, Report, start_thread=late.append)
    with lock:
        flusher.ensure_started()
    assert not flusher.stop(0)
    with does_not_raise():
        late[0]()
    flusher.after_fork()


def test_closed_output_is_counted(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    emitter = Emitter(
        {"service.name": "a"}, descriptor=write, limits=EmitterLimits(max_batch_age_ms=1)
    )
    emitter.emit("log", b"{}")
    assert emitter.flush(10)
    os.close(write)
    assert emitter.counters().dropped == {"log": {"refused": 1}}
    emitter.close()


def test_setup_reads_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "by-env")
    monkeypatch.setenv(
        "OTEL_RESOURCE_ATTRIBUTES", "team=a%20b,deployment.environment.name=prod,bad"
    )
    monkeypatch.setenv("PENSTOCK_SOCKET", str(tmp_path / "none.sock"))
    process_emitter.use_emitter(None)
    level = logging.getLogger().level
    emitter = specs.setup(version="2", hooks=False, opentelemetry=False)
    try:
        assert process_emitter.process_emitter() is emitter
        assert emitter.resource["service.name"] == "by-env"
        assert emitter.resource["service.version"] == "2"
        assert emitter.resource["deployment.environment.name"] == "prod"
        assert emitter.resource["team"] == "a b"
        handlers = [h for h in logging.getLogger().handlers if isinstance(h, SpecHandler)]
        assert len(handlers) == 1
    finally:
        for handler in handlers:
            logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(level)
        structlog.reset_defaults()
        process_emitter.use_emitter(None)
        emitter.close(timeout_s=0)


def test_an_event_is_emitted_whatever_is_bound(output: Output) -> None:
    many = {f"k{number}": "\ud800" for number in range(128)}
    with specs.bind(user_id="\udc80", **many):
        assert AppOpened(door=1).emit()
    (record,) = output.records()
    assert record["context"] == {"user.id": "?"}
    assert record["attributes"]["app_test.door"] == 1


def test_an_environment_that_says_nothing_useful_costs_no_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", os.fsdecode(b"caf\xe9"))
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=,service.instance.id=,a=b")
    emitter = Emitter(process_emitter.process_resource())
    assert emitter.resource["service.name"] == "caf?"
    assert "service.version" not in emitter.resource
    assert len(emitter.resource["service.instance.id"]) == 36
    assert emitter.resource["a"] == "b"


def test_close_does_not_wait_for_a_standard_output_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    emitter = Emitter({"service.name": "app"}, descriptor=writing)
    for _ in range(300):
        emitter.emit("log", b'{"a":"%s"}' % (b"x" * 1000))
    assert not emitter.close(0.05)
    drained = b""
    while drained.count(b"\n") < 300 and (data := os.read(reading, 1 << 16)):
        drained += data
    os.close(reading)
    os.close(writing)


def test_an_emitter_whose_close_was_held_up_sends_again() -> None:
    """The thread that was told to end is still there when the next record comes, or has ended."""
    for is_there in (True, False):
        reading, writing = os.pipe()
        emitter = Emitter({"service.name": "app"}, descriptor=writing)
        for number in range(300):
            emitter.emit("log", b'{"n":%d,"a":"%s"}' % (number, b"x" * 1000))
        assert not emitter.close(0.05)
        if is_there:
            emitter.emit("log", b'{"n":300}')
        read = read_lines(reading, 300)
        if not is_there:
            emitter.emit("log", b'{"n":300}')
        read += read_lines(reading, 301 - len(read))
        assert [json.loads(line)["n"] for line in read] == list(range(301))
        assert emitter.close(10)
        assert emitter.counters().acked == {"log": 301}
        os.close(reading)
        os.close(writing)


def read_lines(descriptor: int, count: int) -> list[bytes]:
    """At least so many lines, as long as one comes within 20 s."""
    read = b""
    while read.count(b"\n") < count or (read and not read.endswith(b"\n")):
        assert select.select([descriptor], [], [], 20)[0], read[-100:]
        read += os.read(descriptor, 1 << 16)
    return read.splitlines()


def test_a_standard_output_that_does_not_block_gets_every_line_once() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    emitter = Emitter({"service.name": "app"}, descriptor=writing)
    for number in range(300):
        emitter.emit("log", b'{"n":%d,"a":"%s"}' % (number, b"x" * 1000))
    emitter.flush(0)
    read = bytearray()
    while read.count(b"\n") < 300:
        read += os.read(reading, 1 << 16)
    assert emitter.close(10)
    assert emitter.counters().acked == {"log": 300}
    assert [json.loads(line)["n"] for line in read.splitlines()] == list(range(300))
    os.close(reading)
    os.close(writing)


@pytest.fixture
def set_up(tmp_path: Path) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """A process that `setup` made; returns what was said."""
    level = logging.getLogger().level
    handlers = list(logging.getLogger().handlers)
    made = Output(tmp_path / "out.ndjson")
    specs.setup(hooks=False, opentelemetry=False, loggers=("again.quiet",))
    process_emitter.use_emitter(made.emitter)
    yield made.records
    process_emitter.use_emitter(None)
    logging.getLogger("again.quiet").handlers.clear()
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    structlog.reset_defaults()
    made.close()


AGAIN: dict[str, Callable[[Path], object]] = {
    "dictConfig": lambda _: logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "root": {"level": "INFO", "handlers": []},
            "loggers": {"again.quiet": {"handlers": [], "propagate": False}},
        }
    ),
    "fileConfig": lambda directory: logging.config.fileConfig(
        directory / "logging.ini", disable_existing_loggers=False
    ),
    "basicConfig": lambda _: logging.basicConfig(force=True, handlers=[logging.NullHandler()]),
    "handlers": lambda _: logging.getLogger().handlers.clear(),
}
INI = """
[loggers]
keys=root
[handlers]
keys=
[formatters]
keys=
[logger_root]
level=INFO
handlers=
"""


@pytest.mark.parametrize("way", AGAIN)
def test_logging_that_is_set_up_again_still_arrives(
    tmp_path: Path, set_up: Callable[[], list[dict[str, Any]]], way: str
) -> None:
    (tmp_path / "logging.ini").write_text(INI)
    quiet = logging.getLogger("again.quiet")
    quiet.propagate = False
    try:
        logging.getLogger("again").warning("before")
        AGAIN[way](tmp_path)
        logging.getLogger("again").warning("after")
        quiet.warning("does not propagate")
    finally:
        quiet.propagate = True
    quiet.warning("propagates, and is emitted once")
    assert [record["body"] for record in set_up()] == [
        "before", "after", "does not propagate", "propagates, and is emitted once",
    ]  # fmt: skip


def test_what_is_said_to_a_logger_is_kept_whatever_it_is(output: Output) -> None:
    log = specs.log("shop")
    log.info("paid %d of %s", "two", 3)
    log.info("moved", scope="eu", event="transfer", name="n", self="s")
    log.info(event="by name")
    log.error("%s failed", "it", stack_info=True)
    log.log(logging.WARNING, "%d", "w")
    with structlog.contextvars.bound_contextvars(tenant="t-1", left=1):
        log.info("bound", left=2)
    wrong, moved, named, failed, level, bound = output.records()
    assert wrong["body"] == "paid %d of %s"
    assert wrong["attributes"] == {"log.arguments": ["two", "3"]}
    assert moved["scope"] == "shop"
    assert moved["attributes"] == {"scope": "eu", "event": "transfer", "name": "n", "self": "s"}
    assert named["body"] == "by name"
    assert failed["body"] == "it failed"
    assert failed["attributes"]["code.stacktrace"].endswith(
        'log.error("%s failed", "it", stack_info=True)'
    )
    assert (level["body"], level["severity_number"]) == ("%d", 13)
    assert bound["attributes"] == {"tenant": "t-1", "left": 2}


async def test_awaitable_methods_keep_what_does_not_fit(output: Output) -> None:
    await specs.log().ainfo("paid %d", "two")
    await specs.log().aexception("failed")
    paid, failed = output.records()
    assert paid["attributes"] == {"log.arguments": ["two"]}
    assert failed["severity_number"] == 17


@pytest.mark.parametrize(
    ("last", "body"),
    [
        (structlog.processors.JSONRenderer(sort_keys=True), '{"event": "placed", "order_id": 7}'),
        (structlog.processors.KeyValueRenderer(key_order=["event"]), "event='placed' order_id=7"),
        (structlog.stdlib.render_to_log_kwargs, "placed"),
        (structlog.stdlib.ProcessorFormatter.wrap_for_formatter, "placed"),
    ],
    ids=["json", "key-value", "kwargs", "formatter"],
)
def test_structlog_that_is_configured_again_does_not_break_the_application(
    output: Output, last: Any, body: str
) -> None:
    structlog.configure(processors=[last], cache_logger_on_first_use=False)
    structlog.get_logger().warning("placed", order_id=7)
    (record,) = output.records()
    assert (record["body"], record["severity_number"]) == (body, 13)


def test_a_formatters_chain_through_standard_logging_is_text_and_fields(
    set_up: Callable[[], list[dict[str, Any]]],
) -> None:
    structlog.configure(
        processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    structlog.get_logger("again").error("failed", order_id=7, exc_info=ValueError("v"))
    (record,) = set_up()
    assert (record["body"], record["scope"]) == ("failed", "again")
    assert record["attributes"]["order_id"] == 7
    assert record["attributes"]["exception.type"] == "ValueError"
    assert not any(name.startswith("_") for name in record["attributes"])


def test_standard_logging_keeps_the_stack_and_wrong_arguments(output: Output) -> None:
    logger = logging.getLogger("again.stack")
    logger.propagate = False
    handler = SpecHandler(output.emitter)
    logger.addHandler(handler)
    logger.error("here", stack_info=True)
    logger.error("paid %d", "two")
    logger.error({"order": ["o-1", None]})
    logger.removeHandler(handler)
    specs.log().info({"order": 7})
    here, paid, mapping, another = output.records()
    assert mapping["body"] == '{"order": ["o-1", null]}'
    assert another["body"] == '{"order": 7}'
    assert "logger.error(" in here["attributes"]["code.stacktrace"]
    assert paid["attributes"]["log.arguments"] == ["two"]


class Unbound:
    """A proxy of what is not there: whatever is asked of it raises, also for its class."""

    @override
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("working outside of a request")

    @override
    def __str__(self) -> str:
        raise RuntimeError("working outside of a request")


@pytest.mark.parametrize(
    ("odd", "severity"),
    [
        ({"msg": Unbound}, 17),
        ({"msg": "odd", "extra": Unbound}, 17),
        ({"msg": "odd", "created": float("nan")}, 17),
        ({"msg": "odd", "created": "yesterday"}, 17),
        ({"msg": "odd", "levelno": "high"}, 9),
    ],
)
def test_standard_logging_takes_whatever_a_log_record_holds(
    output: Output, odd: dict[str, Any], severity: int
) -> None:
    """The application's call must not fail because of what it logs."""
    made = {name: Unbound() if value is Unbound else value for name, value in odd.items()}
    given = {"levelno": logging.ERROR, "name": "odd"} | made
    SpecHandler(output.emitter).handle(logging.makeLogRecord(given))
    (record,) = output.records()
    assert record["severity_number"] == severity
    assert record["body"] in ("odd", "<Unbound>")
    assert record["scope"] == "odd"


def test_an_error_that_is_none_leaves_the_call_to_structlog_alone(output: Output) -> None:
    specs.log().error("odd", exc_info=Unbound())
    (record,) = output.records()
    assert record["body"] == "odd"


LOADED = """
import sys
def brought(before):
    roots = {name.partition(".")[0] for name in sys.modules.keys() - before}
    return sorted(root for root in roots - sys.stdlib_module_names if not root.startswith("_"))
before = set(sys.modules)
from penstock import specs
print(*brought(before))
specs.setup, specs.log, specs.bind, specs.Event, specs.Audit, specs.MetricPoint
print(*brought(before))
specs.setup("shop", socket="away.sock", opentelemetry=False, hooks=False)
print(*brought(before))
print(*(name for name in ("http.client", "penstock.specs.validate.validator",
    "penstock.specs.versions.compat") if name in sys.modules))
"""


def test_an_import_loads_what_emitting_needs_and_no_more(tmp_path: Path) -> None:
    """Neither servers, nor the command line, nor what validates lines; no SDK before `setup`."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    root, names, set_up, others = (set(line.split()) for line in done.stdout.split("\n")[:4])
    models = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions",
              "typing_inspection"}  # fmt: skip
    assert root == {"penstock"}
    assert names == {"penstock", "opentelemetry", "orjson", *models}
    assert set_up - names <= {"structlog", "greenlet", "pygments", "rich"}, "which structlog loads"
    assert others == set()


def test_every_name_comes_from_its_module() -> None:
    assert {name: getattr(specs, name).__name__ for name in ("doctor", "upcast", "Event")} == {
        "doctor": "doctor", "upcast": "upcast", "Event": "Event",
    }  # fmt: skip
    assert all(getattr(specs, name) is not None for name in specs.__all__)
    assert set(specs.__all__) <= set(dir(specs))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        specs.nothing  # noqa: B018


README = Path(__file__).resolve().parents[3] / "specs" / "README.md"


def test_the_readme_documents_what_the_package_exports() -> None:
    names = README.read_text().partition("\n## Names\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .+ \| `(.+)` \|$", names, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(specs.__all__)
    assert [name for name, example in rows if f"specs.{name}" not in example] == []
    for _, example in rows:
        ast.parse(f"try: pass\n{example}" if example.startswith("except ") else example)
