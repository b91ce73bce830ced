"""Set-up of an application in one line, and its loggers."""

import logging
import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from penstock.specs import current
from penstock.specs.emit import Emitter, EmitterLimits
from penstock.specs.resource import describe_process

SOCKET_VARIABLE: Final = "PENSTOCK_SOCKET"
_emitter: Emitter | None = None


def setup(
    service: str | None = None,
    *,
    version: str = "unknown",
    environment: str = "unknown",
    socket: str | None = None,
    level: int = logging.INFO,
    limits: EmitterLimits | None = None,
) -> Emitter:
    """Make structlog and the standard library's logging emit records.

    Args:
        service: ``service.name``; else OTEL_SERVICE_NAME.
        version: ``service.version``.
        environment: ``deployment.environment.name``.
        socket: The collector's Unix socket, which need not exist yet; else PENSTOCK_SOCKET.
            Without either, records go to standard output as lines.
        level: The least severe level that is emitted, as in `logging`.
        limits: Bounds of the emitter.

    Raises:
        MissingExtraError: structlog is not installed.
        SpecError: PENSTOCK_HASH_KEY is malformed.
    """
    from penstock.specs.handler import SpecHandler
    from penstock.specs.processor import configure_structlog

    global _emitter  # noqa: PLW0603 - one process, one emitter
    before, resource = _emitter, process_resource(service, version, environment)
    _emitter = Emitter(
        resource, socket_path=socket or os.environ.get(SOCKET_VARIABLE), limits=limits
    )
    current.set_sink(_emitter)
    configure_structlog(_emitter, level)
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, SpecHandler)]:
        root.removeHandler(handler)
    root.addHandler(SpecHandler(_emitter))
    root.setLevel(level)
    if before is not None:
        before.close()
    return _emitter


def log(name: str | None = None) -> Any:
    """A structlog logger; `name` is the record's scope.

    Raises:
        MissingExtraError: structlog is not installed.
    """
    from penstock.specs.processor import get_logger

    return get_logger(name)


def process_emitter() -> Emitter:
    """The emitter that `setup` made, or one made from the environment alone."""
    global _emitter  # noqa: PLW0603 - one process, one emitter
    if _emitter is None:
        _emitter = Emitter(process_resource(), socket_path=os.environ.get(SOCKET_VARIABLE))
        current.set_sink(_emitter)
    return _emitter


def process_resource(
    service: str | None = None, version: str = "unknown", environment: str = "unknown"
) -> dict[str, Any]:
    """This process's resource; arguments win over OpenTelemetry's environment variables."""
    given = _environment_attributes(os.environ)
    name = service or os.environ.get("OTEL_SERVICE_NAME") or given.get("service.name")
    resource = describe_process(name or "unknown_service", more=given)
    resource["service.name"] = name or "unknown_service"
    for key, value in (("service.version", version), ("deployment.environment.name", environment)):
        if value != "unknown":
            resource[key] = value
    return resource


def _environment_attributes(environment: Mapping[str, str]) -> dict[str, str]:
    """OTEL_RESOURCE_ATTRIBUTES: ``key=value`` pairs, comma separated, percent-encoded."""
    pairs = environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    found = (pair.partition("=") for pair in pairs if "=" in pair)
    return {key.strip(): unquote(value.strip()) for key, _, value in found if key.strip()}
