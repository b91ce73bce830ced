"""Versioned telemetry specs and the library that emits them.

What an application does not use is not loaded: a name comes from its module when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.specs.app import log, process_emitter, setup
    from penstock.specs.audit import Actor, Audit, Target
    from penstock.specs.bound import bind
    from penstock.specs.codec import decode, encode
    from penstock.specs.columns import Column, fields
    from penstock.specs.contracts import View
    from penstock.specs.diagnosis import doctor
    from penstock.specs.dimensions import Dimension
    from penstock.specs.emit import Emitter
    from penstock.specs.emitter_limits import Counters, EmitterLimits
    from penstock.specs.envelope import Context, Record
    from penstock.specs.errors import (
        MissingExtraError,
        RefusedRecordError,
        RefusedSpecError,
        SpecError,
        UnknownSpecError,
    )
    from penstock.specs.event import Event
    from penstock.specs.executor import Executor, carry
    from penstock.specs.fast_gate import Accepted, slow_specs
    from penstock.specs.gate import Rejected, attach, check_line
    from penstock.specs.log_record import LogRecord
    from penstock.specs.metric_point import MetricPoint
    from penstock.specs.middleware import AsgiMiddleware, WsgiMiddleware
    from penstock.specs.propagation import extracted, inject
    from penstock.specs.resource import Resource
    from penstock.specs.schema_export import json_schema
    from penstock.specs.scrub import Scrubber
    from penstock.specs.sensitive import HashKey, Sensitive
    from penstock.specs.span_record import Span
    from penstock.specs.subjects import KINDS, subject_of, subject_token
    from penstock.specs.tracing import RunningSpan, span
    from penstock.specs.upcasts import upcast, upcast_record

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
    "Accepted": "fast_gate",
    "Actor": "audit",
    "AsgiMiddleware": "middleware",
    "Audit": "audit",
    "Column": "columns",
    "Context": "envelope",
    "Counters": "emitter_limits",
    "Dimension": "dimensions",
    "Emitter": "emit",
    "EmitterLimits": "emitter_limits",
    "Event": "event",
    "Executor": "executor",
    "HashKey": "sensitive",
    "KINDS": "subjects",
    "LogRecord": "log_record",
    "MetricPoint": "metric_point",
    "MissingExtraError": "errors",
    "Record": "envelope",
    "RefusedRecordError": "errors",
    "RefusedSpecError": "errors",
    "Rejected": "gate",
    "Resource": "resource",
    "RunningSpan": "tracing",
    "Scrubber": "scrub",
    "Sensitive": "sensitive",
    "Span": "span_record",
    "SpecError": "errors",
    "Target": "audit",
    "UnknownSpecError": "errors",
    "View": "contracts",
    "WsgiMiddleware": "middleware",
    "attach": "gate",
    "bind": "bound",
    "carry": "executor",
    "check_line": "gate",
    "decode": "codec",
    "doctor": "diagnosis",
    "encode": "codec",
    "extracted": "propagation",
    "fields": "columns",
    "inject": "propagation",
    "json_schema": "schema_export",
    "log": "app",
    "process_emitter": "app",
    "setup": "app",
    "slow_specs": "fast_gate",
    "span": "tracing",
    "subject_of": "subjects",
    "subject_token": "subjects",
    "upcast": "upcasts",
    "upcast_record": "upcasts",
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
