"""Set-up of an application in one line, and its loggers."""

import logging
import os
import stat
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.specs import current, endings, environment, notices
from penstock.specs.console import render
from penstock.specs.emit import PROCESS_EXIT, Emitter, MakeLink
from penstock.specs.emitter_limits import EmitterLimits
from penstock.specs.environment import configure_opentelemetrys_loggers
from penstock.specs.handler import ATTACHMENT
from penstock.specs.links import StreamLink
from penstock.specs.otel_environment import well_formed
from penstock.specs.propagators import propagators
from penstock.specs.resource import describe_process

_emitter: Emitter | None = None
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
    from penstock.specs.processor import configure_structlog

    path = socket or _socket_of_the_environment()
    emitter = Emitter(
        process_resource(service, version, environment),
        socket_path=path,
        link=_link(console, path),
        limits=limits,
        sampling=sampling,
        machine_facts=machine_facts,
        spill_dir=_spill_directory(path),
    )
    _use(emitter)
    configure_structlog(level=level, processors=processors)
    _configure_logging(level, loggers)
    if hooks:
        _install_hooks()
    endings.see_to_process(PROCESS_EXIT.end_child)  # also where its pool was imported after us
    propagators()  # warns of what it does not know
    if opentelemetry and find_spec("opentelemetry.sdk") is not None:
        _set_up_opentelemetry()
    if notices.is_debugging():
        from penstock.specs.diagnosis import show_when_debugging

        show_when_debugging()
        PROCESS_EXIT.after_last_flush(show_when_debugging)
    return emitter


def log(name: str | None = None) -> Any:
    """A structlog logger; `name` is the record's scope.

    Raises:
        MissingExtraError: structlog is not installed.
    """
    from penstock.specs.processor import get_logger

    return get_logger(name)


def current_emitter() -> Emitter | None:
    """The emitter of this process, if there is one."""
    return _emitter


def process_emitter() -> Emitter:
    """The emitter that `setup` made, or one made from the environment alone."""
    if _emitter is None:
        return _use(Emitter(process_resource(), socket_path=_socket_of_the_environment()))
    return _emitter


def process_resource(
    service: str | None = None, version: str = "unknown", environment_name: str = "unknown"
) -> dict[str, Any]:
    """This process's resource; arguments win over OpenTelemetry's environment variables."""
    given = environment.resource_attributes()
    name = service or environment.service_name() or given.get("service.name")
    resource = describe_process(name or "unknown_service", more=given)
    resource["service.name"] = name or "unknown_service"
    stated = (("service.version", version), ("deployment.environment.name", environment_name))
    for key, value in stated:
        if value != "unknown":
            resource[key] = value
    return resource


def use_emitter(emitter: Emitter | None) -> Emitter | None:
    """Put another emitter in the place of the process's, as a test does; returns the one before.

    With none, the standard library's loggers are left alone again.
    """
    global _emitter
    before, _emitter = _emitter, emitter
    current.set_sink(emitter)
    if emitter is None:
        ATTACHMENT.detach()
    return before


def _use(emitter: Emitter) -> Emitter:
    before = use_emitter(emitter)
    if before is not None:
        before.close()
    return emitter


def _socket_of_the_environment() -> str | None:
    """PENSTOCK_SOCKET, else the usual place if a collector listens there."""
    if given := os.environ.get(environment.SOCKET_VARIABLE):
        return given
    try:
        found = stat.S_ISSOCK(os.stat(environment.USUAL_SOCKET).st_mode)  # noqa: PTH116 - text
    except OSError:
        return None
    return environment.USUAL_SOCKET if found else None


def _spill_directory(socket: str | None) -> Path | None:
    from penstock.specs.environment import spill_directory

    return None if socket is None else spill_directory()


def _link(console: bool | None, socket: str | None) -> MakeLink | None:
    """Standard output for people, if it is for them."""
    if socket is not None or not (os.isatty(_STDOUT) if console is None else console):
        return None
    return lambda _, resource_json: StreamLink(_STDOUT, resource_json, render)


def _configure_logging(level: int, loggers: Sequence[str]) -> None:
    ATTACHMENT.attach(loggers)
    logging.getLogger().setLevel(level)


def _set_up_opentelemetry() -> None:
    """As its variables say; one that the SDK would choke on is as good as not set."""
    configure_opentelemetrys_loggers()
    try:
        with well_formed():
            from penstock.specs.otel import install_where_free

            install_where_free()
    except Exception as error:  # noqa: BLE001 - the app starts, whatever becomes of its traces
        _LOGGER.warning("OpenTelemetry is not set up, nor are its spans emitted: %r", error)


def _install_hooks() -> None:
    from penstock.specs.hooks import flush_on_sigterm, install_hooks

    install_hooks()
    flush_on_sigterm()
