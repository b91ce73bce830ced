"""logds that are broken on purpose, one promise each; the plan `soak` must find every one out.

    python -m tests.harness.twins.logd NAME --config FILE

What cannot be seen by killing a process is not here: without the fdatasync an acked record survives
kill -9, because the page cache does (`tests/sim/test_store_log.py` has that twin, on a simulated
disk). A missing or stale index is not a broken promise either: recovery makes it again.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from msgspec import structs
from typing_extensions import override

from penstock.logd.cli import cli
from penstock.logd.compaction import cleaner
from penstock.logd.compaction.policy import CleanState, KeyMap
from penstock.logd.format.batch import Record, build_batch, decode_body, describe_body, encode_body
from penstock.logd.intake.dedup import Dedup
from penstock.logd.intake.turn import MessageRun
from penstock.logd.partition import log_writer, partition, producer_snapshot
from penstock.logd.partition.publish_queue import PublishQueue
from penstock.logd.partition.retention import RetentionTask
from penstock.logd.storage import CommitLog, EpochFile, rewrite

Patches = list[Any]

_LATE_S = 0.3
"""So that a kill comes in between."""


def _ids_forgotten() -> Patches:
    """Message ids are not recalled from the log."""
    return [patch.object(Dedup, "recall_ids", lambda *_: None)]


def _producers_forgotten() -> Patches:
    """Producers' sequences are neither recalled from the log nor from what was written down."""
    return [
        patch.object(Dedup, "recall_producer", lambda *_: None),
        patch.object(producer_snapshot.ProducerSnapshot, "load", lambda *_, **__: None),
    ]


def _ids_not_saved_before_deleting() -> Patches:
    """Retention deletes records whose ids nobody has written down."""

    def deletes_at_once(retention_task: RetentionTask) -> bool:
        retention_task.snapshot_saved(1 << 60)
        return step(retention_task)

    step = RetentionTask.step
    return [
        patch.object(RetentionTask, "step", deletes_at_once),
        patch.object(producer_snapshot.ProducerSnapshot, "save", lambda *_, **__: None),
    ]


def _acked_before_append() -> Patches:
    """Acks go out before the record has been written, which takes a while."""
    take, build = PublishQueue.take, log_writer.build_frames

    def ack_first(self: PublishQueue, messages: list[Any]) -> None:
        take(self, messages)
        self.committed_upto(self.intake.next_offset - 1)

    def build_late(items: Any, *, epoch: int) -> Any:
        threading.Event().wait(_LATE_S)
        return build(items, epoch=epoch)

    return [
        patch.object(PublishQueue, "take", ack_first),
        patch.object(log_writer, "build_frames", build_late),
    ]


def _epoch_kept() -> Patches:
    """A restart goes on in the epoch before it."""
    return [patch.object(EpochFile, "latest", 0), patch.object(EpochFile, "begin", lambda *_: None)]


def _retention_greedy() -> Patches:
    """Retention deletes up to the last segment, whatever is to be kept."""
    delete = CommitLog.delete_before
    return [patch.object(CommitLog, "delete_before", lambda log, _: delete(log, log.end_offset))]


def _tail_cut() -> Patches:
    """Recovery cuts the last frame off."""
    partition = CommitLog.open

    def cut(*args: Any, **options: Any) -> CommitLog:
        log = partition(*args, **options)
        if log.end_offset > log.start_offset:
            last = list(log.headers(max(log.start_offset, log.end_offset - 1)))[-1]
            log.truncate_to(last.base_offset)
        return log

    return [patch.object(CommitLog, "open", cut)]


def _built(change: Callable[[Any], None]) -> Patches:
    """Runs of messages are changed before they become frames."""
    build = log_writer.build_frames

    def build_changed(items: Any, *, epoch: int) -> Any:
        items = list(items)
        for run in items:
            if isinstance(run, MessageRun):
                change(run)
        return build(items, epoch=epoch)

    return [patch.object(log_writer, "build_frames", build_changed)]


def _order_swapped() -> Patches:
    """Messages of one run are stored in reverse."""
    return _built(lambda run: run.messages.reverse())


def _payload_changed() -> Patches:
    """One payload in a thousand loses its last byte."""

    def shorten(run: MessageRun) -> None:
        for number, message in enumerate(run.messages):
            if (run.base_offset + number) % 1000 == 17:
                run.messages[number] = message._replace(payload=message.payload[:-1])

    return _built(shorten)


def _keys_lost() -> Patches:
    """Records are stored without their keys."""

    def forget(run: MessageRun) -> None:
        for position, extras in run.extras.items():
            run.extras[position] = extras._replace(key=None)

    return _built(forget)


def _offsets_skipped() -> Patches:
    """A new epoch begins one offset later than the last one ended."""
    recover = partition.recover

    def skip(*args: Any) -> Any:
        partition = recover(*args)
        end = partition.log.end_offset
        if end > partition.log.start_offset:
            batch = build_batch([Record("hole", b"", 1)])
            body = encode_body(batch.slice(0, 0))
            header = describe_body(body, batch).at(base_offset=end, leader_epoch=0)
            partition.log.append([(structs.replace(header, record_count=0, compacted=True), body)])
            partition.intake.next_offset += 1
        return partition

    return [patch("penstock.logd.partition.partition.recover", skip)]


def _newest_dropped() -> Patches:
    """Compaction takes the newest record of a key out, and leaves the older ones."""

    class Newest(KeyMap):
        def __init__(self, start_offset: int, *, bytes_max: int) -> None:
            super().__init__(start_offset, bytes_max=bytes_max)
            self.newest: dict[bytes, int] = {}

        @override
        def note(self, keys: Any, offsets: Any, next_offset: int) -> None:
            super().note(keys, offsets, next_offset)
            self.newest |= dict(zip(keys, offsets, strict=True))

        @override
        def is_superseded(self, key: bytes | None, offset: int) -> bool:
            return key is not None and self.newest.get(key, -1) == offset

    return [patch.object(cleaner, "KeyMap", Newest)]


def _tombstones_early() -> Patches:
    """Tombstones go in the first pass that sees them."""
    return [patch.object(CleanState, "tombstone_limit", lambda *_: 1 << 62)]


def _tombstones_alone() -> Patches:
    """Tombstones go in time, and what they delete stays."""
    return [patch.object(KeyMap, "is_superseded", lambda *_: False)]


def _offsets_closed_up() -> Patches:
    """Records move up to where compaction took others out."""

    def renumber(batch: pa.RecordBatch, **options: Any) -> bytes:
        deltas = pa.array(range(batch.num_rows), pa.int32())
        columns = [deltas, *batch.columns[1:]]
        return encode_body(pa.RecordBatch.from_arrays(columns, schema=batch.schema), **options)

    return [patch.object(rewrite, "encode_body", renumber)]


def _frames_lost_in_merging() -> Patches:
    """Of frames that are put together, the last records are left out."""
    finish = rewrite.SegmentMerger.finish

    def shorten(self: rewrite.SegmentMerger) -> Any:
        for header, body in finish(self):
            batch = decode_body(body)
            if not header.compacted or batch.num_rows < 2:
                yield header, body
                continue
            batch = batch.slice(0, batch.num_rows // 2)
            body = encode_body(batch)  # noqa: PLW2901 - what is left of it
            left = describe_body(body, batch)
            yield (
                structs.replace(
                    header,
                    record_count=batch.num_rows,
                    body_length=len(body),
                    body_crc=left.body_crc,
                ),
                body,
            )

    return [patch.object(rewrite.SegmentMerger, "finish", shorten)]


def _keyless_compacted() -> Patches:
    """Records without a key go when another of these comes."""
    note, superseded = KeyMap.note, KeyMap.is_superseded

    def note_all(self: KeyMap, keys: Any, offsets: Any, next_offset: int) -> None:
        note(self, [key or b"" for key in keys], offsets, next_offset)

    def any_key(self: KeyMap, key: bytes | None, offset: int) -> bool:
        return superseded(self, key or b"", offset)

    return [patch.object(KeyMap, "note", note_all), patch.object(KeyMap, "is_superseded", any_key)]


TWINS: dict[str, Callable[[], Patches]] = {
    "ids-forgotten": _ids_forgotten,
    "producers-forgotten": _producers_forgotten,
    "ids-not-saved-before-deleting": _ids_not_saved_before_deleting,
    "acked-before-append": _acked_before_append,
    "epoch-kept": _epoch_kept,
    "retention-greedy": _retention_greedy,
    "tail-cut": _tail_cut,
    "order-swapped": _order_swapped,
    "payload-changed": _payload_changed,
    "offsets-skipped": _offsets_skipped,
    "keys-lost": _keys_lost,
    "newest-dropped": _newest_dropped,
    "tombstones-early": _tombstones_early,
    "tombstones-alone": _tombstones_alone,
    "offsets-closed-up": _offsets_closed_up,
    "frames-lost-in-merging": _frames_lost_in_merging,
    "keyless-compacted": _keyless_compacted,
}


def main() -> None:
    """Run the twin named first with the arguments after it."""
    name, *arguments = sys.argv[1:]
    for patching in TWINS[name]():
        patching.start()
    cli(arguments, prog_name="penstock logd")


if __name__ == "__main__":
    main()
