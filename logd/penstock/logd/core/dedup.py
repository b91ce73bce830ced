"""What a partition remembers of what it stored, to tell a repeat: ids, sequences, the last id.

It is a function of the log: `recall_producer` and `recall_ids`, fed with the frames in order, make
it again after a restart.
"""

import pyarrow as pa

from penstock.logd.core.message_ids import MessageIds
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.producers import ProducerTable
from penstock.logd.core.stored_ids import integers, stored_message_ids
from penstock.logd.frame import FrameHeader


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

    @property
    def evicted(self) -> int:
        """Ids and producers forgotten before their time, for there were too many."""
        return self.message_ids.evicted + self.producers.evicted

    def count_on(self, before: "Dedup") -> None:
        """Go on with the counts of the memory that this one takes the place of."""
        self.message_ids.evicted += before.message_ids.evicted
        self.producers.evicted += before.producers.evicted

    def recall_producer(self, header: FrameHeader, now_ns: int) -> None:
        """Rebuild what a stored frame says of its producer, oldest frame first."""
        if header.producer_sequence:
            self.producers.record(
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
        if not rows:
            return
        base = header.base_offset
        deltas = integers(batch.column("offset_delta"), "i")
        times = integers(batch.column("timestamp"), "q")
        self.message_ids.record_all(
            ids,
            [(base + deltas[row], min(times[row], now_ns)) for row in rows],
        )
