"""One application that logs, or exports spans, by one library; see `tests.bench.app_log`."""

import json
import logging
import logging.handlers
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any, Final

from typing_extensions import override

from penstock import specs
from penstock.base import clock
from penstock.specs import EmitterLimits
from tests.bench.figures import percentile
from tests.bench.worker import Result, work

Say = Callable[[int], None]
Drain = Callable[[], object]

NULL_BYTES: Final = Path(os.devnull).open("wb")  # noqa: SIM115 - for as long as the process lives
NULL_TEXT: Final = Path(os.devnull).open("w")  # noqa: SIM115 - the same
_WARM_UP: Final = 1_000
_PARTS: Final = 10
_ROOMY: Final = EmitterLimits(max_queue_records=1_000_000, max_queue_bytes=1 << 30)
_COLLECTOR: Final = """
import sys
from pathlib import Path
from tests.support.collector_socket import CollectorSocket, take
stalls = sys.argv[2] == "stalled"
fake = CollectorSocket(Path(sys.argv[1]), answer=(lambda _: None) if stalls else take)
fake.start()
print("ready", flush=True)
for line in sys.stdin:
    fake.stop()
    fake.start()
fake.stop()
"""


@contextmanager
def collector(mood: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """A collector's socket in a process of its own; and how to make it die and come back.

    Not in the bench's directory, for a socket's path may have 107 bytes.
    """
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        subprocess.Popen(
            [sys.executable, "-c", _COLLECTOR, path := str(Path(directory) / "app.sock"), mood],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        given = process.stdin

        def die() -> None:
            given.write("\n")
            given.flush()

        try:
            yield path, die
        finally:
            process.kill()


def penstock_log(path: str) -> tuple[Say, Drain]:
    """Everything `setup` gives, to a collector."""
    emitter = specs.setup("bench", socket=path, opentelemetry=False, limits=_ROOMY)
    log = specs.log("bench")
    return lambda number: log.info("order placed", **_fields(number)), lambda: emitter.flush(60)


def structlog_log(_: str) -> tuple[Say, Drain]:
    """The fast recipe of structlog's documentation."""
    import orjson
    import structlog

    structlog.configure(
        cache_logger_on_first_use=True,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=orjson.dumps),
        ],
        logger_factory=structlog.BytesLoggerFactory(NULL_BYTES),
    )
    structlog.contextvars.bind_contextvars(user_id="u-1", request_id="r-1")
    log = structlog.get_logger()
    return lambda number: log.info("order placed", **_fields(number)), lambda: None


class _JsonFormatter(logging.Formatter):
    @override
    def format(self, record: logging.LogRecord) -> str:
        names = ("order_id", "total", "items", "ok")
        fields = {name: getattr(record, name) for name in names}
        return json.dumps({"time": record.created, "message": record.getMessage(), **fields})


def stdlib_log(_: str) -> tuple[Say, Drain]:
    """A queue in between, as the standard library's cookbook has it."""
    lines: queue.Queue[Any] = queue.Queue(-1)
    writing = logging.StreamHandler(NULL_TEXT)
    writing.setFormatter(_JsonFormatter())
    listener = logging.handlers.QueueListener(lines, writing)
    listener.start()
    logger = logging.getLogger("bench")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(logging.handlers.QueueHandler(lines))
    return lambda number: logger.info("order placed", extra=_fields(number)), lines.join


def otel_log(_: str) -> tuple[Say, Drain]:
    """OpenTelemetry's handler, batch processor and OTLP encoder, without a network."""
    import warnings

    warnings.simplefilter("ignore")  # the handler is deprecated, and what people use
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
    from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
    from opentelemetry.sdk._logs.export import (
        BatchLogRecordProcessor,
        LogRecordExporter,
        LogRecordExportResult,
    )

    class Encoder(LogRecordExporter):
        @override
        def export(self, batch: Sequence[Any]) -> LogRecordExportResult:
            encode_logs(batch).SerializeToString()
            return LogRecordExportResult.SUCCESS

        @override
        def shutdown(self) -> None:
            """Nothing is held."""

        @override
        def force_flush(self, timeout_millis: int = 0) -> bool:
            return True

    provider = LoggerProvider()
    provider.add_log_record_processor(
        BatchLogRecordProcessor(Encoder(), max_queue_size=1_000_000, schedule_delay_millis=100)
    )
    logger = logging.getLogger("bench")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(LoggingHandler(logger_provider=provider))
    return lambda number: logger.info("order placed", extra=_fields(number)), provider.force_flush


def loguru_log(_: str) -> tuple[Say, Drain]:
    """Serialised, to the null device."""
    from loguru import logger

    logger.remove()
    logger.add(NULL_TEXT, serialize=True)
    return lambda number: logger.info("order placed", **_fields(number)), lambda: None


def floor_log(_: str) -> tuple[Say, Drain]:
    """What nothing can do without: the time, a record of the same fields, and its line."""
    import orjson

    unix_ns = clock.unix_ns
    lines: list[bytes] = []
    context = {"user.id": "u-1", "request.id": "r-1"}

    def say(number: int) -> None:
        record = {
            "schema": "log/1.0", "kind": "log", "time_unix_nano": unix_ns(), "severity_number": 9,
            "severity_text": "INFO", "body": "order placed", "scope": "bench", "context": context,
            "attributes": _fields(number),
        }  # fmt: skip
        lines.append(orjson.dumps(record))

    return say, lines.clear


LOGS: Final = {
    "penstock": penstock_log,
    "floor": floor_log,
    "structlog, fast recipe": structlog_log,
    "logging + QueueHandler": stdlib_log,
    "OpenTelemetry": otel_log,
    "loguru": loguru_log,
}


def penstock_span(path: str) -> tuple[Say, Drain]:
    """The SDK's spans by Penstock's exporter, to a collector."""
    from penstock.specs.otel.exporter import PenstockSpanExporter

    emitter = specs.setup("bench", socket=path, opentelemetry=False, limits=_ROOMY)
    say, export = _sdk_spans(PenstockSpanExporter(emitter))
    return say, lambda: (export(), emitter.flush(60))


def otel_span(_: str) -> tuple[Say, Drain]:
    """OpenTelemetry's SDK, batch processor and OTLP encoder, without a network."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Encoder(SpanExporter):
        @override
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            encode_spans(spans).SerializeToString()
            return SpanExportResult.SUCCESS

        @override
        def shutdown(self) -> None:
            """Nothing is held."""

        @override
        def force_flush(self, timeout_millis: int = 0) -> bool:
            return True

    return _sdk_spans(Encoder())


def _sdk_spans(exporter: Any) -> tuple[Say, Drain]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=1_000_000, schedule_delay_millis=100)
    )
    tracer = provider.get_tracer("bench")

    def say(number: int) -> None:
        with tracer.start_as_current_span("place order", attributes=_fields(number)):
            pass

    return say, provider.force_flush


SPANS: Final = {
    "penstock": penstock_span,
    "OpenTelemetry": otel_span,
}


def _fields(number: int) -> dict[str, Any]:
    return {"order_id": f"o-{number}", "total": 24.5, "items": 3, "ok": True}


def measure_calls(job: dict[str, Any]) -> Result:
    """CPU time of a record: of the calling thread, and with all that is done elsewhere.

    The caller's is the median of parts of the calls, which other work on the machine disturbs less.
    """
    with (
        collector("well") as (path, _),
        specs.bind(user_id="u-1", request_id="r-1"),
    ):
        systems = LOGS if job["kind"] == "log" else SPANS
        say, drain = systems[job["system"]](path)
        for number in range(_WARM_UP):
            say(number)
        drain()
        part = job["count"] // _PARTS
        caller: list[float] = []
        begun, began = process_time_ns(), perf_counter_ns()
        for first in range(0, part * _PARTS, part):
            before = thread_time_ns()
            for number in range(first, first + part):
                say(number)
            caller.append((thread_time_ns() - before) / part / 1e3)
        elapsed = (perf_counter_ns() - began) / (part * _PARTS) / 1e3
        drain()
        return {
            "microseconds": (process_time_ns() - begun) / (part * _PARTS) / 1e3,
            "caller": percentile(caller, 50),
            "elapsed": elapsed,
        }


def measure_exports(job: dict[str, Any]) -> Result:
    """CPU time of exporting spans that have ended, in batches of 512."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from penstock.specs.otel.exporter import PenstockSpanExporter

    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("bench")
    for number in range(job["count"]):
        with tracer.start_as_current_span("place order", attributes=_fields(number)):
            pass
    spans: tuple[ReadableSpan, ...] = memory.get_finished_spans()
    batches = [spans[first : first + 512] for first in range(0, len(spans), 512)]
    with collector("well") as (path, _):
        emitter = specs.setup("bench", socket=path, opentelemetry=False, limits=_ROOMY)
        exporter = PenstockSpanExporter(emitter)
        exporter.export(batches[0])
        emitter.flush(60)
        begun, began = process_time_ns(), perf_counter_ns()
        for batch in batches:
            if job["system"] == "penstock":
                exporter.export(batch)
            else:
                encode_spans(batch).SerializeToString()
        elapsed = (perf_counter_ns() - began) / job["count"] / 1e3
        emitter.flush(60)
        return {
            "microseconds": (process_time_ns() - begun) / job["count"] / 1e3,
            "elapsed": elapsed,
        }


def measure_chaos(job: dict[str, Any]) -> Result:
    """Wall and CPU time of single calls, within the usual bounds; every loss is counted."""
    with collector(job["system"]) as (path, die):
        where = f"{path}.absent" if job["system"] == "absent" else path
        emitter = specs.setup("bench", socket=where, opentelemetry=False)
        log = specs.log("bench")
        took: list[float] = []
        used: list[float] = []
        for number in range(job["count"]):
            if job["system"] == "dying" and number % (job["count"] // 10) == 0:
                die()
            begun, before = perf_counter_ns(), thread_time_ns()
            log.info("order placed", **_fields(number))
            used.append((thread_time_ns() - before) / 1e3)
            took.append((perf_counter_ns() - begun) / 1e3)
        if job["system"] == "dying":
            emitter.flush(60)
        counters = emitter.counters()
        dropped = sum(sum(reasons.values()) for reasons in counters.dropped.values())
        settled = sum(counters.acked.values()) + dropped + counters.queued + counters.in_flight
        assert sum(counters.emitted.values()) == settled == job["count"], counters
        emitter.close(0)
        return {
            "p99": percentile(took, 99),
            "longest": max(took),
            "used_p99": percentile(used, 99),
            "used_longest": max(used),
        }


MEASURES: Final = {
    "log": measure_calls,
    "span": measure_calls,
    "export": measure_exports,
    "chaos": measure_chaos,
}


def prepare(job: dict[str, Any]) -> Callable[[], Result]:
    """What this worker does once all are ready."""
    return lambda: MEASURES[job["kind"]](job)


if __name__ == "__main__":
    work(prepare)
    os._exit(0)  # what is still queued was for a collector that has ended
