"""The process's emitter, which `setup` makes, or the first record from the environment alone."""

import os
import stat
from typing import Any

from penstock.specs import environment
from penstock.specs.emit import process_sink
from penstock.specs.emit.emitter import Emitter
from penstock.specs.emit.handler import ATTACHMENT
from penstock.specs.models.resource import describe_process

_emitter: Emitter | None = None


def current_emitter() -> Emitter | None:
    return _emitter


def process_emitter() -> Emitter:
    """The emitter that `setup` made, or one made from the environment alone."""
    if _emitter is None:
        return replace_emitter(Emitter(process_resource(), socket_path=socket_of_the_environment()))
    return _emitter


def use_emitter(emitter: Emitter | None) -> Emitter | None:
    """Put another emitter in the place of the process's, as a test does; returns the one before.

    With none, the standard library's loggers are left alone again.
    """
    global _emitter
    before, _emitter = _emitter, emitter
    process_sink.set_sink(emitter)
    if emitter is None:
        ATTACHMENT.detach()
    return before


def replace_emitter(emitter: Emitter) -> Emitter:
    before = use_emitter(emitter)
    if before is not None:
        before.close()
    return emitter


def process_resource(
    service: str | None = None, version: str = "unknown", environment_name: str = "unknown"
) -> dict[str, Any]:
    """This process's resource; arguments win over OpenTelemetry's environment variables."""
    given = environment.resource_attributes()
    name = service or environment.service_name() or given.get("service.name")
    named = {"service.name": name or "unknown_service"}
    stated = {"service.version": version, "deployment.environment.name": environment_name}
    named |= {key: value for key, value in stated.items() if value != "unknown"}
    return {**describe_process(), **given, **named}


def socket_of_the_environment() -> str | None:
    """PENSTOCK_SOCKET, else the usual place if a collector listens there."""
    if given := os.environ.get(environment.SOCKET_VARIABLE):
        return given
    try:
        found = stat.S_ISSOCK(os.stat(environment.USUAL_SOCKET).st_mode)  # noqa: PTH116 - text
    except OSError:
        return None
    return environment.USUAL_SOCKET if found else None
