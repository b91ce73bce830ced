"""Set-up of an application in one line, and its loggers."""

import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.specs import environment
from penstock.specs.emit.delivery import exit_hooks, notices, unpatched
from penstock.specs.emit.delivery.config import Counters, EmitterLimits
from penstock.specs.emit.delivery.transport import StreamLink
from penstock.specs.emit.emitter import PROCESS_EXIT, Emitter, MakeLink
from penstock.specs.emit.handler import ATTACHMENT
from penstock.specs.emit.process_emitter import (
    current_emitter,
    process_resource,
    replace_emitter,
    socket_of_the_environment,
)
from penstock.specs.environment import configure_opentelemetrys_loggers, well_formed

_STDOUT = 1
_LOGGER = logging.getLogger("penstock.specs")


def setup(  # noqa: PLR0913 - all are optional and named
    service: str | None = None,
    *,
    version: str = "unknown",
    environment: str = "unknown",
    socket: str | None = None,
    console: bool | None = None,
    level: int = logging.INFO,
    sampling: float = 1.0,
    machine_facts: bool = True,
    opentelemetry: bool = True,
    hooks: bool = True,
    processors: Sequence[Any] = (),
    loggers: Sequence[str] = (),
    limits: EmitterLimits | None = None,
) -> Emitter:
    """Make structlog, the standard library's logging and OpenTelemetry emit; may be called again.

    Args:
        service: ``service.name``; else OTEL_SERVICE_NAME.
        version: ``service.version``.
        environment: ``deployment.environment.name``.
        socket: The collector's Unix socket, which need not exist yet; else PENSTOCK_SOCKET, else
            the usual one if it is there. Otherwise records go to standard output.
        console: Whether that gets text for people; by default when it is a terminal.
        level: The least severe that is emitted, as in `logging`.
        sampling: The share of traces whose logs and spans are kept; see `Emitter`.
        machine_facts: Whether records carry the machine's figures.
        opentelemetry: Whether OpenTelemetry's providers are set up, if its SDK is installed and
            neither another provider nor a variable (`environment`) is in the way.
        hooks: Whether uncaught exceptions are recorded, and an unhandled SIGTERM flushes.
        processors: structlog's, before ours.
        loggers: The standard library's that do not propagate to the root logger and are to emit
            all the same, such as ``uvicorn`` and ``gunicorn.error``.
        limits: Bounds of the emitter.

    Raises:
        MissingExtraError: structlog is not installed.
        SpecError: PENSTOCK_HASH_KEY is malformed.
        ValueError: `sampling` is not a share.
    """
    from penstock.specs.emit.structlog_processor import configure_structlog

    path = socket or socket_of_the_environment()
    emitter = Emitter(
        process_resource(service, version, environment),
        socket_path=path,
        link=_link(console, path),
        limits=limits,
        sampling=sampling,
        machine_facts=machine_facts,
        spill_dir=_spill_directory(path),
    )
    replace_emitter(emitter)
    configure_structlog(level=level, processors=processors)
    _configure_logging(level, loggers)
    if hooks:
        _install_hooks()
    exit_hooks.register_process_exit(
        PROCESS_EXIT.end_child
    )  # also where its pool was imported after us
    if opentelemetry and find_spec("opentelemetry.sdk") is not None:
        _set_up_opentelemetry()
    if notices.is_debugging():
        show_when_debugging()
        PROCESS_EXIT.after_last_flush(show_when_debugging)
    return emitter


def log(name: str | None = None) -> Any:
    """A structlog logger; `name` is the record's scope.

    Raises:
        MissingExtraError: structlog is not installed.
    """
    from penstock.specs.emit.structlog_processor import get_logger

    return get_logger(name)


def _spill_directory(socket: str | None) -> Path | None:
    from penstock.specs.environment import spill_directory

    return None if socket is None else spill_directory()


def _link(console: bool | None, socket: str | None) -> MakeLink | None:
    """Standard output for people, if it is for them."""
    if socket is not None or not (os.isatty(_STDOUT) if console is None else console):
        return None
    from penstock.specs.formats.console import render

    return lambda _, resource_json: StreamLink(_STDOUT, resource_json, render)


def _configure_logging(level: int, loggers: Sequence[str]) -> None:
    ATTACHMENT.attach(loggers)
    logging.getLogger().setLevel(level)


def _set_up_opentelemetry() -> None:
    """Set OpenTelemetry up by its variables; one that the SDK cannot read counts as unset."""
    configure_opentelemetrys_loggers()
    try:
        with well_formed():
            from penstock.specs.otel.exporter import install_where_free

            install_where_free()
    except Exception as error:  # noqa: BLE001 - the app starts, whatever becomes of its traces
        _LOGGER.warning("OpenTelemetry is not set up, nor are its spans emitted: %r", error)


def _install_hooks() -> None:
    from penstock.specs.emit.hooks import flush_on_sigterm, install_hooks

    install_hooks()
    flush_on_sigterm()


def doctor() -> str:
    """Return a report on why records may be missing, for people: print it.

    The same text is on standard error after `setup` and at the end of a process where
    PENSTOCK_DEBUG is ``1``.
    """
    emitter = current_emitter()
    if emitter is None:
        return "penstock: nothing is emitted: this process did not call specs.setup()"
    return "\n".join(f"penstock: {line}" for line in _lines(emitter))


def _lines(emitter: Emitter) -> Iterator[str]:
    service = emitter.resource.get("service.name")
    yield f"service {service}, process {os.getpid()}: records go to {emitter.destination}"
    yield _listener(emitter)
    yield _standard_logging()
    yield _structlog()
    yield _opentelemetry()
    yield from _account(emitter.counters())
    if emitter.trouble:
        yield f"the last trouble: {emitter.trouble}"


def _listener(emitter: Emitter) -> str:
    path = emitter.socket_path
    if path is None:
        return (
            f"no collector is asked: setup() had no socket, {environment.SOCKET_VARIABLE} is not"
            f" set, and nobody listens at {environment.USUAL_SOCKET}"
        )
    attempt = unpatched.stream_socket(socket.AF_UNIX)
    attempt.setblocking(False)
    try:
        attempt.connect(path)
    except BlockingIOError:
        return "a collector listens there, and is busy"
    except OSError as error:
        return f"NO collector listens there: {error.strerror or error}"
    finally:
        attempt.close()
    return "a collector listens there"


def _standard_logging() -> str:
    if not ATTACHMENT.is_attached():
        return "logging: NOT attached: what the standard library's loggers say does not arrive"
    level = logging.getLevelName(logging.getLogger().level)
    names = ", ".join(ATTACHMENT.names())
    again = f"; taken away and put back: {ATTACHMENT.reattached}" if ATTACHMENT.reattached else ""
    return f"logging: attached to {names}; the root logger's level is {level}{again}"


def _structlog() -> str:
    structlog: Any = sys.modules.get("structlog")
    if structlog is None:
        return "structlog: not loaded"
    names = [type(each).__name__ for each in structlog.get_config()["processors"]]
    if names[-1:] == ["SpecProcessor"]:
        return "structlog: its records arrive"
    return "structlog: configured by somebody else: records arrive by way of logging, or not at all"


def _opentelemetry() -> str:
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return "OpenTelemetry: not loaded"
    provider = type(trace.get_tracer_provider()).__name__
    return f"OpenTelemetry: its tracer provider is a {provider}"


def _account(counters: Counters) -> Iterator[str]:
    for kind, emitted in sorted(counters.emitted.items()):
        dropped = counters.dropped.get(kind, {})
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()))
        yield (
            f"{kind}: {emitted} emitted, {counters.acked.get(kind, 0)} acknowledged,"
            f" {sum(dropped.values())} dropped{f' ({reasons})' if reasons else ''}"
        )
    yield f"waiting: {counters.queued}; on their way: {counters.in_flight}"


def show_when_debugging() -> None:
    """Write it to standard error where PENSTOCK_DEBUG is set."""
    if notices.is_debugging():
        notices.write(doctor())
