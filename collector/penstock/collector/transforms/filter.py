"""Filter: records go on for which a condition holds."""

from typing import Any, Literal, Self

from typing_extensions import override

from penstock.collector.transforms.expressions.expression import Evaluate, compile_condition
from penstock.collector.transforms.transform import (
    PASS,
    Condition,
    DropReason,
    Event,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
)


class FilterSettings(TransformSettings):
    """Records go on for which a condition holds."""

    type: Literal["filter"]
    where: Condition


class Filter(Transform):
    """Lets pass what the condition holds for."""

    settings = FilterSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(compile_condition(settings.where).evaluate)

    def __init__(self, condition: Evaluate) -> None:
        self._condition = condition

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        return PASS if self._condition(event.fields) else DropReason.FILTERED
