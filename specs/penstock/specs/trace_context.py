"""W3C Trace Context: the headers ``traceparent`` and ``tracestate``."""

import re
from typing import Any, Final

from penstock.specs.envelope import ZERO_SPAN, ZERO_TRACE
from penstock.specs.limits import TRACE_STATE_CHARACTERS_MAX

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
