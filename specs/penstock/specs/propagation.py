"""Traces and context across processes: W3C Trace Context and Baggage, as headers.

With OpenTelemetry installed, a trace that is extracted becomes the parent of spans; without it,
records carry its ids all the same. Baggage says who acts, so it is sent, and believed, only when
the caller asks for that: for services of one's own. What it may hold is fixed; names and addresses
of people are not part of it.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from urllib.parse import quote, unquote

from penstock.specs import clock
from penstock.specs.bound import bind, bound
from penstock.specs.envelope import ZERO_SPAN, ZERO_TRACE
from penstock.specs.limits import (
    BAGGAGE_BYTES_MAX,
    BAGGAGE_MEMBERS_MAX,
    TRACE_STATE_CHARACTERS_MAX,
)
from penstock.specs.traces import has_outlived, remote_parent, trace_fields, trace_state, use_trace

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
CARRIED: Final = ("user.id", "account.id", "account.license", "request.id", "session.id")
"""The keys of the context that baggage may hold."""

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE_KEY: Final = (
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
)
_STATE_VALUE: Final = r"[ -+\--<>-~]{0,255}[!-+\--<>-~]"
_STATE_MEMBER: Final = re.compile(f"({_STATE_KEY})={_STATE_VALUE}")
_STATE_MEMBERS_MAX: Final = 32
_SAFE: Final = "!#$&'()*+-./:<=>?@[]^_`{|}~"


def inject(headers: MutableMapping[str, str], *, baggage: bool = False) -> None:
    """Add the running trace to the headers of a request; nothing, if there is no trace.

    Args:
        headers: Of an HTTP request, or the metadata of a message.
        baggage: Whether to say on whose behalf, too: user, account, request and session. For
            services of one's own; it goes to whoever is called.
    """
    fields = trace_fields()
    if "span_id" in fields:
        flags = int(fields.get("trace_flags", 0))
        headers[TRACEPARENT] = f"00-{fields['trace_id']}-{fields['span_id']}-{flags:02x}"
        if state := trace_state():
            headers[TRACESTATE] = state
    if baggage and (members := _members(bound().context)):
        headers[BAGGAGE] = members


@contextmanager
def extracted(headers: Mapping[str, str], *, baggage: bool = False) -> Iterator[None]:
    """Go on with the trace of a request's headers, within the block; malformed ones are ignored.

    Args:
        headers: With lower-case names.
        baggage: Whether to believe what the caller says of user, account, request and session. Its
            request becomes ``request.parent_id``.
    """
    trace = parse_traceparent(headers.get(TRACEPARENT, ""))
    state = parse_tracestate(headers.get(TRACESTATE, "")) if trace else ""
    with ExitStack() as stack:
        if trace:
            stack.enter_context(use_trace(trace, state))
            stack.enter_context(remote_parent(trace, state))
        if baggage:
            found: dict[str, Any] = parse_baggage(headers.get(BAGGAGE, ""))
            if "request.id" in found:
                found["request.parent_id"] = found.pop("request.id")
            stack.enter_context(bind(**found))
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
