"""Where this process's records go, whether anyone is there, and what became of them: for people."""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from penstock.specs import app, environment, native, notices
from penstock.specs.emit import Emitter
from penstock.specs.emitter_limits import Counters
from penstock.specs.handler import ATTACHMENT


def doctor() -> str:
    """What an application sees when it misses its records: print it.

    The same text is on standard error after `setup` and at the end of a process where
    PENSTOCK_DEBUG is ``1``.
    """
    emitter = app.current_emitter()
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
    attempt = native.stream_socket(socket.AF_UNIX)
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
