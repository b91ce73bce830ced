"""Filter and route: records go on or part by conditions.

Sample, throttle and drop repeats: what keeps a flood small.

Sampling depends on nothing but the record, so what is read again after a crash has the same fate.
Throttling and dropping repeats remember; their memory is bounded and is lost with the process, so a
repeat may come through then. A first one is never lost for it.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal, Self

import orjson
from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.sources.settings import Section
from penstock.collector.transforms.event import (
    PASS,
    DropReason,
    Event,
    Transform,
    TransformContext,
    Verdict,
)
from penstock.collector.transforms.expression import Evaluate, compile_condition, compile_expression
from penstock.collector.transforms.paths import Fields
from penstock.collector.transforms.settings import (
    Condition,
    Expression,
    Name,
    Subject,
    TransformSettings,
)
from penstock.collector.transforms.subjects import SubjectTemplate

UNMATCHED = "unmatched"
"""The output of `route` for records that no condition holds for."""


class FilterSettings(TransformSettings):
    """Records go on for which a condition holds."""

    type: Literal["filter"]
    where: Condition


class RouteBranch(Section):
    """One output of `route`."""

    where: Condition
    subject: Subject | None = None


class RouteSettings(TransformSettings):
    """Records part: each leaves by the first output whose condition holds, or by `unmatched`."""

    type: Literal["route"]
    routes: dict[Name, RouteBranch] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _names_are_free(self) -> "RouteSettings":
        if "unmatched" in self.routes:
            msg = "`unmatched` is where records go for which no condition holds; name it otherwise"
            raise ValueError(msg)
        return self


class SampleSettings(TransformSettings):
    """A share of the records is kept, by trace, and says how many it stands for."""

    type: Literal["sample"]
    ratio: float = Field(ge=1e-6, le=1)
    seed: str = Field(default="", max_length=32, pattern=r"^[\x20-\x7e]*$")
    keep_errors: bool = True
    keep: Condition | None = None


class ThrottleSettings(TransformSettings):
    """No more than so many records a second, of each source and key."""

    type: Literal["throttle"]
    rate: float = Field(ge=0.01, le=1e9)
    burst: int | None = Field(default=None, ge=1)
    key: Expression | None = None
    max_keys: int = Field(default=10_000, ge=1, le=1_000_000)
    when_exceeded: Literal["drop", "block"] = "drop"


class DedupeSettings(TransformSettings):
    """Records whose key was seen within the window are dropped."""

    type: Literal["dedupe"]
    key: Expression | None = None
    window_s: float = Field(default=60.0, gt=0, le=86_400)
    max_keys: int = Field(default=100_000, ge=1, le=10_000_000)


class Filter(Transform):
    """Lets pass what the condition holds for."""

    outputs = (PASS,)

    settings = FilterSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(compile_condition(settings.where).evaluate)

    def __init__(self, condition: Evaluate) -> None:
        self._condition = condition

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        return PASS if self._condition(event.fields) else DropReason.FILTERED


@dataclass(frozen=True, slots=True)
class Branch:
    """One named output of `route`."""

    name: str
    condition: Evaluate
    subject: SubjectTemplate | None


class Route(Transform):
    """Sends each record to the first output whose condition holds, else to `UNMATCHED`."""

    settings = RouteSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls([_branch(name, branch) for name, branch in settings.routes.items()])

    def __init__(self, branches: list[Branch]) -> None:
        self._branches = branches
        self.outputs = (*(branch.name for branch in branches), UNMATCHED)

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        for branch in self._branches:
            if branch.condition(event.fields):
                if branch.subject is not None:
                    event.subject = branch.subject
                return branch.name
        return UNMATCHED


_SPACE: Final = 1 << 64
_SECOND_NS: Final = 1_000_000_000
ERROR_SEVERITY: Final = 17
"""OpenTelemetry's first number of ERROR."""

WEIGHT_MAX: Final = 1e15
"""Of one record that stands for others it was sampled from; a double still counts to that."""


def is_error(fields: Fields) -> bool:
    """Whether the record tells of a failure: severity ERROR or above, or a span that failed."""
    severity = fields.get("severity_number")
    return (severity.__class__ is int and severity >= ERROR_SEVERITY) or (
        fields.get("status_code") == "ERROR"
    )


class Sample(Transform):
    """Keeps a share of the records, and says on each how many it stands for.

    Records of one trace share their fate, in every collector; those without a trace are judged by
    their source and place in it.

    Args:
        ratio: Share that is kept, above 0 and at most 1.
        keep: Records that are always kept, with their weight unchanged.
        seed: Two with the same one keep the same traces, so that one behind the other leaves out
            nothing more, and weights would say that it did.
    """

    outputs = (PASS,)

    settings = SampleSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        keep = compile_condition(settings.keep).evaluate if settings.keep else None
        keeps_errors = settings.keep_errors

        def is_kept(fields: Fields) -> bool:
            return (keeps_errors and is_error(fields)) or (keep is not None and keep(fields))

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


class Throttle(Transform):
    """A token bucket for each source and key.

    Args:
        rate: Records a second.
        burst: Records that may come at once.
        key: What tells records apart within a source; None: all are one.
        max_keys: Buckets; beyond it the one that was not used longest is forgotten, and is full
            when it comes again.
        when_exceeded: ``drop`` ends the record; ``block`` lets it pass and makes its source wait.
    """

    outputs = (PASS,)

    settings = ThrottleSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(
            settings.rate,
            settings.burst or max(1, int(settings.rate)),
            _key(settings.key),
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
        self._keys_max = max_keys
        self._blocks = when_exceeded == "block"
        self._buckets: OrderedDict[tuple[str, bytes], tuple[float, int]] = OrderedDict()

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        value = None if self._key is None else self._key(event.fields)
        name = (event.source, _digest(value))
        level, then_ns = self._buckets.pop(name, (self._burst, now_ns))
        passed_s = max(0, now_ns - then_ns) / _SECOND_NS
        level = min(self._burst, level + passed_s * self._rate)
        allowed = level >= 1 or self._blocks
        if allowed:
            level -= 1
        self._buckets[name] = (level, now_ns)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        if not allowed:
            return DropReason.THROTTLED
        if level < 0:
            event.pause_ns = max(event.pause_ns, int(-level / self._rate * _SECOND_NS))
        return PASS


class Dedupe(Transform):
    """Drops a record whose key was seen within the window.

    Args:
        key: What makes records equal; None: all but the times and the record's own id.
        window_ns: How long a key is remembered from its first record on.
        max_keys: Keys remembered; beyond it the oldest is forgotten.
    """

    outputs = (PASS,)

    settings = DedupeSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(
            _key(settings.key),
            window_ns=int(settings.window_s * _SECOND_NS),
            max_keys=settings.max_keys,
        )

    def __init__(self, key: Evaluate | None, *, window_ns: int, max_keys: int) -> None:
        self._key = key or _identity
        self._window_ns = window_ns
        self._keys_max = max_keys
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        self._forget(now_ns)
        value = self._key(event.fields)
        if value is None:
            return PASS
        key = _digest(value)
        if key in self._seen:
            return DropReason.DEDUPLICATED
        self._seen[key] = now_ns
        if len(self._seen) > self._keys_max:
            self._seen.popitem(last=False)
        return PASS

    def _forget(self, now_ns: int) -> None:
        while self._seen and next(iter(self._seen.values())) + self._window_ns <= now_ns:
            self._seen.popitem(last=False)


_OWN: Final = frozenset({"time_unix_nano", "observed_time_unix_nano", "record_id"})


def _identity(fields: Fields) -> Any:
    return {name: value for name, value in fields.items() if name not in _OWN}


def _digest(value: Any) -> bytes:
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits, in a field that the spec does not have
        text = repr(value).encode()
    return blake2b(text, digest_size=16).digest()


def _branch(name: str, settings: RouteBranch) -> Branch:
    subject = None if settings.subject is None else SubjectTemplate(settings.subject)
    return Branch(name, compile_condition(settings.where).evaluate, subject)


def _key(text: str | None) -> Evaluate | None:
    return compile_expression(text).evaluate if text else None
