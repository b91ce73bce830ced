"""Which headers carry a trace from process to process: OTEL_PROPAGATORS.

``tracecontext`` and ``baggage``, the default, are our own and need no OpenTelemetry. Others
(``b3``, ``b3multi``, ``jaeger``, …) are OpenTelemetry's, from the package that registers them. A
name that nobody registers is ignored, with a warning, as OpenTelemetry's specification asks.
"""

import logging
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

from penstock.specs.trace_context import (
    TRACEPARENT,
    TRACESTATE,
    parse_traceparent,
    parse_tracestate,
)
from penstock.specs.traces import from_foreign, to_foreign

VARIABLE: Final = "OTEL_PROPAGATORS"
_USUAL: Final = "tracecontext,baggage"
_GROUP: Final = "opentelemetry_propagator"
_LOGGER: Final = logging.getLogger("penstock.specs")


class Headers(Protocol):
    """A way to write a trace into headers."""

    def inject(
        self, headers: MutableMapping[str, str], fields: Mapping[str, Any], state: str
    ) -> None:
        """Add the trace."""

    def extract(self, headers: Mapping[str, str]) -> tuple[Mapping[str, Any], str] | None:
        """The trace's ids as a record has them, and its state; None if there is none."""


class TraceContext:
    """W3C Trace Context."""

    def inject(
        self, headers: MutableMapping[str, str], fields: Mapping[str, Any], state: str
    ) -> None:
        """As `Headers` says."""
        flags = int(fields.get("trace_flags", 0))
        headers[TRACEPARENT] = f"00-{fields['trace_id']}-{fields['span_id']}-{flags:02x}"
        if state:
            headers[TRACESTATE] = state

    def extract(self, headers: Mapping[str, str]) -> tuple[Mapping[str, Any], str] | None:
        """As `Headers` says."""
        trace = parse_traceparent(headers.get(TRACEPARENT, ""))
        if trace is None:
            return None
        return trace, parse_tracestate(headers.get(TRACESTATE, ""))


class _Getter:
    """OpenTelemetry's ``Getter``, of headers with names in lower case or as they are asked for."""

    def get(self, headers: Mapping[str, str], name: str) -> list[str] | None:
        """A header's values."""
        value = headers.get(name.lower(), headers.get(name))
        return None if value is None else [value]

    def keys(self, headers: Mapping[str, str]) -> list[str]:
        """The headers' names."""
        return list(headers)


_GETTER: Final = _Getter()


class Foreign:
    """One of OpenTelemetry's propagators; whatever it does, the application goes on.

    Args:
        name: As OTEL_PROPAGATORS has it.
        propagator: A ``TextMapPropagator``.
    """

    def __init__(self, name: str, propagator: Any) -> None:
        self._name = name
        self._propagator = propagator

    def inject(
        self, headers: MutableMapping[str, str], fields: Mapping[str, Any], state: str
    ) -> None:
        """As `Headers` says."""
        try:
            self._propagator.inject(headers, context=to_foreign(fields, state))
        except Exception as error:  # noqa: BLE001 - others' code must not hurt the app
            _LOGGER.warning("the propagator %s cannot write: %r", self._name, error)

    def extract(self, headers: Mapping[str, str]) -> tuple[Mapping[str, Any], str] | None:
        """As `Headers` says."""
        try:
            return from_foreign(
                self._propagator.extract(headers, context=to_foreign(None), getter=_GETTER)
            )
        except Exception as error:  # noqa: BLE001 - others' code must not hurt the app
            _LOGGER.warning("the propagator %s cannot read: %r", self._name, error)
            return None


@dataclass(frozen=True, slots=True)
class Propagators:
    """What is chosen.

    Attributes:
        trace: All are written; of those that are read, the last that finds a trace wins.
        baggage: Whether W3C Baggage may be sent and believed, where the caller asks for that.
    """

    trace: tuple[Headers, ...]
    baggage: bool

    def extract(self, headers: Mapping[str, str]) -> tuple[Mapping[str, Any], str] | None:
        """The trace that headers with lower-case names hold."""
        for each in reversed(self.trace):
            if (found := each.extract(headers)) is not None:
                return found
        return None


_known: tuple[str, Propagators] | None = None


def propagators() -> Propagators:
    """Those that OTEL_PROPAGATORS names now; a warning for each name that is not known."""
    global _known  # noqa: PLW0603 - a memo of one, replaced as a whole
    text = os.environ.get(VARIABLE, "").strip() or _USUAL
    known = _known
    if known is None or known[0] != text:
        known = _known = (text, _chosen(text))
    return known[1]


def _chosen(text: str) -> Propagators:
    names = list(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if "none" in (name.lower() for name in names):
        return Propagators((), baggage=False)
    trace = [found for name in names if name != "baggage" and (found := _named(name))]
    return Propagators(tuple(trace), baggage="baggage" in names)


def _named(name: str) -> Headers | None:
    if name == "tracecontext":
        return TraceContext()
    for entry in entry_points(group=_GROUP, name=name):
        try:
            return Foreign(name, entry.load()())
        except Exception as error:  # noqa: BLE001 - others' code must not hurt the app
            _LOGGER.warning("%s: %s is ignored, it cannot be loaded: %r", VARIABLE, name, error)
            return None
    _LOGGER.warning(
        "%s: %s is ignored: no installed package registers it; for b3 and b3multi install"
        " opentelemetry-propagator-b3, for jaeger opentelemetry-propagator-jaeger",
        VARIABLE,
        name,
    )
    return None
