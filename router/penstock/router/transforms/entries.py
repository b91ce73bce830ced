"""Editing the entries of a map column as whole arrays, without a loop over rows."""

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

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
    """The same maps with children that hold their entries and nothing else."""
    return maps.take(pa.array(range(len(maps)), pa.int64()))


def _build(maps: pa.MapArray, offsets: pa.Array, keys: pa.Array, items: pa.Array) -> pa.MapArray:
    absent = pa.concat_arrays([maps.is_null(), pa.array([False])])
    nullable = pc.if_else(absent, pa.scalar(None, pa.int32()), offsets)
    return pa.MapArray.from_arrays(nullable, keys, items, type=maps.type)
