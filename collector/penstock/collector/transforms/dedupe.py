"""Dedupe: a record whose key was seen within the window is dropped.

The keys are lost with the process, so a repeat may come through after a restart. A first one is
never dropped.
"""

from collections import OrderedDict
from typing import Any, Final, Literal, Self

from pydantic import Field
from typing_extensions import override

from penstock.collector.transforms.expressions.expression import (
    Evaluate,
    compile_expression,
    digest,
)
from penstock.collector.transforms.expressions.paths import Fields
from penstock.collector.transforms.transform import (
    PASS,
    DropReason,
    Event,
    Expression,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
)

_SECOND_NS: Final = 1_000_000_000
_OWN: Final = frozenset({"time_unix_nano", "observed_time_unix_nano", "record_id"})


class DedupeSettings(TransformSettings):
    """Records whose key was seen within the window are dropped."""

    type: Literal["dedupe"]
    key: Expression | None = None
    window_s: float = Field(default=60.0, gt=0, le=86_400)
    max_keys: int = Field(default=100_000, ge=1, le=10_000_000)


def _identity(fields: Fields) -> Any:
    return {name: value for name, value in fields.items() if name not in _OWN}


class Dedupe(Transform):
    """Drops a record whose key was seen within the window.

    Args:
        key: Key of equal records; None: all but the times and the record's own id.
        window_ns: Nanoseconds that a key is known from its first record on.
        max_keys: Maximum keys kept; beyond it the oldest is forgotten.
    """

    settings = DedupeSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(
            compile_expression(settings.key).evaluate if settings.key else None,
            window_ns=int(settings.window_s * _SECOND_NS),
            max_keys=settings.max_keys,
        )

    def __init__(self, key: Evaluate | None, *, window_ns: int, max_keys: int) -> None:
        self._key = key or _identity
        self._window_ns = window_ns
        self._max_keys = max_keys
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        self._forget(now_ns)
        value = self._key(event.fields)
        if value is None:
            return PASS
        key = digest(value)
        if key in self._seen:
            return DropReason.DEDUPLICATED
        self._seen[key] = now_ns
        if len(self._seen) > self._max_keys:
            self._seen.popitem(last=False)
        return PASS

    def _forget(self, now_ns: int) -> None:
        while self._seen and next(iter(self._seen.values())) + self._window_ns <= now_ns:
            self._seen.popitem(last=False)
