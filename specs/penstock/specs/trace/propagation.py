"""Traces and context across processes, as headers: those that OTEL_PROPAGATORS names.

By default these are W3C Trace Context and Baggage. With OpenTelemetry installed, a trace that is
extracted becomes the parent of spans; without it, records carry its ids all the same. Baggage says
who acts, so it is sent, and believed, only when the caller asks for that: for services of one's
own. What it may hold is fixed; names and addresses of people are not part of it.

Which headers carry a trace from process to process: OTEL_PROPAGATORS.

``tracecontext`` and ``baggage``, the default, are our own and need no OpenTelemetry. Others
(``b3``, ``b3multi``, ``jaeger``, …) are OpenTelemetry's, from the package that registers them. A
name that nobody registers is ignored, with a warning, as OpenTelemetry's specification asks.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote

from penstock.specs import clock
from penstock.specs.emit.context import bind, bound
from penstock.specs.limits import BAGGAGE_BYTES_MAX, BAGGAGE_MEMBERS_MAX, TRACE_STATE_CHARACTERS_MAX
from penstock.specs.models.envelope import ZERO_SPAN, ZERO_TRACE
from penstock.specs.trace.span_context import (
    from_foreign,
    has_outlived,
    remote_parent,
    to_foreign,
    trace_fields,
    trace_state,
    use_trace,
)

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE_KEY: Final = (
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
)
_STATE_VALUE: Final = r"[ -+\--<>-~]{0,255}[!-+\--<>-~]"
_STATE_MEMBER: Final = re.compile(f"({_STATE_KEY})={_STATE_VALUE}")
_STATE_MEMBERS_MAX: Final = 32


def parse_traceparent(text: str) -> dict[str, Any] | None:
    """The ids of a ``traceparent`` header as a record has them; None if it is not well formed."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    unknown = version == "ff" or (version == "00" and rest is not None)
    if unknown or trace_id == ZERO_TRACE or span_id == ZERO_SPAN:
        return None
    return {"trace_id": trace_id, "span_id": span_id, "trace_flags": int(flags, 16)}


def parse_tracestate(text: str) -> str:
    """A ``tracestate`` header as it is passed on: all of it, or nothing if it is not well formed.

    W3C Trace Context: at most 32 members, keys that come once, values of printable ASCII without
    comma and equals sign, blanks only around members, which may be empty.
    """
    if len(text) > TRACE_STATE_CHARACTERS_MAX:
        return ""
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    found = [_STATE_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in found if match is not None}
    if not len(keys) == len(members) <= _STATE_MEMBERS_MAX:
        return ""
    return ",".join(members)


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


BAGGAGE: Final = "baggage"
CARRIED: Final = ("user.id", "account.id", "account.license", "request.id", "session.id")
"""The keys of the context that baggage may hold."""

_SAFE: Final = "!#$&'()*+-./:<=>?@[]^_`{|}~"


def inject(headers: MutableMapping[str, str], *, baggage: bool = False) -> None:
    """Add the running trace to the headers of a request; nothing, if there is no trace.

    Args:
        headers: Of an HTTP request, or the metadata of a message.
        baggage: Whether to say on whose behalf, too: user, account, request and session. For
            services of one's own; it goes to whoever is called.
    """
    chosen = propagators()
    fields = trace_fields()
    if "span_id" in fields:
        state = trace_state()
        for each in chosen.trace:
            each.inject(headers, fields, state)
    if baggage and chosen.baggage and (members := _members(bound().context)):
        headers[BAGGAGE] = members


@contextmanager
def extracted(headers: Mapping[str, str], *, baggage: bool = False) -> Iterator[None]:
    """Go on with the trace of a request's headers, within the block; malformed ones are ignored.

    Args:
        headers: With lower-case names.
        baggage: Whether to believe what the caller says of user, account, request and session. Its
            request becomes ``request.parent_id``.
    """
    with continued(headers, baggage=baggage):
        yield


@contextmanager
def continued(headers: Mapping[str, str], *, baggage: bool, trace: bool = True) -> Iterator[None]:
    """What `extracted` does; without `trace` only the baggage counts."""
    chosen = propagators()
    found = chosen.extract(headers) if trace else None
    with ExitStack() as stack:
        if found is not None:
            stack.enter_context(use_trace(*found))
            stack.enter_context(remote_parent(*found))
        if baggage and chosen.baggage:
            said: dict[str, Any] = parse_baggage(headers.get(BAGGAGE, ""))
            if "request.id" in said:
                said["request.parent_id"] = said.pop("request.id")
            stack.enter_context(bind(**said))
        yield


@contextmanager
def new_trace() -> Iterator[None]:
    """Within the block records belong to a trace: the running one, or a new one of their own."""
    if trace_fields() and not has_outlived():
        yield
        return
    trace = {"trace_id": clock.trace_id(), "span_id": clock.span_id(), "trace_flags": 1}
    with use_trace(trace, ""):
        yield


def parse_baggage(text: str) -> dict[str, str]:
    """What of a ``baggage`` header may become context."""
    if len(text) > BAGGAGE_BYTES_MAX:
        return {}
    found = {}
    for member in text.split(",")[:BAGGAGE_MEMBERS_MAX]:
        key, equals, rest = member.partition("=")
        value = unquote(rest.partition(";")[0].strip())
        if equals and key.strip() in CARRIED and value:
            found[key.strip()] = value
    return found


def _members(context: Mapping[str, str]) -> str:
    members = [f"{key}={quote(context[key], _SAFE)}" for key in CARRIED if key in context]
    return ",".join(members)
