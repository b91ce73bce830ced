"""Offset arithmetic of the data source: which records a batch is made of, and who reads them.

Offsets are exclusive ends: `{"logs": {"0": 123}}` says that records 0 to 122 of partition 0 of the
stream `logs` lie behind, and 123 comes next. What Spark keeps in its checkpoint also names the
id of each stream (`{"logs": {"0": 123, "incarnation": "5f2c", "epochs": {"0": 4}}}`), so
that a stream which was deleted and made again is not read on as if nothing had happened; and the
leader epoch of each partition, so that it is noticed when an unclean election has cost records that
were read.

Where the log was truncated below what was read, it gives the same offsets to other records. The
offsets then name the partition's generations (`"generations": {"0": [[60, 1]]}`): from offset 60 on
records are of generation 1, those before of generation 0. Stream id, generation, partition and
offset together name one record only.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from penstock.router.errors import ACCEPTING, BadOptionError, DataLossError

EARLIEST: Final = -2
"""Special offset of the first record that can be read, as in Spark's Kafka source."""

LATEST: Final = -1
"""Special offset of the end of what can be read."""

_DIGEST_BYTES: Final = 4
_INCARNATION: Final = "incarnation"
_EPOCHS: Final = "epochs"
_GENERATIONS: Final = "generations"

Generations = tuple[tuple[int, int], ...]
"""First offset and number of each generation of a partition's records, both rising."""


class StreamPartition(NamedTuple):
    """One partition of one stream."""

    stream: str
    partition: int


class Readable(NamedTuple):
    """Readable offsets of a partition: `start` inclusive, `end` exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """A position in several streams.

    Attributes:
        next: The next offset to read, by partition.
        stream_ids: Stream ids by stream; a stream in a user's JSON has none.
        epochs: Leader epochs by partition, where they are known.
        generations: Generations of partitions that were truncated below what was read of them.
    """

    next: Mapping[StreamPartition, int]
    stream_ids: Mapping[str, str] = field(default_factory=dict)
    epochs: Mapping[StreamPartition, int] = field(default_factory=dict)
    generations: Mapping[StreamPartition, Generations] = field(default_factory=dict)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """The form that Spark stores."""
        document: dict[str, dict[str, Any]] = {}
        for (stream, partition), offset in sorted(self.next.items()):
            document.setdefault(stream, {})[str(partition)] = offset
        for stream, stream_id in self.stream_ids.items():
            if stream in document:
                document[stream][_INCARNATION] = stream_id
        for (stream, partition), epoch in sorted(self.epochs.items()):
            if stream in document:
                document[stream].setdefault(_EPOCHS, {})[str(partition)] = epoch
        for (stream, partition), generations in sorted(self.generations.items()):
            if stream in document:
                listed = [list(one) for one in generations]
                document[stream].setdefault(_GENERATIONS, {})[str(partition)] = listed
        return document


def with_streams_not_read(at: Offsets, known: Offsets) -> Offsets:
    """A position with those that `known` has in other streams, and in other partitions.

    A job that stops reading one keeps its place there, for when it reads it again.
    """
    read = {where.stream for where in at.next}
    others = {
        where: offset
        for where, offset in known.next.items()
        if where.stream not in read
        or known.stream_ids.get(where.stream) == at.stream_ids.get(where.stream)
    }
    return Offsets(
        {**others, **at.next},
        {**known.stream_ids, **at.stream_ids},
        {**known.epochs, **at.epochs},
        {where: it for where, it in known.generations.items() if where in others}
        | dict(at.generations),
    )


@dataclass(frozen=True, slots=True)
class Span:
    """Records of one partition that one task reads: `start` inclusive, `end` exclusive.

    Attributes:
        stream_id: Id of the stream; empty: any.
        epoch: Epoch of the leader when the record before `start` was read; None: unknown.
        planned_epoch: Epoch of the leader when these records were known to exist; None: unknown.
    """

    stream: str
    partition: int
    start: int
    end: int
    stream_id: str = ""
    epoch: int | None = None
    planned_epoch: int | None = None

    @property
    def where(self) -> StreamPartition:
        """The partition."""
        return StreamPartition(self.stream, self.partition)

    @property
    def length(self) -> int:
        """Offsets in the span."""
        return self.end - self.start


def offsets_from_json(document: Any) -> Offsets:
    """Read the form that `Offsets.to_json` writes.

    Raises:
        BadOptionError: Not of the form `{"stream": {"0": 123}}`.
    """
    if not isinstance(document, dict):
        raise BadOptionError(f'offsets must look like {{"logs": {{"0": 123}}}}, not {document!r}')
    at: dict[StreamPartition, int] = {}
    stream_ids: dict[str, str] = {}
    epochs: dict[StreamPartition, int] = {}
    generations: dict[StreamPartition, Generations] = {}
    for stream, partitions in document.items():
        if not isinstance(partitions, dict):
            raise BadOptionError(f"offsets of {stream!r} must map partitions to offsets")
        for name, offset in partitions.items():
            if name == _INCARNATION:
                stream_ids[stream] = str(offset)
            elif name == _EPOCHS and isinstance(offset, dict):
                epochs |= {StreamPartition(stream, int(n)): int(e) for n, e in offset.items()}
            elif name == _GENERATIONS and isinstance(offset, dict):
                generations |= {
                    StreamPartition(stream, int(n)): tuple((int(at), int(g)) for at, g in listed)
                    for n, listed in offset.items()
                }
            elif not (name.isdigit() and isinstance(offset, int) and offset >= EARLIEST):
                raise BadOptionError(f"{stream!r}: {name!r}: {offset!r} is not an offset")
            else:
                at[StreamPartition(stream, int(name))] = offset
    return Offsets(at, stream_ids, epochs, generations)


def generation_at(generations: Generations, offset: int) -> int:
    """The generation of the record at an offset."""
    return max((number for start, number in generations if start <= offset), default=0)


def truncated(generations: Generations, at: int) -> Generations:
    """A partition's generations after the log was truncated to an offset, exclusive."""
    newest = generations[-1][1] if generations else 0
    return (*(one for one in generations if one[0] < at), (at, newest + 1))


def generations_of(
    stream_ids: Mapping[str, str], at: Offsets
) -> dict[StreamPartition, Generations]:
    """Return the generations at a position, of streams that still have their ids."""
    return {
        where: found
        for where, found in at.generations.items()
        if stream_ids.get(where.stream) == at.stream_ids.get(where.stream)
    }


def is_made_again(stream: str, start: Offsets, end: Offsets) -> bool:
    """Return whether a stream has another id at `end` than at `start`, where both have one."""
    begun, found = start.stream_ids.get(stream), end.stream_ids.get(stream)
    return begun is not None and found is not None and begun != found


def reading_begins(at: StreamPartition, start: Offsets, end: Offsets) -> int:
    """Return the first offset of a partition between two positions.

    That is the offset of `start`; where the log was truncated below it, the offset of the
    truncation; in a stream that was deleted and made again, 0.
    """
    if is_made_again(at.stream, start, end):
        return 0
    known = generation_at(start.generations.get(at, ()), 1 << 63)
    fresh = [first for first, number in end.generations.get(at, ()) if number > known]
    return min([start.next.get(at, 0), *fresh])


def resolve(
    wanted: Offsets | int, readable: Mapping[StreamPartition, Readable], *, missing: int
) -> dict[StreamPartition, int]:
    """Resolve an offset spec to offsets of every readable partition.

    Args:
        wanted: `EARLIEST`, `LATEST`, or offsets that may contain them.
        readable: The partitions there are.
        missing: `EARLIEST` or `LATEST`, for partitions that `wanted` does not name.
    """
    resolved: dict[StreamPartition, int] = {}
    for where, span in readable.items():
        offset = wanted if isinstance(wanted, int) else wanted.next.get(where, missing)
        if offset == EARLIEST:
            offset = span.start
        elif offset == LATEST:
            offset = span.end
        resolved[where] = offset
    return resolved


def admit(
    start: Mapping[StreamPartition, int], end: Mapping[StreamPartition, int], max_rows: int
) -> dict[StreamPartition, int]:
    """Cut a batch to `max_rows` offsets, each partition in proportion to what waits in it.

    A partition with something waiting always advances, so that a busy one starves none; the sum can
    exceed `max_rows` by one record for each partition.
    """
    total = sum(max(offset - start.get(where, 0), 0) for where, offset in end.items())
    return dict(end) if total <= max_rows else _share(start, end, max_rows, total)


def within_bytes(
    start: Mapping[StreamPartition, int],
    end: Mapping[StreamPartition, int],
    sizes: Mapping[StreamPartition, int],
    max_bytes: int,
    *,
    order: Sequence[StreamPartition] = (),
) -> dict[StreamPartition, int]:
    """Cut a batch to about `max_bytes`, each partition to the same share of what it has of it.

    A partition advances by one record at least, if that is within the bound as well. Where records
    are larger, partitions are taken in their order until it is reached, and the others wait. The
    first one advances however large its record is.

    Args:
        start: First offsets of the batch.
        end: Ends of the batch without the limit.
        sizes: Bytes of an offset, of each partition that has some in the batch.
        max_bytes: The bound, 1 at least.
        order: Partitions that go first, where not all can; the others follow by name.
    """
    total = sum(
        (offset - start.get(where, 0)) * sizes[where]
        for where, offset in end.items()
        if offset > start.get(where, 0)
    )
    if total <= max_bytes:
        return dict(end)
    found = _share(start, end, max_bytes, total)
    left, is_first = max_bytes, True
    for where in (*order, *sorted(found.keys() - set(order))):
        first = start.get(where, 0)
        size = (found[where] - first) * sizes[where] if found[where] > first else 0
        if size > left and not is_first:
            found[where] = first
        elif size:
            left, is_first = left - size, False
    return found


class FrameSize(NamedTuple):
    """Offsets that were measured: `start` inclusive, `end` exclusive.

    Attributes:
        size: Bytes of memory that their records take.
    """

    start: int
    end: int
    size: int


def within_measured_bytes(
    start: Mapping[StreamPartition, int],
    frames: Mapping[StreamPartition, Sequence[FrameSize]],
    max_bytes: int,
    *,
    order: Sequence[StreamPartition] = (),
) -> dict[StreamPartition, int]:
    """Cut a batch to `max_bytes`, by frames that were measured, one of each partition in turn.

    The very first frame is in it however large it is. A partition whose next frame does not fit
    gives no further one.

    Args:
        start: First offsets of the batch, for each partition that has frames.
        frames: Those of each partition, one behind the other.
        max_bytes: The bound.
        order: Partitions that go first; the others follow by name.
    """
    ends = {where: start[where] for where in frames}
    left, is_first = max_bytes, True
    turns = [
        (where, iter(frames[where])) for where in (*order, *sorted(frames.keys() - set(order)))
    ]
    while turns:
        further = []
        for where, rest in turns:
            frame = next(rest, None)
            if frame is None or (frame.size > left and not is_first):
                continue
            ends[where] = frame.end
            left -= frame.size
            is_first = is_first and not frame.size
            further.append((where, rest))
        turns = further
    return ends


def split_by_size(span: Span, frames: Sequence[FrameSize], most: int) -> list[Span]:
    """Divide a span where its frames end, into pieces of `most` bytes or of one frame."""
    chunks, begin, size = list[Span](), span.start, 0
    for frame in frames:
        if size and size + frame.size > most and begin < frame.start < span.end:
            chunks.append(_chunk(span, begin, frame.start))
            begin, size = frame.start, 0
        size += frame.size
    return [*chunks, _chunk(span, begin, span.end)]


def _chunk(span: Span, start: int, end: int) -> Span:
    epoch = span.planned_epoch if start > span.start else span.epoch
    return replace(span, start=start, end=end, epoch=epoch)


def _share(
    start: Mapping[StreamPartition, int],
    end: Mapping[StreamPartition, int],
    part: int,
    whole: int,
) -> dict[StreamPartition, int]:
    """The end of a part of a batch, one offset of each partition that has any at least."""
    found: dict[StreamPartition, int] = {}
    for where, offset in end.items():
        first = start.get(where, 0)
        count = offset - first
        found[where] = first + max(count * part // whole, 1) if count > 0 else offset
    return found


def spans_between(start: Offsets, end: Offsets) -> list[Span]:
    """The records between two positions.

    A partition that `start` does not know is read from offset 0: it was made after `start`.

    Raises:
        DataLossError: A stream was deleted and made again, or lost records at its end.
    """
    spans = []
    for where, upto in sorted(end.next.items()):
        if is_made_again(where.stream, start, end):
            raise DataLossError(
                f"stream {where.stream!r} was deleted and made again: offset"
                f" {start.next.get(where, 0)} is of its earlier life; {ACCEPTING} at its start"
            )
        first = reading_begins(where, start, end)
        stream_id = end.stream_ids.get(where.stream, "")
        if upto < first:
            raise DataLossError(
                f"{where.stream}/{where.partition} ends at {upto}, before {first} where the next"
                f" batch begins: the log lost records; {ACCEPTING} at {upto}"
            )
        if upto > first:
            went_on = first == start.next.get(where, 0)
            epoch = start.epochs.get(where) if went_on else None
            planned = end.epochs.get(where)
            span = Span(where.stream, where.partition, first, upto, stream_id, epoch, planned)
            spans.append(span)
    return spans


def count_between(start: Offsets, end: Offsets) -> int:
    """Return how many offsets lie between two positions; `start` has every partition of `end`.

    In a recreated or truncated stream only the offsets that exist now count.
    """
    total = 0
    for where, upto in end.next.items():
        total += max(upto - reading_begins(where, start, end), 0)
    return total


def check_readable(spans: Iterable[Span], readable: Mapping[StreamPartition, Readable]) -> None:
    """Make sure that every record of the spans is still there.

    Raises:
        DataLossError: Some are not.
    """
    for span in spans:
        available = readable.get(span.where)
        if available is None:
            raise DataLossError(
                f"{span.stream}/{span.partition} does not exist any more; {ACCEPTING} without it"
            )
        if span.start < available.start or span.end > available.end:
            raise DataLossError(
                f"{span.stream}/{span.partition}: offsets {span.start} to {span.end - 1} are wanted"
                f" but the log has {available.start} to {available.end - 1}; {ACCEPTING} without"
                " those that are gone"
            )


def clip(spans: Iterable[Span], readable: Mapping[StreamPartition, Readable]) -> list[Span]:
    """Leave out what is not there any more; for readers that accept losses."""
    kept = []
    for span in spans:
        available = readable.get(span.where, Readable(0, 0))
        cut = replace(
            span, start=max(span.start, available.start), end=min(span.end, available.end)
        )
        if cut.length > 0:
            kept.append(cut)
    return kept


def split(spans: list[Span], min_partitions: int) -> list[Span]:
    """Divide spans until there are about `min_partitions`, the longest into the most pieces."""
    total = sum(span.length for span in spans)
    if len(spans) >= min_partitions or total == 0:
        return spans
    chunks: list[Span] = []
    for span in spans:
        count = min(max(round(span.length * min_partitions / total), 1), span.length)
        cuts = [span.start + span.length * index // count for index in range(count + 1)]
        chunks += [_chunk(span, first, last) for first, last in pairwise(cuts)]
    return chunks


def digest_of(offsets: Sequence[int]) -> str:
    """Return a digest for names that only the rows of these offsets have."""
    text = ",".join(map(str, offsets)).encode()
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def forgiven(first: Offsets, last: Offsets) -> Offsets:
    """Start a stream over that was made again, and never begin behind the end.

    A partition that was truncated goes on where that was.
    """
    return Offsets(
        {
            at: min(reading_begins(at, first, last), last.next.get(at, offset))
            for at, offset in first.next.items()
        },
        last.stream_ids,
        {
            at: epoch
            for at, epoch in first.epochs.items()
            if not is_made_again(at.stream, first, last)
            and reading_begins(at, first, last) == first.next.get(at, 0)
        },
        last.generations,
    )
