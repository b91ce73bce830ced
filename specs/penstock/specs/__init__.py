"""Versioned telemetry specs and the library that emits them."""

from penstock.specs.app import log, process_emitter, setup
from penstock.specs.audit import Actor, Audit, Target
from penstock.specs.bound import bind
from penstock.specs.codec import decode, encode
from penstock.specs.columns import Column, fields
from penstock.specs.contracts import View
from penstock.specs.dimensions import Dimension
from penstock.specs.doctor import doctor
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
from penstock.specs.json_schema import json_schema
from penstock.specs.log_record import LogRecord
from penstock.specs.metric_point import MetricPoint
from penstock.specs.middleware import AsgiMiddleware, WsgiMiddleware
from penstock.specs.propagation import extracted, inject
from penstock.specs.resource import Resource
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
