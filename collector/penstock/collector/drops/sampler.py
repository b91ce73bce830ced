"""Which drops are recorded, and what is kept of one.

A token bucket bounds how many drops are recorded per second, so that a collector that drops nearly
everything does not spend its time on writing that down. The first drop of each source, step and
reason in a second is recorded even when the bucket is empty: a rare kind of drop stays visible
beside a frequent one. Drops that are not recorded are counted.
"""

from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson

BURST_S: Final = 10
"""Seconds of the rate that may come at once."""

_SECOND_NS: Final = 1_000_000_000
_DIGEST_BYTES: Final = 16


class DropKind(NamedTuple):
    """A kind of drop: the source of the record, the step that dropped it, and the reason."""

    source: str
    step: str
    reason: str


Missed = Counter[DropKind]
"""Drops that were not recorded, by kind."""


class DropSampler:
    """Chooses the drops that are recorded.

    Args:
        rate: Drops per second; 0: none is recorded, and none is counted.
        max_text_bytes: Bytes of text that are kept of a record.

    Attributes:
        recorded: Drops that were chosen since the start.
        missed: Drops that were not chosen since `take_missed` was called, by kind.
    """

    def __init__(self, rate: float, max_text_bytes: int) -> None:
        self.recorded = 0
        self.missed = Missed()
        self._seen: dict[DropKind, int] = {}
        self._then_ns: int | None = None
        self._tokens = 0.0
        self.limit(rate, max_text_bytes)

    def limit(self, rate: float, max_text_bytes: int) -> None:
        """Other bounds hold from now on."""
        self.rate = rate
        self.max_text_bytes = max_text_bytes
        self._tokens = rate * BURST_S

    def chooses(self, kind: DropKind, now_ns: int) -> bool:
        """Return whether a drop is recorded; `now_ns` is monotonic."""
        rate = self.rate
        if not rate:
            return False
        if self._then_ns is not None and now_ns > self._then_ns:
            gained = (now_ns - self._then_ns) * rate / _SECOND_NS
            self._tokens = min(rate * BURST_S, self._tokens + gained)
        self._then_ns = now_ns
        if self._tokens >= 1:
            self._tokens -= 1
        elif now_ns - self._seen.get(kind, now_ns - _SECOND_NS) < _SECOND_NS:
            self.missed[kind] += 1
            return False
        self._seen[kind] = now_ns
        self.recorded += 1
        return True

    def take_missed(self) -> Missed:
        """Return the drops that were not recorded since the last call."""
        missed, self.missed = self.missed, Missed()
        return missed


@dataclass(frozen=True, slots=True)
class Drop:
    """A record that a transform dropped.

    Attributes:
        kind: Kind of the drop.
        service: The record's `resource.service.name`; empty without one.
        trace_id: The record's trace; empty without one.
        record_id: The record's own id; empty without one.
        digest: Hexadecimal BLAKE2b, 128 bits, of the record's line as it arrived, with its
            resource.
        text: The beginning of the record's text, redacted.
    """

    kind: DropKind
    service: str
    trace_id: str
    record_id: str
    digest: str
    text: str


def drop_of(kind: DropKind, line: bytes, fields: dict[str, Any], max_text_bytes: int) -> Drop:
    """Describe a dropped record.

    Args:
        kind: Kind of the drop.
        line: The record's line as it arrived, with its resource.
        fields: The record, redacted.
        max_text_bytes: Bytes of text that are kept.
    """
    resource = fields.get("resource")
    service = resource.get("service.name") if isinstance(resource, dict) else None
    return Drop(
        kind,
        _text(service),
        _text(fields.get("trace_id")),
        _text(fields.get("record_id")),
        blake2b(line, digest_size=_DIGEST_BYTES).hexdigest(),
        _beginning(fields, max_text_bytes) if max_text_bytes else "",
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _beginning(fields: dict[str, Any], max_bytes: int) -> str:
    """Return the beginning of the body, else of the name, else of the whole record as JSON.

    It is empty where a transform made something that is no JSON.
    """
    text = fields.get("body") or fields.get("name") or fields
    try:
        data = text.encode("utf-8", "replace") if isinstance(text, str) else orjson.dumps(text)
    except orjson.JSONEncodeError:
        return ""
    return data[:max_bytes].decode("utf-8", "ignore")
