"""Versioned telemetry specs and the library that emits them.

What an application does not use is not loaded: a name comes from its module when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.specs.emit.api import doctor, log, process_emitter, setup
    from penstock.specs.emit.context import Executor, bind, carry
    from penstock.specs.emit.delivery.config import Counters, EmitterLimits
    from penstock.specs.emit.emitter import Emitter
    from penstock.specs.errors import (
        MissingExtraError,
        RefusedRecordError,
        RefusedSpecError,
        SpecError,
        UnknownSpecError,
    )
    from penstock.specs.formats.schemas import Column, fields, json_schema
    from penstock.specs.models.audit import Actor, Audit, Target
    from penstock.specs.models.codec import decode, encode
    from penstock.specs.models.dimensions import Dimension
    from penstock.specs.models.envelope import Context, Record
    from penstock.specs.models.event import Event
    from penstock.specs.models.log import LogRecord
    from penstock.specs.models.metric import MetricPoint
    from penstock.specs.models.resource import Resource
    from penstock.specs.models.span import Span
    from penstock.specs.redact.scrubber import Scrubber
    from penstock.specs.redact.sensitivity import HashKey, Sensitive
    from penstock.specs.subjects import KINDS, subject_of, subject_token
    from penstock.specs.trace.propagation import extracted, inject
    from penstock.specs.trace.span import RunningSpan, span
    from penstock.specs.validate.fast import Accepted, slow_specs
    from penstock.specs.validate.validator import Rejected, attach, check_line
    from penstock.specs.versions.compat import View
    from penstock.specs.versions.upcast import upcast, upcast_record
    from penstock.specs.web.middleware import AsgiMiddleware, WsgiMiddleware

__all__ = [
    "KINDS",
    "Accepted",
    "Actor",
    "AsgiMiddleware",
    "Audit",
    "Column",
    "Context",
    "Counters",
    "Dimension",
    "Emitter",
    "EmitterLimits",
    "Event",
    "Executor",
    "HashKey",
    "LogRecord",
    "MetricPoint",
    "MissingExtraError",
    "Record",
    "RefusedRecordError",
    "RefusedSpecError",
    "Rejected",
    "Resource",
    "RunningSpan",
    "Scrubber",
    "Sensitive",
    "Span",
    "SpecError",
    "Target",
    "UnknownSpecError",
    "View",
    "WsgiMiddleware",
    "attach",
    "bind",
    "carry",
    "check_line",
    "decode",
    "doctor",
    "encode",
    "extracted",
    "fields",
    "inject",
    "json_schema",
    "log",
    "process_emitter",
    "setup",
    "slow_specs",
    "span",
    "subject_of",
    "subject_token",
    "upcast",
    "upcast_record",
]

_MODULES: Final = {
    "Accepted": "validate.fast",
    "Actor": "models.audit",
    "AsgiMiddleware": "web.middleware",
    "Audit": "models.audit",
    "Column": "formats.schemas",
    "Context": "models.envelope",
    "Counters": "emit.delivery.config",
    "Dimension": "models.dimensions",
    "Emitter": "emit.emitter",
    "EmitterLimits": "emit.delivery.config",
    "Event": "models.event",
    "Executor": "emit.context",
    "HashKey": "redact.sensitivity",
    "KINDS": "subjects",
    "LogRecord": "models.log",
    "MetricPoint": "models.metric",
    "MissingExtraError": "errors",
    "Record": "models.envelope",
    "RefusedRecordError": "errors",
    "RefusedSpecError": "errors",
    "Rejected": "validate.validator",
    "Resource": "models.resource",
    "RunningSpan": "trace.span",
    "Scrubber": "redact.scrubber",
    "Sensitive": "redact.sensitivity",
    "Span": "models.span",
    "SpecError": "errors",
    "Target": "models.audit",
    "UnknownSpecError": "errors",
    "View": "versions.compat",
    "WsgiMiddleware": "web.middleware",
    "attach": "validate.validator",
    "bind": "emit.context",
    "carry": "emit.context",
    "check_line": "validate.validator",
    "decode": "models.codec",
    "doctor": "emit.api",
    "encode": "models.codec",
    "extracted": "trace.propagation",
    "fields": "formats.schemas",
    "inject": "trace.propagation",
    "json_schema": "formats.schemas",
    "log": "emit.api",
    "process_emitter": "emit.api",
    "setup": "emit.api",
    "slow_specs": "validate.fast",
    "span": "trace.span",
    "subject_of": "subjects",
    "subject_token": "subjects",
    "upcast": "versions.upcast",
    "upcast_record": "versions.upcast",
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
