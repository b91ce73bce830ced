"""Throttle: no more than so many records a second.

The buckets are lost with the process, so more may come through after a restart.
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


class ThrottleSettings(TransformSettings):
    """No more than so many records a second, of each source and key."""

    type: Literal["throttle"]
    rate: float = Field(ge=0.01, le=1e9)
    burst: int | None = Field(default=None, ge=1)
    key: Expression | None = None
    max_keys: int = Field(default=10_000, ge=1, le=1_000_000)
    when_exceeded: Literal["drop", "block"] = "drop"


class Throttle(Transform):
    """A token bucket for each source and key.

    Args:
        rate: Records a second.
        burst: Records that may come at once.
        key: Key that tells records of a source apart; None: all share one.
        max_keys: Buckets; beyond it the one that was not used longest is forgotten, and is full
            when it comes again.
        when_exceeded: ``drop`` ends the record; ``block`` lets it pass and makes its source wait.
    """

    settings = ThrottleSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(
            settings.rate,
            settings.burst or max(1, int(settings.rate)),
            compile_expression(settings.key).evaluate if settings.key else None,
            max_keys=settings.max_keys,
            when_exceeded=settings.when_exceeded,
        )

    def __init__(
        self,
        rate: float,
        burst: int,
        key: Evaluate | None,
        *,
        max_keys: int,
        when_exceeded: Literal["drop", "block"],
    ) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._key = key
        self._max_keys = max_keys
        self._blocks = when_exceeded == "block"
        self._buckets: OrderedDict[tuple[str, bytes], tuple[float, int]] = OrderedDict()

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        value = None if self._key is None else self._key(event.fields)
        name = (event.source, digest(value))
        level, then_ns = self._buckets.pop(name, (self._burst, now_ns))
        passed_s = max(0, now_ns - then_ns) / _SECOND_NS
        level = min(self._burst, level + passed_s * self._rate)
        allowed = level >= 1 or self._blocks
        if allowed:
            level -= 1
        self._buckets[name] = (level, now_ns)
        if len(self._buckets) > self._max_keys:
            self._buckets.popitem(last=False)
        if not allowed:
            return DropReason.THROTTLED
        if level < 0:
            event.pause_ns = max(event.pause_ns, int(-level / self._rate * _SECOND_NS))
        return PASS
