"""Tail sampling: a trace is kept or dropped as a whole, when it was seen.

The spans of a trace wait for `wait_s` from the first of them. Then the first rule decides whose
condition holds for one of the spans; the rest is kept by its ratio. A decision is kept, and spans
that come later follow it. Kept spans come as new records, as from a source with the transform's
name.

Spans are held in memory. A stop decides on all traces; after a kill those that wait are read again,
and the decisions are forgotten.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.limits import KIB, MIB
from penstock.collector.sources.settings import Section
from penstock.collector.transforms.expressions.expression import Evaluate, compile_condition
from penstock.collector.transforms.expressions.paths import Fields
from penstock.collector.transforms.sample import WEIGHT_MAX
from penstock.collector.transforms.transform import (
    PASS,
    Condition,
    DeferredSampler,
    DropReason,
    Event,
    Seed,
    TransformContext,
    TransformSettings,
    Verdict,
)
from penstock.specs.models.codec import encode_json

_SECOND_NS: Final = 1_000_000_000
_FLUSH_NS: Final = _SECOND_NS // 10
"""Between looks for traces whose time is over."""
_SPACE: Final = 1 << 64


class TailRule(Section):
    """A rule that decides on the traces for which it holds."""

    where: Condition | None = Field(
        default=None, description="holds for one of the spans; see expressions"
    )
    min_duration_ms: float | None = Field(
        default=None, ge=0, description="from the first begin to the last end of its spans"
    )
    ratio: float = Field(default=1.0, ge=0, le=1, description="the share of them that is kept")

    @model_validator(mode="after")
    def _asks_something(self) -> "TailRule":
        if self.where is None and self.min_duration_ms is None:
            msg = "set `where`, `min_duration_ms` or both"
            raise ValueError(msg)
        return self


class TailSampleSettings(TransformSettings):
    """Traces are kept or dropped as a whole, when they were seen."""

    type: Literal["tail_sample"]
    wait_s: float = Field(
        default=10.0, ge=0.1, le=600, description="from a trace's first span to its decision"
    )
    rules: list[TailRule] = Field(
        default=[], max_length=64, description="the first that holds for a trace decides"
    )
    ratio: float = Field(default=0.0, ge=0, le=1, description="of traces that no rule decides on")
    seed: Seed = ""
    max_traces: int = Field(
        default=50_000, ge=1, le=10_000_000, description="that wait; beyond it the oldest decides"
    )
    max_bytes: int = Field(
        default=256 * MIB, ge=64 * KIB, le=64 * KIB * MIB, description="likewise"
    )
    max_decided_bytes: int = Field(
        default=8 * MIB, ge=64 * KIB, le=4096 * MIB,
        description="of spans whose trace is decided; beyond it they go on before the next flush",
    )  # fmt: skip
    max_decisions: int = Field(
        default=500_000, ge=1, le=50_000_000,
        description="that are kept for late spans; beyond it the oldest is forgotten",
    )  # fmt: skip

    @property
    def draws(self) -> bool:
        """True if some traces are kept by chance, which their id decides."""
        return any(0 < ratio < 1 for ratio in (self.ratio, *(rule.ratio for rule in self.rules)))


@dataclass(slots=True)
class _Trace:
    """Spans that wait for the decision on their trace.

    Attributes:
        until_ns: Time of the decision.
        spans: Each behind the name of its source.
        met: Rules, by number, whose condition has held for a span.
    """

    until_ns: int
    spans: list[tuple[str, Fields]] = field(default_factory=list)
    size: int = 0
    met: set[int] = field(default_factory=set)
    begin_ns: int | None = None
    end_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Rule:
    where: Evaluate | None
    min_duration_ns: float
    ratio: float


class TailSample(DeferredSampler):
    """Holds the spans of each trace until it decides on it.

    Args:
        settings: Rules and bounds.
    """

    settings = TailSampleSettings
    outputs = (PASS,)
    interval_ns = _FLUSH_NS

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(settings)

    def __init__(self, settings: TailSampleSettings) -> None:
        self._settings = settings
        self._wait_ns = int(settings.wait_s * _SECOND_NS)
        self._rules = [
            _Rule(
                None if rule.where is None else compile_condition(rule.where).evaluate,
                (rule.min_duration_ms or 0) * 1e6,
                rule.ratio,
            )
            for rule in settings.rules
        ]
        self._seed = settings.seed.encode()
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        self._weights: OrderedDict[str, float] = OrderedDict()
        self._kept: list[Fields] = []
        self._dropped: list[tuple[str, Fields]] = []
        self._size = self._decided_size = 0
        self._decided_since_ns: int | None = None
        self._notes = Counter[str]()

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        fields = event.fields
        if not self.takes(event):
            return PASS
        identity = fields["trace_id"]
        decided = self._weights.get(identity)
        if decided is not None:
            self._weights.move_to_end(identity)
            self._notes["late_spans"] += 1
            if not decided:
                return DropReason.SAMPLED
            self._kept.append(_weighted(fields, decided))
            self._note_decided(now_ns, len(encode_json(fields)))
            return DropReason.AGGREGATED
        self._hold(identity, event.source, fields, now_ns)
        return DropReason.AGGREGATED

    @override
    def takes(self, event: Event) -> bool:
        fields = event.fields
        return fields.get("kind") == "span" and fields.get("trace_id").__class__ is str

    @override
    def flush(self, now_ns: int, unix_ns: int, *, everything: bool = False) -> list[Fields]:
        while self._traces:
            identity, trace = next(iter(self._traces.items()))
            if not everything and trace.until_ns > now_ns:
                break
            self._decide(identity)
        kept, self._kept = self._kept, []
        self._decided_size, self._decided_since_ns = 0, None
        return kept

    @property
    @override
    def held_since_ns(self) -> int | None:
        times = [] if self._decided_since_ns is None else [self._decided_since_ns]
        if self._traces:  # they are in the order of their first spans
            times.append(next(iter(self._traces.values())).until_ns - self._wait_ns)
        return min(times, default=None)

    @property
    @override
    def is_flush_due(self) -> bool:
        return self._decided_size > self._settings.max_decided_bytes

    @property
    @override
    def notes(self) -> Mapping[str, int]:
        return self._notes

    @override
    def dropped(self) -> list[tuple[str, Fields]]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def _hold(self, identity: str, source: str, fields: Fields, now_ns: int) -> None:
        trace = self._traces.get(identity)
        if trace is None:
            trace = self._traces[identity] = _Trace(now_ns + self._wait_ns)
        size = len(encode_json(fields))
        trace.spans.append((source, fields))
        trace.size += size
        self._size += size
        for number, rule in enumerate(self._rules):
            if rule.where is not None and number not in trace.met and rule.where(fields) is True:
                trace.met.add(number)
        begin_ns = int(fields.get("time_unix_nano") or 0)
        end_ns = int(fields.get("end_time_unix_nano") or 0)
        trace.begin_ns = begin_ns if trace.begin_ns is None else min(trace.begin_ns, begin_ns)
        trace.end_ns = max(trace.end_ns, end_ns)
        settings = self._settings
        while len(self._traces) > settings.max_traces or self._size > settings.max_bytes:
            self._decide(next(iter(self._traces)))
            self._notes["traces_decided_early"] += 1

    def _decide(self, identity: str) -> None:
        """Keep or drop the spans of a trace, and keep the decision."""
        trace = self._traces.pop(identity)
        self._size -= trace.size
        self._note_decided(trace.until_ns - self._wait_ns, trace.size)
        ratio = self._ratio_of(trace)
        digest = blake2b(identity.encode(), digest_size=8, key=self._seed).digest()
        is_kept = int.from_bytes(digest) < int(ratio * _SPACE)
        weight = 1 / ratio if is_kept else 0.0
        self._weights[identity] = weight
        if len(self._weights) > self._settings.max_decisions:
            self._weights.popitem(last=False)
        what = "kept" if is_kept else "dropped"
        self._notes[f"traces_{what}"] += 1
        self._notes[f"spans_{what}"] += len(trace.spans)
        if is_kept:
            self._kept += [_weighted(fields, weight) for _, fields in trace.spans]
        else:
            self._dropped += trace.spans

    def _note_decided(self, since_ns: int, size: int) -> None:
        """Spans that came in at a time wait for the next flush, to go on or to be described."""
        self._decided_size += size
        if self._decided_since_ns is None or since_ns < self._decided_since_ns:
            self._decided_since_ns = since_ns

    def _ratio_of(self, trace: _Trace) -> float:
        duration_ns = trace.end_ns - (trace.begin_ns or 0)
        for number, rule in enumerate(self._rules):
            holds = rule.where is None or number in trace.met
            if holds and duration_ns >= rule.min_duration_ns:
                return rule.ratio
        return self._settings.ratio


def _weighted(fields: Fields, weight: float) -> Fields:
    """A span that says for how many it stands."""
    whole = (fields.get("sample_weight") or 1) * weight
    return {**fields, "sample_weight": min(whole, WEIGHT_MAX)} if whole > 1 else fields
