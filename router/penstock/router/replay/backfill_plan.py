"""Cutting a range of the log into the batches that a sink got, so that it knows them again."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from penstock.router.read.offsets import Generations, Offsets, Readable, StreamPartition

Position = Mapping[StreamPartition, int]

EndOf = Callable[[Position, Position], Position]
"""Function of a begin and a later maximum end that returns where the batch ends."""


Cuts = Mapping[StreamPartition, Sequence[int]]
"""Offsets at which tasks began in the middle of a batch, by partition."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that are delivered together: `start` inclusive, `end` exclusive, by partition."""

    start: Position
    end: Position

    def within(self, cuts: Cuts) -> dict[StreamPartition, tuple[int, ...]]:
        """Return the cuts within the chunk, sorted."""
        inside = {
            at: tuple(it for it in sorted(cuts.get(at, ())) if begin < it < self.end[at])
            for at, begin in self.start.items()
        }
        return {at: offsets for at, offsets in inside.items() if offsets}


def chunks(
    first: Position, last: Position, known: Sequence[Position], end_of: EndOf
) -> Iterator[Chunk]:
    """Cut `first` to `last`.

    Where the sink's batches are known, those that touch the range come whole, even where they reach
    beyond it: a part of a batch would be another batch to the destination. The rest is cut again.

    Args:
        first: First offset of the range, of every partition.
        last: End of the range.
        known: Ends of `known_ends`.
        end_of: Function that returns the ends of unknown batches.
    """
    if not known:
        yield from _cut(first, last, end_of)
        return
    yield from _cut(first, _lower(last, known[0]), end_of)
    before = known[0]
    for end in known[1:]:
        if _touches(first, last, before, end):
            yield Chunk(before, end)
        before = end
    yield from _cut(_higher(first, before), last, end_of)


def are_all_since(begun: Position, parts: Sequence[Chunk]) -> bool:
    """Return whether chunks are all that a job read of their partitions, without gaps."""
    begins = (it for part in parts[:1] for it in part.start.items())
    return all(at <= begun.get(where, 0) for where, at in begins) and all(
        part.start == before.end for before, part in pairwise(parts)
    )


def of_batches_not_known(
    first: Position, last: Position, known: Sequence[Position], begun: Position
) -> dict[StreamPartition, Readable]:
    """Return the ranges that were delivered in unknown batches, where other batches are known.

    The arguments are those of `chunks` and `known_ends`.
    """
    if not known:
        return {}
    spans = {
        where: Readable(max(begin, begun.get(where, 0)), min(last[where], known[0][where]))
        for where, begin in first.items()
    }
    return {where: span for where, span in spans.items() if span.start < span.end}


def of_this_stream_id(
    ends: Sequence[Offsets],
    stream_ids: Mapping[str, str],
    generations: Mapping[StreamPartition, Generations] = MappingProxyType({}),
) -> list[Position]:
    """The positions of batches, as far as their streams are the same ones and as long."""
    found: list[Position] = []
    for end in ends:
        same = {
            at: offset
            for at, offset in end.next.items()
            if end.stream_ids.get(at.stream) == stream_ids.get(at.stream)
            and end.generations.get(at, ()) == generations.get(at, ())
        }
        found.append(same)
    return found


def known_ends(
    ends: Sequence[Position], begun: Position, places: Iterable[StreamPartition]
) -> list[Position]:
    """Return the ends of the last run's batches, with an offset for each of `places`.

    Args:
        ends: The position after each known batch, in order, all of one id of their streams; the
            first may be where the first batch began.
        begun: First offset of the job in each partition that it reads; others begin at 0.
        places: The requested partitions.
    """
    places = tuple(places)
    found: list[Position] = []
    for end in ends:
        at = {where: end.get(where, begun.get(where, 0)) for where in places}
        if found and any(at[where] < offset for where, offset in found[-1].items()):
            found = []
        if not found or at != found[-1]:
            found.append(at)
    return found


def known_cuts(batches: Iterable[tuple[Position, Cuts]]) -> dict[StreamPartition, list[int]]:
    """Return the offsets at which tasks cut the batches of the last run.

    Args:
        batches: The position after each known batch, and its cuts, in order.
    """
    found: list[tuple[Position, Cuts]] = []
    for end, cuts in batches:
        if found and any(end.get(at, offset) < offset for at, offset in found[-1][0].items()):
            found = []
        if found and found[-1][0] == end:  # it came again, and was planned again
            found.pop()
        found.append((end, cuts))
    known: dict[StreamPartition, list[int]] = {}
    for end, cuts in found:
        for at in cuts.keys() & end.keys():
            known.setdefault(at, []).extend(cuts[at])
    return known


def _cut(first: Position, last: Position, end_of: EndOf) -> Iterator[Chunk]:
    at = first
    goal = _higher(first, last)
    while at != goal:
        end = end_of(at, goal)
        yield Chunk(at, end)
        at = end


def _touches(first: Position, last: Position, start: Position, end: Position) -> bool:
    return any(
        max(begin, start[where]) < min(last[where], end[where]) for where, begin in first.items()
    )


def _lower(one: Position, other: Position) -> dict[StreamPartition, int]:
    return {where: min(offset, other[where]) for where, offset in one.items()}


def _higher(one: Position, other: Position) -> dict[StreamPartition, int]:
    return {where: max(offset, other[where]) for where, offset in one.items()}
