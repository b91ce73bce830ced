"""Reduce: records of one key within a time become one record.

The first record of a group is its beginning; what the others add is merged into it. A group ends
with a record for which `ends_when` holds, with its `max_records`th record, or `window_s` after its
first record. It comes as a new record, as from a source with the transform's name.

Groups are kept in memory. A stop ends all of them; after a kill their records are read again.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.limits import KIB, MIB
from penstock.collector.transforms.expressions.expression import (
    NUMBERS,
    Evaluate,
    compile_condition,
    compile_expression,
    digest,
    to_text,
)
from penstock.collector.transforms.expressions.paths import Fields, assign, getter, parse_path
from penstock.collector.transforms.texts.field_parser import with_attributes
from penstock.collector.transforms.transform import (
    PASS,
    Aggregator,
    Condition,
    DropReason,
    Event,
    Expression,
    TransformContext,
    TransformSettings,
    Verdict,
    WritablePath,
)
from penstock.specs.limits import INT64_MAX, INT64_MIN, LIST_ITEMS_MAX, STRING_CHARACTERS_MAX
from penstock.specs.models.codec import encode_json

_SECOND_NS: Final = 1_000_000_000
_FLUSH_NS: Final = _SECOND_NS // 10
"""Between looks for groups whose time is over."""

Strategy = Literal["last", "sum", "min", "max", "concat", "list"]
Merge = Callable[[Any, Any], Any]
"""The value of a group and that of a further record to the new value; None: it cannot be merged."""


class ReduceSettings(TransformSettings):
    """Records of one key within a time become one record."""

    type: Literal["reduce"]
    key: Expression = Field(description="records with the same value belong together; null passes")
    merge: dict[WritablePath, Strategy] = Field(
        default={}, max_length=64, description="of further records; all else is the first one's"
    )
    separator: str = Field(default="\n", max_length=16, description="of `concat`")
    window_s: float = Field(
        default=10.0, ge=0.1, le=3600, description="from a group's first record to its end"
    )
    ends_when: Condition | None = Field(default=None, description="the record that ends its group")
    max_records: int = Field(default=1000, ge=2, le=1_000_000, description="of one group")
    max_groups: int = Field(
        default=10_000, ge=1, le=1_000_000, description="at once; beyond it the oldest one ends"
    )
    max_bytes: int = Field(default=64 * MIB, ge=64 * KIB, le=4096 * MIB, description="likewise")
    max_ended_bytes: int = Field(
        default=8 * MIB, ge=64 * KIB, le=4096 * MIB,
        description="of groups that have ended; beyond it they go on before the next flush",
    )  # fmt: skip
    count: str = Field(
        default="reduce.records", min_length=1, max_length=128,
        description="the attribute that says how many records it was",
    )  # fmt: skip

    @model_validator(mode="after")
    def _lists_are_attributes(self) -> Self:
        for path, strategy in self.merge.items():
            if strategy == "list" and parse_path(path)[0] != "attributes":
                msg = f"merge: {path}: only attributes hold lists"
                raise ValueError(msg)
        return self


@dataclass(slots=True)
class _Group:
    """Records that belong together.

    Attributes:
        size: Bytes that it takes, by its first record and what was added.
        changed: New values by place.
    """

    fields: Fields
    until_ns: int
    size: int
    records: int = 1
    changed: dict[tuple[str, ...], Any] = field(default_factory=dict)


class Reduce(Aggregator):
    """Holds groups of records until they end.

    Args:
        key: Computes the key; null lets a record pass.
        ends: Tells which record ends its group.
        settings: Strategies and bounds.
    """

    settings = ReduceSettings
    outputs = (PASS,)
    interval_ns = _FLUSH_NS

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        ends = settings.ends_when
        return cls(
            compile_expression(settings.key).evaluate,
            None if ends is None else compile_condition(ends).evaluate,
            settings,
        )

    def __init__(self, key: Evaluate, ends: Evaluate | None, settings: ReduceSettings) -> None:
        self._key = key
        self._ends = ends
        self._settings = settings
        self._window_ns = int(settings.window_s * _SECOND_NS)
        self._merges = [
            (path, getter(path), _merge_of(strategy, settings.separator))
            for path, strategy in (
                (parse_path(text), strategy) for text, strategy in settings.merge.items()
            )
        ]
        self._groups: OrderedDict[bytes, _Group] = OrderedDict()
        self._ended: list[_Group] = []
        self._size = self._ended_size = 0
        self._ended_until_ns: int | None = None
        self._notes = Counter[str]()

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        value = self._key(event.fields)
        if value is None:
            return PASS
        key = digest(value)
        group = self._groups.get(key)
        if group is not None and group.until_ns <= now_ns:  # its time is over, and nobody looked
            self._end(key)
            group = None
        if group is None:
            group = self._begin(key, event.fields, now_ns)
        else:
            self._add(group, event.fields)
        is_over = self._ends is not None and self._ends(event.fields) is True
        if is_over or group.records >= self._settings.max_records:
            self._end(key)
        self._bound()
        return DropReason.AGGREGATED

    @override
    def takes(self, event: Event) -> bool:
        return self._key(event.fields) is not None

    @override
    def flush(self, now_ns: int, unix_ns: int, *, everything: bool = False) -> list[Fields]:
        while self._groups:
            key, group = next(iter(self._groups.items()))
            if not everything and group.until_ns > now_ns:
                break
            self._end(key)
        ended, self._ended = self._ended, []
        self._ended_size, self._ended_until_ns = 0, None
        return [self._whole(group) for group in ended]

    @property
    @override
    def held_since_ns(self) -> int | None:
        times = [] if self._ended_until_ns is None else [self._ended_until_ns]
        if self._groups:  # they are in the order of their beginnings
            times.append(next(iter(self._groups.values())).until_ns)
        return min(times) - self._window_ns if times else None

    @property
    @override
    def is_flush_due(self) -> bool:
        return self._ended_size > self._settings.max_ended_bytes

    @property
    @override
    def notes(self) -> Mapping[str, int]:
        return self._notes

    def _begin(self, key: bytes, fields: Fields, now_ns: int) -> _Group:
        size = len(encode_json(fields))
        group = self._groups[key] = _Group(fields, now_ns + self._window_ns, size)
        self._size += size
        return group

    def _add(self, group: _Group, fields: Fields) -> None:
        group.records += 1
        for path, read, merge in self._merges:
            if (more := read(fields)) is None:
                continue
            old = group.changed[path] if path in group.changed else read(group.fields)
            value = more if old is None else merge(old, more)
            if value is None:
                self._notes["values_not_merged"] += 1
                continue
            group.changed[path] = value
            grown = _size_of(value) - (0 if old is None else _size_of(old))
            group.size += grown
            self._size += grown

    def _bound(self) -> None:
        """End the oldest groups where there are more than allowed."""
        settings = self._settings
        while len(self._groups) > settings.max_groups or self._size > settings.max_bytes:
            self._end(next(iter(self._groups)))
            self._notes["groups_ended_early"] += 1

    def _end(self, key: bytes) -> None:
        """Let a group wait for the next flush, in which it goes on."""
        group = self._groups.pop(key)
        self._size -= group.size
        self._ended.append(group)
        self._ended_size += group.size
        if self._ended_until_ns is None or group.until_ns < self._ended_until_ns:
            self._ended_until_ns = group.until_ns

    def _whole(self, group: _Group) -> Fields:
        """The record of a group."""
        fields = group.fields
        for path, value in group.changed.items():
            fields = assign(fields, path, value)
        return with_attributes(fields, {self._settings.count: group.records})


def _size_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return sum(map(_size_of, value)) if isinstance(value, list) else 8


def _merge_of(strategy: Strategy, separator: str) -> Merge:
    match strategy:
        case "last":
            return lambda _, more: more
        case "sum":
            return _numbers(lambda old, more: old + more)
        case "min":
            return _numbers(min)
        case "max":
            return _numbers(max)
        case "concat":
            return lambda old, more: _concat(old, more, separator)
        case "list":
            return _listed


def _numbers(merge: Merge) -> Merge:
    def merged(old: Any, more: Any) -> Any:
        if old.__class__ not in NUMBERS or more.__class__ not in NUMBERS:
            return None
        value = merge(old, more)
        if value.__class__ is int:
            return value if INT64_MIN <= value <= INT64_MAX else None
        return value if math.isfinite(value) else None

    return merged


def _concat(old: Any, more: Any, separator: str) -> str | None:
    """Both texts; None where one is none, or they are longer than a record may hold."""
    first, second = to_text(old), to_text(more)
    if first is None or second is None:
        return None
    size = len(first) + len(separator) + len(second)
    return f"{first}{separator}{second}" if size <= STRING_CHARACTERS_MAX else None


def _listed(old: Any, more: Any) -> list[Any] | None:
    """A list of both; None where it would hold values of two types, or more than it may."""
    items = [*(old if isinstance(old, list) else [old])]
    items += more if isinstance(more, list) else [more]
    is_one = len({item.__class__ for item in items}) == 1
    return items if is_one and len(items) <= LIST_ITEMS_MAX else None
