"""What a partition remembers of what it stored, to tell a repeat: ids, sequences, the last id.

It is a function of all records that were ever stored, not only of those that the log still has:
`recall_producer` and `recall_ids`, fed with the frames in order, make it again after a restart, on
top of a snapshot (`penstock.logd.memory`). Replicas compare theirs by checksum.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import pyarrow as pa

from penstock.logd.core.message_ids import MessageIds
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.producers import ProducerState, ProducerTable
from penstock.logd.core.stored_ids import integers, stored_message_ids
from penstock.logd.frame import FrameHeader

_MASK: Final = 2**64 - 1
_KEPT: Final = 8192
"""Events of which the checksum before and after is known: those that replicas in sync lag by."""


@dataclass(frozen=True, slots=True)
class DedupMark:
    """What a replica remembers, in few words.

    Attributes:
        offset: It remembers what was stored below; above all offsets: it cannot say now.
        checksum: Of the ids and sequences of all that was ever stored below.
        saved: A start would find it again, in the log and in the snapshot beside it.
    """

    offset: int
    checksum: int
    saved: bool


class DedupChecksum:
    """Checksum of every id and every producer's batch that was stored below an offset.

    It is a sum, modulo 2**64, of a number for each of them, so that it does not depend on what has
    expired since, nor on who has forgotten it when. It is known for offsets from `base` on.

    Attributes:
        base: As given to `begin`, or above: older ones are not kept.
        total: Of everything.
        kept_from: From there on all are kept, for another's is under way. None: none is.
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
        """Of everything stored below an offset; None: it is not known any more."""
        if offset < self.base:
            return None
        count = bisect_left(self._offsets, offset)
        return self._sums[count - 1] if count else self._base_sum

    def committed(self, end_offset: int) -> None:
        """Let go of what nobody will ask for; what may be cut off again stays."""
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
        """What was read again has all been added; what is below `base` was counted before."""
        collected, self._collected = sorted(self._collected or ()), None
        for offset, number in collected:
            if offset >= self.base:
                self.total = (self.total + number) & _MASK
                self._sums.append(self.total)
                self._offsets.append(offset)


class Dedup:
    """The memory of one partition.

    Args:
        config: Of the stream.

    Attributes:
        last_message_id: Of the last record; empty when it had none.
        whole: Whether what is written down has to hold the ids: the log may not have them all any
            more, for records were removed from it or rewritten, or are about to be.
        lost: Below this offset something may have been forgotten: the log does not have it any
            more, nor has what was written down. 0: nothing.
        lost_until_ns: When that was found, Unix time and a window of ids; 0: before the start.
        floor: What was stored below is committed, and only all of it together is known.
        unsaved: Something came from another replica, and is not in the snapshot on disk yet.
        checksum: To compare with other replicas.
    """

    def __init__(self, config: StreamConfig) -> None:
        self.whole = config.deleting.deletes or config.compact
        self.message_ids = MessageIds(
            window_ns=config.dedup_window_s * 1_000_000_000, ids_max=config.dedup_entries_max
        )
        self.producers = ProducerTable(
            expiry_ns=config.producer_expiry_s * 1_000_000_000, producers_max=config.producers_max
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

    def adopt(
        self,
        ids: MessageIds,
        producers: ProducerTable,
        theirs: Mapping[bytes, ProducerState],
        *,
        offset: int,
        since: int,
        lost: int,
    ) -> None:
        """Take what another replica remembers below an offset, with what is remembered here.

        Args:
            ids: Both, but for what has been stored here meanwhile.
            producers: Likewise.
            theirs: Producers, as the other one knows them.
            offset: The other one's; `checksum` has been corrected by its.
            since: What was stored here from there on is not in `ids` and `producers`.
            lost: What the other one may have forgotten.
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

    def recall_ids(self, header: FrameHeader, batch: pa.RecordBatch, now_ns: int) -> None:
        """Rebuild what a stored frame says of message ids, oldest frame first.

        Args:
            header: Of a frame of plain messages; batches have no ids.
            batch: Its rows.
            now_ns: The time; a record of the future counts as of now.
        """
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
