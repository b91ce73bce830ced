"""Traces and context across processes, as headers: those that OTEL_PROPAGATORS names.

By default these are W3C Trace Context and Baggage. With OpenTelemetry installed, a trace that is
extracted becomes the parent of spans; without it, records carry its ids all the same. Baggage says
who acts, so it is sent, and believed, only when the caller asks for that: for services of one's
own. What it may hold is fixed; names and addresses of people are not part of it.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from urllib.parse import quote, unquote

from penstock.specs import clock
from penstock.specs.bound import bind, bound
from penstock.specs.limits import BAGGAGE_BYTES_MAX, BAGGAGE_MEMBERS_MAX
from penstock.specs.propagators import propagators
from penstock.specs.traces import has_outlived, remote_parent, trace_fields, trace_state, use_trace

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
