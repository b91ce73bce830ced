"""The names that transforms use: a typed column, or a member of `attributes` or `resource`.

A field is in two places, which a transform changes both: the typed column (a member: the entry of
the map column) and the record's JSON text in `value`.

`attributes.user.email` is the member of that name, and what lies as deep in members: `email` of
`{"user": {"email": …}}`, in each object of a list as well. `*` stands for any characters, dots
among them: `attributes.*` is every member, `attributes.user.*` and `attributes.*email` some.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.columns.schema import VIEWS, view

MAPS: Final = ("attributes", "resource")
"""Record fields that are open maps; each is a map column as well."""

ENVELOPE: Final = frozenset({"schema", "kind", "time_unix_nano"})
"""Columns that no transform takes away: without them it is no record."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        name: Name in the job file.
        path: Keys from the record's root to the value.
        column: Its typed column, if it has one.
        type: The neutral type of that column; `string` for members.
    """

    name: str
    path: tuple[str, ...]
    column: str | None
    type: str

    @property
    def is_member(self) -> bool:
        """True if the field is an entry of a map column, or a pattern of entries."""
        return len(self.path) == 2 and self.path[0] in MAPS

    @property
    def is_pattern(self) -> bool:
        return self.is_member and "*" in self.path[1]

    def matches(self, member: str) -> bool:
        """Return whether the name of an entry, with dots for deeper ones, is meant."""
        return self.is_member and _pattern(self.path[1]).fullmatch(member) is not None

    def may_lie_in(self, member: str) -> bool:
        """Return whether the field may lie deeper within an entry."""
        wanted = self.path[1]
        return self.is_pattern or wanted.startswith(f"{member}.")

    def columns(self) -> list["Field"]:
        """The typed columns of what is meant, the map itself aside."""
        if not self.is_pattern:
            known = _columns().get(self.column or "")
            return [] if known is None else [known]
        group = self.path[0]
        mine = (it for it in _columns().values() if len(it.path) == 2 and it.path[0] == group)
        return [it for it in mine if self.matches(it.path[1])]

    def kinds(self) -> frozenset[str]:
        """The kinds of record that have it, by the specs."""
        at = self.path[:1] if self.is_member else self.path
        views = [view(name) for name in VIEWS]
        return frozenset(
            kind
            for one in views
            if len(one.kinds) == 1
            for kind in one.kinds
            if any(column.path == at for column in one.columns)
        )

    def may_meet(self, other: "Field") -> bool:
        """Return whether the two fields may be the same, or one part of the other."""
        if self.path[0] != other.path[0] or 1 in (len(self.path), len(other.path)):
            return self.path[0] == other.path[0]
        mine, its = self.path[1], other.path[1]
        nested = mine.startswith(f"{its}.") or its.startswith(f"{mine}.")
        return mine == its or nested or self.is_pattern or other.is_pattern


def parse_field(name: str) -> Field:
    """Look a name up.

    Raises:
        ValueError: There is no such field.
    """
    if (found := _columns().get(name)) is not None:
        return found
    group, _, member = name.partition(".")
    if group == "context" and (found := _by_path().get((group, member))) is not None:
        return found
    if group in MAPS and member:
        known = _by_path().get((group, member))
        return Field(name, (group, member), known.column if known else None, "string")
    raise ValueError(
        f"there is no field {name!r}; name a record's column that `penstock router plan` lists, or"
        " attributes.KEY or resource.KEY, in which * stands for any characters"
    )


def all_columns() -> list[Field]:
    """Every typed column of the specs, the whole maps included."""
    return list(_columns().values())


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", text))), re.DOTALL)


@cache
def _columns() -> dict[str, Field]:
    return {
        column.name: Field(column.name, column.path, column.name, column.neutral)
        for column in view("records").columns
        if column.origin == "json"
    }


@cache
def _by_path() -> dict[tuple[str, ...], Field]:
    return {field.path: field for field in _columns().values()}


Change = Callable[[pa.Array], pa.Array]
"""Text to text, null to null, as many."""


def keep_entries(maps: pa.MapArray, wanted: Callable[[pa.Array], pa.Array]) -> pa.MapArray:
    """Keep the entries for whose keys `wanted` holds; a map without any left is empty."""
    maps = _compact(maps)
    return _filtered(maps, wanted(maps.keys))


def change_entries(maps: pa.MapArray, names: Iterable[str], change: Change) -> pa.MapArray:
    """Change the values of entries by name."""
    maps = _compact(maps)
    chosen = pc.is_in(maps.keys, value_set=pa.array(list(names), pa.string()))
    texts = pc.if_else(chosen, maps.items, pa.scalar(None, pa.string()))
    changed = pc.if_else(chosen, change(texts), maps.items)
    return _build(maps, maps.offsets, maps.keys, changed)


def rename_entries(maps: pa.MapArray, names: dict[str, str]) -> pa.MapArray:
    """Give entries other keys; an entry that had the new key before is replaced.

    All names change at once: two can be exchanged.
    """
    maps = _compact(maps)
    keys = maps.keys
    row = pc.list_parent_indices(pa.ListArray.from_arrays(maps.offsets, keys))
    keep = pa.repeat(True, len(keys))
    fresh = keys
    for old, new in names.items():
        is_old = pc.equal(keys, old)
        fresh = pc.if_else(is_old, new, fresh)
        if new not in names:  # one that is renamed itself makes room by that
            replaced = pc.and_(pc.equal(keys, new), pc.is_in(row, value_set=row.filter(is_old)))
            keep = pc.and_not(keep, replaced)
    return _filtered(_build(maps, maps.offsets, fresh, maps.items), keep)


def entry(maps: pa.MapArray, name: str) -> pa.Array:
    """The value under a key of each map, null where there is none."""
    return pc.map_lookup(maps, pa.scalar(name, pa.string()), "first")


def _filtered(maps: pa.MapArray, keep: pa.Array) -> pa.MapArray:
    kept_before = pa.concat_arrays(
        [pa.array([0], pa.int32()), pc.cumulative_sum(keep.cast(pa.int32()))]
    )
    return _build(
        maps, kept_before.take(maps.offsets), maps.keys.filter(keep), maps.items.filter(keep)
    )


def _compact(maps: pa.MapArray) -> pa.MapArray:
    """Return equal maps whose children hold their entries and nothing else."""
    return maps.take(pa.array(range(len(maps)), pa.int64()))


def _build(maps: pa.MapArray, offsets: pa.Array, keys: pa.Array, items: pa.Array) -> pa.MapArray:
    absent = pa.concat_arrays([maps.is_null(), pa.array([False])])
    nullable = pc.if_else(absent, pa.scalar(None, pa.int32()), offsets)
    return pa.MapArray.from_arrays(nullable, keys, items, type=maps.type)
