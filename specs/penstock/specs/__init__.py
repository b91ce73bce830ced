"""Versioned telemetry specs and the library that emits them.

What an application does not use is not loaded: a name comes from its module when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.specs.emit.api import doctor, log, setup
    from penstock.specs.emit.context import bind
    from penstock.specs.emit.delivery.config import EmitterLimits
    from penstock.specs.emit.emitter import Emitter
    from penstock.specs.emit.process_emitter import process_emitter
    from penstock.specs.errors import (
        MissingExtraError,
        RefusedRecordError,
        RefusedSpecError,
        SpecError,
        UnknownSpecError,
    )
    from penstock.specs.models.audit import Actor, Audit, Target
    from penstock.specs.models.codec import decode, encode
    from penstock.specs.models.dimensions import Dimension
    from penstock.specs.models.envelope import Record
    from penstock.specs.models.event import Event
    from penstock.specs.models.log import LogRecord
    from penstock.specs.models.metric import MetricPoint
    from penstock.specs.models.span import Span
    from penstock.specs.redact.sensitivity import Sensitive
    from penstock.specs.versions.compat import View
    from penstock.specs.versions.upcast import upcast
    from penstock.specs.web.middleware import AsgiMiddleware, WsgiMiddleware

__all__ = [
    "Actor",
    "AsgiMiddleware",
    "Audit",
    "Dimension",
    "Emitter",
    "EmitterLimits",
    "Event",
    "LogRecord",
    "MetricPoint",
    "MissingExtraError",
    "Record",
    "RefusedRecordError",
    "RefusedSpecError",
    "Sensitive",
    "Span",
    "SpecError",
    "Target",
    "UnknownSpecError",
    "View",
    "WsgiMiddleware",
    "bind",
    "decode",
    "doctor",
    "encode",
    "log",
    "process_emitter",
    "setup",
    "upcast",
]

_MODULES: Final = {
    name: module
    for module, names in {
        "emit.api": "doctor log setup",
        "emit.context": "bind",
        "emit.delivery.config": "EmitterLimits",
        "emit.emitter": "Emitter",
        "emit.process_emitter": "process_emitter",
        "errors": (
            "MissingExtraError RefusedRecordError RefusedSpecError SpecError UnknownSpecError"
        ),
        "models.audit": "Actor Audit Target",
        "models.codec": "decode encode",
        "models.dimensions": "Dimension",
        "models.envelope": "Record",
        "models.event": "Event",
        "models.log": "LogRecord",
        "models.metric": "MetricPoint",
        "models.span": "Span",
        "redact.sensitivity": "Sensitive",
        "versions.compat": "View",
        "versions.upcast": "upcast",
        "web.middleware": "AsgiMiddleware WsgiMiddleware",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
