"""Sample: a share of the records is kept.

It depends on nothing but the record, so what is read again after a crash has the same fate.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, Literal, Self

from pydantic import Field
from typing_extensions import override

from penstock.collector.transforms.expressions.expression import compile_condition
from penstock.collector.transforms.expressions.paths import Fields
from penstock.collector.transforms.transform import (
    PASS,
    Condition,
    DropReason,
    Event,
    Seed,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
)

_SPACE: Final = 1 << 64
ERROR_SEVERITY: Final = 17
"""OpenTelemetry's first number of ERROR."""

WEIGHT_MAX: Final = 1e15
"""The greatest number of records that one may stand for: a double counts exactly up to it."""


class SampleSettings(TransformSettings):
    """A share of the records is kept, by trace, and says how many it stands for."""

    type: Literal["sample"]
    ratio: float = Field(ge=1e-6, le=1)
    seed: Seed = ""
    keep_errors: bool = True
    keep: Condition | None = None


def _is_error(fields: Fields) -> bool:
    """Return whether the record reports a failure: severity ERROR or above, or a failed span."""
    severity = fields.get("severity_number")
    return (severity.__class__ is int and severity >= ERROR_SEVERITY) or (
        fields.get("status_code") == "ERROR"
    )


class Sample(Transform):
    """Keeps a share of the records, and says on each how many it stands for.

    Records of one trace share their fate, in every collector; those without a trace are sampled by
    their source and place in it.

    Args:
        ratio: Share that is kept, above 0 and at most 1.
        keep: Records that are always kept, with their weight unchanged.
        seed: Two with the same one keep the same traces, so that one behind the other leaves out
            nothing more, and weights would say that it did.
    """

    settings = SampleSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        keep = compile_condition(settings.keep).evaluate if settings.keep else None
        keeps_errors = settings.keep_errors

        def is_kept(fields: Fields) -> bool:
            return (keeps_errors and _is_error(fields)) or (keep is not None and keep(fields))

        return cls(settings.ratio, is_kept, settings.seed)

    def __init__(self, ratio: float, keep: Callable[[Fields], bool], seed: str = "") -> None:
        self._seed = seed.encode()
        self._bound = int(ratio * _SPACE)
        self._weight = 1 / ratio
        self._keep = keep

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        fields = event.fields
        if self._keep(fields):
            return PASS
        trace = fields.get("trace_id")
        key = trace if trace.__class__ is str else f"{event.source}\n{event.sequence}"
        digest = blake2b(key.encode(), digest_size=8, key=self._seed).digest()
        if int.from_bytes(digest) >= self._bound:
            return DropReason.SAMPLED
        weight = (fields.get("sample_weight") or 1) * self._weight
        if weight > 1:
            event.fields = {**fields, "sample_weight": min(weight, WEIGHT_MAX)}
        return PASS
