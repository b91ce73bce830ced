"""Deduplication state of a partition: ids, the sequences of producers, the last id.

It is a function of all records that were ever stored, not only of those that the log still has:
`recall_producer` and `recall_ids`, fed with the frames in order, make it again after a restart, on
top of a snapshot (`penstock.logd.partition.producer_snapshot`). Replicas compare theirs by
checksum.

Producer sequences: each batch of a producer is taken once and in order (docs/decisions/0004).

A batch names the producer's sequence before it and its own. It is accepted when the previous one is
the last that was stored; of a producer that is not known, the last is 0. At or below the last it is
a duplicate. Anything else is a gap: something before it has not arrived.

Producers idle for longer than the expiry are forgotten, as the one idle longest is when there are
too many; one that comes back starts again from 0.

Message ids out of a column of stored headers, with no Python object made of a row.

A start and every follower go through as many rows as there are messages within the window of ids,
up to a million: `Array.to_pylist` makes an object of each value on the way and takes many times as
long as reading Arrow's buffers (https://arrow.apache.org/docs/format/Columnar.html) does.
"""

import operator
from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final, Literal
from zlib import crc32

import pyarrow as pa
from msgspec import Struct

from penstock.base.lazy_module import LazyModule
from penstock.logd.format.batch import decode_body
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.plain_body import has_no_headers
from penstock.logd.intake.options import MESSAGE_ID
from penstock.logd.limits import MESSAGE_ID_LENGTH_MAX
from penstock.logd.metadata.streams import StreamConfig

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")


class MessageIds:
    """Offset by message id, bounded by age and by number; the oldest go first.

    Args:
        window_ns: Nanoseconds that an id is kept; 0 turns deduplication off.
        ids_max: Maximum entries, whatever their age.

    Attributes:
        evicted: Ids forgotten within the window, for there were too many.
    """

    def __init__(self, *, window_ns: int, ids_max: int) -> None:
        self._window_ns = window_ns
        self.ids_max = ids_max
        self.evicted = 0
        self._ids: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        """Number of known ids."""
        return len(self._ids)

    @property
    def off(self) -> bool:
        """True if the stream does not deduplicate by ids."""
        return self._window_ns == 0

    def since(self, offset: int) -> list[tuple[bytes, tuple[int, int]]]:
        """Ids of records at or above an offset, and of each (offset, seen_ns), in order."""
        found = []
        for name in reversed(self._ids):
            at = self._ids[name]
            if at[0] < offset:
                break
            found.append((name, at))
        return found[::-1]

    def offset(self, message_id: bytes, now_ns: int) -> int | None:
        """Return the offset of a message of this id within the window; None: there is none."""
        self.expire(now_ns)
        found = self._ids.get(message_id)
        if found is None or found[1] < now_ns - self._window_ns:  # the clock may have gone back
            return None
        return found[0]

    def record(self, message_id: bytes, offset: int, now_ns: int) -> None:
        """Note that a message of this id was stored."""
        self.record_all((message_id,), ((offset, now_ns),))

    def snapshot(self) -> tuple[list[bytes], list[tuple[int, int]]]:
        """Every id, and of each (offset, seen_ns); by rising offset they are in order.

        Taken from the plain dict inside, and without a tuple more: there may be a million, and to
        walk through them in order holds up the event loop twenty times as long.
        """
        return list(dict.keys(self._ids)), list(dict.values(self._ids))

    def record_all(self, names: Iterable[bytes], seen: Iterable[tuple[int, int]]) -> None:
        """`record` ids, and of each (offset, now_ns)."""
        if self._window_ns == 0:
            return
        ids = self._ids
        count = len(ids)
        for name, at in zip(names, seen, strict=True):
            ids[name] = at
            if len(ids) == count:  # it was there
                ids.move_to_end(name)
            elif count == self.ids_max:
                _, (_, oldest_ns) = ids.popitem(last=False)
                self.evicted += oldest_ns >= at[1] - self._window_ns
            else:
                count += 1

    def restore(self, names: list[bytes], seen: list[tuple[int, int]]) -> None:
        """Replace the window by a snapshot's ids, and of each (offset, seen_ns)."""
        self._ids.clear()
        if self._window_ns == 0:
            return
        if any(map(operator.gt, seen, islice(seen, 1, None))):
            order = sorted(range(len(seen)), key=seen.__getitem__)
            names, seen = [names[at] for at in order], [seen[at] for at in order]
        surplus = max(0, len(names) - self.ids_max)
        for (_, oldest_ns), (_, now_ns) in zip(seen[:surplus], seen[self.ids_max :], strict=True):
            self.evicted += oldest_ns >= now_ns - self._window_ns
        self._ids.update(zip(names[surplus:], seen[surplus:], strict=True))

    def expire(self, now_ns: int, count_max: int | None = None) -> None:
        """Forget ids that are out of the window, the oldest first, no more than so many."""
        limit = now_ns - self._window_ns
        left = len(self._ids) if count_max is None else count_max
        while self._ids and left > 0:
            oldest = next(iter(self._ids))
            if self._ids[oldest][1] >= limit:
                return
            del self._ids[oldest]
            left -= 1


class Accept(Struct, frozen=True):
    """The batch is the next one."""


class Duplicate(Struct, frozen=True):
    """The batch is stored already.

    Attributes:
        offset: Offset of the stored batch's last record; -1 when it is not the producer's latest
            batch.
    """

    offset: int


class Gap(Struct, frozen=True):
    """Something between the last stored batch and this one is missing.

    Attributes:
        last: The last sequence stored; 0 when the producer is not known.
    """

    last: int


Verdict = Accept | Duplicate | Gap


class ProducerState(Struct, frozen=True):
    """State of one producer.

    Attributes:
        sequence: Sequence of its last stored batch.
        offset: Offset of that batch's last record.
        seen_ns: Time of the batch, on the caller's clock.
    """

    sequence: int
    offset: int
    seen_ns: int


class ProducerTable:
    """The last sequence of each producer, bounded in number and age.

    Args:
        expiry_ns: Nanoseconds that an idle producer is kept.
        max_producers: Maximum entries, whatever their age.

    Attributes:
        evicted: Producers forgotten before they expired, for there were too many.
    """

    def __init__(self, *, expiry_ns: int, max_producers: int) -> None:
        self._expiry_ns = expiry_ns
        self.max_producers = max_producers
        self.evicted = 0
        self._states: OrderedDict[bytes, ProducerState] = OrderedDict()
        self._uncommitted: deque[tuple[int, bytes, ProducerState | None]] = deque()

    def __len__(self) -> int:
        """Number of known producers."""
        return len(self._states)

    def last(self, producer_id: bytes) -> ProducerState | None:
        """Return the state of a producer, expired or not."""
        return self._states.get(producer_id)

    def check(self, producer_id: bytes, previous: int, sequence: int, now_ns: int) -> Verdict:
        """Say whether a batch is the next one of its producer; changes nothing but expiry.

        Args:
            producer_id: Id of the batch's producer.
            previous: The producer's sequence before the batch, 0 for its first.
            sequence: The batch's own, greater than `previous`.
            now_ns: The time, on the clock that `record` is given.
        """
        self._expire(now_ns)
        state = self._states.get(producer_id)
        last = 0 if state is None else state.sequence
        if previous == last:
            return Accept()
        if sequence <= last:
            assert state is not None
            return Duplicate(state.offset if sequence == last else -1)
        return Gap(last)

    def record(self, producer_id: bytes, sequence: int, offset: int, now_ns: int) -> None:
        """Note that a batch was accepted, its last record at `offset`."""
        self._uncommitted.append((offset, producer_id, self._states.get(producer_id)))
        self._states[producer_id] = ProducerState(sequence, offset, now_ns)
        self._states.move_to_end(producer_id)
        if len(self._states) > self.max_producers:
            _, oldest = self._states.popitem(last=False)
            self.evicted += oldest.seen_ns >= now_ns - self._expiry_ns

    def committed(self, end_offset: int) -> None:
        """Batches below are committed: no request will ask for the states before them."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] < end_offset:
            uncommitted.popleft()

    def snapshot(self, end_offset: int | None = None) -> tuple[list[bytes], list[ProducerState]]:
        """Every producer, and the state of each; by rising offset the one idle longest is first.

        As quick as `MessageIds.snapshot`, and for its reason, where no batch is left out.

        Args:
            end_offset: Batches from there on are left out; committed ones are not. None: none is.
        """
        later = [
            entry
            for entry in self._uncommitted
            if end_offset is not None and entry[0] >= end_offset
        ]
        if not later:
            return list(dict.keys(self._states)), list(dict.values(self._states))
        states = dict(self._states)
        for _, producer_id, before in reversed(later):
            if before is not None:
                states[producer_id] = before
            else:
                states.pop(producer_id, None)
        return list(states.keys()), list(states.values())

    def since(self, offset: int) -> list[tuple[bytes, ProducerState]]:
        """Producers whose last batch ends at or above an offset, the one idle longest first."""
        found = []
        for name in reversed(self._states):
            state = self._states[name]
            if state.offset < offset:
                break
            found.append((name, state))
        return found[::-1]

    def restore(self, rows: Iterable[tuple[bytes, int, int, int]]) -> None:
        """Replace the table by (id, sequence, offset, seen_ns), the one idle longest first."""
        self._states.clear()
        for producer, sequence, offset, seen_ns in rows:
            self.record(producer, sequence, offset, seen_ns)
        self._uncommitted.clear()

    def take_over(
        self, before: "ProducerTable", since: int, theirs: Mapping[bytes, ProducerState]
    ) -> None:
        """Go on from the table that this one takes the place of.

        Args:
            before: State before batches that may be truncated again; where this table lacks it, the
                other replica's has it.
            since: Offset from which on only this table knows batches.
            theirs: The other replica's dedup state of committed batches.
        """
        for name, state in before.since(since):
            self.record(name, state.sequence, state.offset, state.seen_ns)
        self._uncommitted.clear()
        for offset, name, earlier in before.uncommitted():
            known = theirs.get(name)
            if known is not None and (earlier.offset if earlier else -1) < known.offset < offset:
                self._uncommitted.append((offset, name, known))
            else:
                self._uncommitted.append((offset, name, earlier))

    def uncommitted(self) -> list[tuple[int, bytes, ProducerState | None]]:
        """Batches that may be cut off again: last offset, producer, and its state before."""
        return list(self._uncommitted)

    def _expire(self, now_ns: int) -> None:
        limit = now_ns - self._expiry_ns
        while self._states:
            oldest = next(iter(self._states))
            if self._states[oldest].seen_ns >= limit:
                return
            del self._states[oldest]


_NAME: Final = pa.scalar(MESSAGE_ID, pa.string())
_SIZES: Final = {"i": 4, "q": 8, "Q": 8}


def stored_message_ids(headers: pa.MapArray) -> tuple[list[int], list[bytes]]:
    """The rows of a column of headers that have an id, and the ids, as `stored_message_id` finds.

    Of a repeated name the first pair counts, though it be empty; an empty id is none, and so is
    one that is too long to be kept.
    """
    found = pc.indices_nonzero(pc.equal(headers.keys, _NAME))
    if not len(found):
        return [], []
    pairs, values = integers(found, "Q"), _binaries(headers.items.take(found))
    if max(map(len, values)) > MESSAGE_ID_LENGTH_MAX:
        values = [value if len(value) <= MESSAGE_ID_LENGTH_MAX else b"" for value in values]
    starts = integers(headers.offsets, "i")
    every_row = pairs == starts[:-1] and starts[-1] > pairs[-1]
    if every_row and not headers.null_count and all(values):  # what publishers with ids send
        return list(range(len(values))), values
    return _first_of_each_row(headers, starts, dict(zip(pairs, values, strict=True)))


def integers(column: pa.Array, code: Literal["i", "q", "Q"]) -> list[int]:
    """The values of a column of integers without nulls; `code` is `struct`'s for its type."""
    size = _SIZES[code]
    data = memoryview(column.buffers()[1])[column.offset * size :][: len(column) * size]
    return data.cast(code).tolist()


def _binaries(column: pa.Array) -> list[bytes]:
    """The values of a column of bytes; null is empty."""
    _, ends, data = column.buffers()
    if data is None:
        return [b""] * len(column)
    bounds = memoryview(ends).cast("i")[column.offset : column.offset + len(column) + 1].tolist()
    whole: Any = data.to_pybytes()
    return [whole[first:end] for first, end in pairwise(bounds)]


def _first_of_each_row(
    headers: pa.MapArray, starts: list[int], found: dict[int, bytes]
) -> tuple[list[int], list[bytes]]:
    rows: list[int] = []
    ids: list[bytes] = []
    present = headers.is_valid().to_pylist()
    for row, (first, end) in enumerate(pairwise(starts)):
        value = next((found[pair] for pair in range(first, end) if pair in found), b"")
        if value and present[row]:
            rows.append(row)
            ids.append(value)
    return rows, ids


_MASK: Final = 2**64 - 1
_KEPT: Final = 8192
"""Events of which the checksum before and after is known: those that replicas in sync lag by."""


class DedupMark(Struct, frozen=True):
    """Summary of a replica's deduplication state.

    Attributes:
        offset: End of the records that it covers; above all offsets: unknown now.
        checksum: Checksum of the ids and sequences of all that was ever stored below.
        saved: Whether a start would restore it, from the log and the snapshot beside it.
    """

    offset: int
    checksum: int
    saved: bool


class DedupChecksum:
    """Checksum of every id and every producer's batch that was stored below an offset.

    It is a sum, modulo 2**64, of a number for each of them, so that it does not depend on what has
    expired since, nor on who has forgotten it when. It is known for offsets from `base` on.

    Attributes:
        base: Offset given to `begin`, or above: older entries are not kept.
        total: Checksum of everything.
        kept_from: Offset from which on all entries are kept, for another replica's state is on its
            way. None: none are.
    """

    def __init__(self) -> None:
        self.base = 0
        self.total = self._base_sum = 0
        self._offsets = array("q")
        self._sums = array("Q")
        self._collected: list[tuple[int, int]] | None = None
        self.kept_from: int | None = None

    def add(self, name: bytes, offset: int) -> None:
        """Something of this name was stored; offsets never fall, but between `begin` and `end`."""
        mixed = ((offset * 0x9E3779B97F4A7C15) & _MASK) | 1
        number = (crc32(name) + 0x1_0000_0001) * mixed
        if self._collected is not None:
            self._collected.append((offset, number & _MASK))
            return
        self.total = total = (self.total + number) & _MASK
        self._sums.append(total)
        self._offsets.append(offset)

    def at(self, offset: int) -> int | None:
        """Return the checksum of everything stored below an offset; None: it is no longer known."""
        if offset < self.base:
            return None
        count = bisect_left(self._offsets, offset)
        return self._sums[count - 1] if count else self._base_sum

    def committed(self, end_offset: int) -> None:
        """Let go of what no request will ask for; what may be cut off again stays."""
        if len(self._offsets) <= 2 * _KEPT:
            return
        if self.kept_from is not None:
            end_offset = min(end_offset, self.kept_from)
        count = min(len(self._offsets) - _KEPT, bisect_left(self._offsets, end_offset))
        if count > 0:
            self.base, self._base_sum = self._offsets[count - 1] + 1, self._sums[count - 1]
            del self._offsets[:count], self._sums[:count]

    def correct(self, offset: int, checksum: int) -> bool:
        """Take another's checksum of everything below an offset; False: that is not known here."""
        known = self.at(offset)
        if known is None:
            return False
        shift = checksum - known
        self._base_sum = (self._base_sum + shift) & _MASK
        self.total = (self.total + shift) & _MASK
        self._sums = array("Q", [(number + shift) & _MASK for number in self._sums])
        return True

    def begin(self, base: int, checksum: int) -> None:
        """Begin again with this checksum below `base`; what comes until `end` is in no order."""
        self.base, self.total, self._base_sum = base, checksum, checksum
        self._offsets, self._sums = array("q"), array("Q")
        self._collected = []

    def end(self) -> None:
        """End a rebuild: sum up what was read; below `base` it was counted before."""
        collected, self._collected = sorted(self._collected or ()), None
        for offset, number in collected:
            if offset >= self.base:
                self.total = (self.total + number) & _MASK
                self._sums.append(self.total)
                self._offsets.append(offset)


class Dedup:
    """The memory of one partition.

    Args:
        config: Configuration of the stream.

    Attributes:
        last_message_id: Id of the last record; empty when it had none.
        whole: Whether what is written down has to hold the ids: the log may not have them all any
            more, for records were removed from it or rewritten, or are about to be.
        lost: Below this offset something may have been forgotten: the log does not have it any
            more, nor has what was written down. 0: nothing.
        lost_until_ns: Unix time of a loss and a window of ids; 0: before the start.
        floor: Offset below which everything is committed, and known only as a whole.
        unsaved: Something came from another replica, and is not in the snapshot on disk yet.
        checksum: Checksum to compare with other replicas.
    """

    def __init__(self, config: StreamConfig) -> None:
        self.whole = config.deleting.deletes or config.compact
        self.message_ids = MessageIds(
            window_ns=config.dedup_window_s * 1_000_000_000, ids_max=config.max_dedup_entries
        )
        self.producers = ProducerTable(
            expiry_ns=config.producer_expiry_s * 1_000_000_000, max_producers=config.max_producers
        )
        self.last_message_id = b""
        self.lost = 0
        self.lost_until_ns = 0
        self.floor = 0
        self.unsaved = False
        self.checksum = DedupChecksum()

    @property
    def evicted(self) -> int:
        """Ids and producers forgotten before their time, for there were too many."""
        return self.message_ids.evicted + self.producers.evicted

    def count_on(self, before: "Dedup") -> None:
        """Go on with the counts of the memory that this one takes the place of."""
        self.message_ids.evicted += before.message_ids.evicted
        self.producers.evicted += before.producers.evicted

    def record_id(self, message_id: bytes, offset: int, now_ns: int) -> None:
        """A message of this id was stored."""
        if not self.message_ids.off:
            self.message_ids.record(message_id, offset, now_ns)
            self.checksum.add(message_id, offset)

    def record_batch(self, producer_id: bytes, sequence: int, offset: int, now_ns: int) -> None:
        """A producer's batch was stored, its last record at `offset`."""
        self.producers.record(producer_id, sequence, offset, now_ns)
        self.checksum.add(producer_id + sequence.to_bytes(8, "little"), offset)

    def install(
        self,
        ids: MessageIds,
        producers: ProducerTable,
        theirs: Mapping[bytes, ProducerState],
        *,
        offset: int,
        since: int,
        lost: int,
    ) -> None:
        """Merge another replica's dedup state below an offset with the one here.

        Args:
            ids: Both, but for what has been stored here meanwhile.
            producers: Producers of the other replica, merged.
            theirs: Producers, as the other one knows them.
            offset: The other one's; `checksum` has been corrected by its.
            since: Offset from which on records stored here are not in `ids` and `producers`.
            lost: Offset below which the other replica may have forgotten entries.
        """
        found = self.message_ids.since(since)
        ids.record_all([name for name, _ in found], [at for _, at in found])
        producers.take_over(self.producers, since, theirs)
        ids.evicted, producers.evicted = self.message_ids.evicted, self.producers.evicted
        self.message_ids, self.producers = ids, producers
        self.lost = max(lost, self.lost if self.lost > offset else 0)
        if not self.lost:
            self.lost_until_ns = 0
        self.floor = max(self.floor, offset)
        self.whole = self.unsaved = True

    def committed(self, end_offset: int) -> None:
        """Everything below will stay."""
        self.producers.committed(end_offset)
        self.checksum.committed(end_offset)

    def recall_producer(self, header: FrameHeader, now_ns: int) -> None:
        """Rebuild what a stored frame says of its producer, oldest frame first."""
        if header.producer_sequence:
            self.record_batch(
                header.producer_id, header.producer_sequence, header.last_offset, now_ns
            )

    def recall_ids(self, header: FrameHeader, body: bytes, now_ns: int) -> None:
        """Rebuild what a stored frame says of message ids, oldest frame first.

        Args:
            header: Header of a frame of plain messages; batches have no ids.
            body: Its rows.
            now_ns: The time; a record of the future counts as of now.

        Raises:
            CorruptError: The body is not an Arrow batch of the schema.
        """
        if has_no_headers(body):  # most have none, and decoding costs more than writing a record
            self.last_message_id = b""
            return
        batch = decode_body(body)
        rows, ids = stored_message_ids(batch.column("headers"))
        self.last_message_id = ids[-1] if rows and rows[-1] == batch.num_rows - 1 else b""
        if not rows or self.message_ids.off:
            return
        base = header.base_offset
        deltas = integers(batch.column("offset_delta"), "i")
        times = integers(batch.column("timestamp"), "q")
        seen = [(base + deltas[row], min(times[row], now_ns)) for row in rows]
        self.message_ids.record_all(ids, seen)
        add = self.checksum.add
        for name, (offset, _) in zip(ids, seen, strict=True):
            add(name, offset)
