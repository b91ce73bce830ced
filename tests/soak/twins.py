"""logds that are broken on purpose, one promise each; the soak must turn red with every one.

    python -m tests.soak.twins NAME --config FILE

What cannot be seen by killing a process is not here: without the fdatasync an acked record survives
kill -9, because the page cache does (`tests/sim/test_store_log.py` has that twin, on a simulated
disk). A missing or stale index is not a broken promise either: recovery makes it again.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from penstock.logd import cleaner, frame_builder, memory, opened, rebuild
from penstock.logd.batch import encode_body
from penstock.logd.cli import cli
from penstock.logd.core.compaction import CleanState, KeyMap
from penstock.logd.core.turn import AckLater, PendingAck
from penstock.logd.leadership import Leadership
from penstock.logd.retainer import Retainer
from penstock.logd.store import CommitLog, EpochFile, repacker

Patches = list[Any]


def _ids_forgotten() -> Patches:
    """Message ids are not recalled from the log."""
    return [patch.object(rebuild, "_recall_ids", lambda *_: None)]


def _producers_forgotten() -> Patches:
    """Producers' sequences are neither recalled from the log nor from what was written down."""
    return [
        patch.object(rebuild, "_recall_headers", lambda *_: None),
        patch.object(rebuild, "_restore", lambda *_: None),
    ]


def _ids_not_saved_before_deleting() -> Patches:
    """Retention deletes records whose ids nobody has written down."""

    def deletes_at_once(retainer: Retainer) -> bool:
        retainer.remembered(1 << 60)
        return step(retainer)

    step = Retainer.step
    return [
        patch.object(Retainer, "step", deletes_at_once),
        patch.object(memory.Memory, "save", lambda *_: None),
    ]


def _acked_before_append() -> Patches:
    """Acks go out before the record has been written."""
    execute = Leadership._execute

    def ack_first(self: Leadership, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, AckLater):
                self._acks.send_acks(self.name, self.intake.epoch, list(effect.acks))
        silent = [
            AckLater([PendingAck(ack.release, b"", 0) for ack in effect.acks])
            if isinstance(effect, AckLater)
            else effect
            for effect in effects
        ]
        execute(self, [effect for effect in silent if not isinstance(effect, AckLater)])

    return [patch.object(Leadership, "_execute", ack_first)]


def _epoch_kept() -> Patches:
    """A restart goes on in the epoch before it."""
    return [patch.object(EpochFile, "latest", 0), patch.object(EpochFile, "begin", lambda *_: None)]


def _retention_greedy() -> Patches:
    """Retention deletes up to the last segment, whatever is to be kept."""
    delete = CommitLog.delete_before
    return [patch.object(CommitLog, "delete_before", lambda log, _: delete(log, log.end_offset))]


def _tail_cut() -> Patches:
    """Recovery cuts the last frame off."""
    opened = CommitLog.open

    def cut(*args: Any, **options: Any) -> CommitLog:
        log = opened(*args, **options)
        if log.end_offset > log.start_offset:
            last = list(log.headers(max(log.start_offset, log.end_offset - 1)))[-1]
            log.truncate_to(last.base_offset)
        return log

    return [patch.object(CommitLog, "open", cut)]


def _order_swapped() -> Patches:
    """Messages of one frame are stored in reverse."""
    build = frame_builder._build

    def reverse(runs: Any, epoch: int) -> Any:
        for run in runs:
            run.messages.reverse()
        return build(runs, epoch)

    return [patch.object(frame_builder, "_build", reverse)]


def _payload_changed() -> Patches:
    """One payload in a thousand loses its last byte."""
    build = frame_builder._build

    def shorten(runs: Any, epoch: int) -> Any:
        for run in runs:
            for number, message in enumerate(run.messages):
                if (run.base_offset + number) % 1000 == 17:
                    run.messages[number] = message._replace(payload=message.payload[:-1])
        return build(runs, epoch)

    return [patch.object(frame_builder, "_build", shorten)]


def _keys_lost() -> Patches:
    """Records are stored without their keys."""
    take = frame_builder._keys_and_headers

    def forget(*args: Any) -> Any:
        keys, headers = take(*args)
        return pa.nulls(len(keys), keys.type), headers

    return [patch.object(frame_builder, "_keys_and_headers", forget)]


def _offsets_skipped() -> Patches:
    """A new epoch begins one offset later than the last one ended."""
    recover = opened.recover

    def skip(*args: Any) -> Any:
        opened = recover(*args)
        segment = opened.log._active
        if segment.size:
            segment.end_offset += 1
            opened.intake.next_offset += 1
        return opened

    return [patch("penstock.logd.partition.recover", skip)]


def _newest_dropped() -> Patches:
    """Compaction takes the newest record of a key out, and leaves the older ones."""

    def newest(keys: KeyMap, key: bytes | None, offset: int) -> bool:
        return key is not None and keys._offsets.get(key, -1) == offset

    return [patch.object(KeyMap, "is_superseded", newest)]


def _tombstones_early() -> Patches:
    """Tombstones go in the first pass that sees them."""
    return [patch.object(CleanState, "tombstone_limit", lambda *_: 1 << 62)]


def _tombstones_alone() -> Patches:
    """Tombstones go in time, and what they delete stays."""
    make = cleaner._chooser

    def chooser(keys: KeyMap, tombstone_limit: int) -> Any:
        choose = make(KeyMap(0, bytes_max=0), tombstone_limit)
        return choose if tombstone_limit else lambda *_: None

    return [patch.object(cleaner, "_chooser", chooser)]


def _offsets_closed_up() -> Patches:
    """Records move up to where compaction took others out."""

    def renumber(batch: pa.RecordBatch, **options: Any) -> bytes:
        deltas = pa.array(range(batch.num_rows), pa.int32())
        columns = [deltas, *batch.columns[1:]]
        return encode_body(pa.RecordBatch.from_arrays(columns, schema=batch.schema), **options)

    return [patch.object(repacker, "encode_body", renumber)]


def _frames_lost_in_merging() -> Patches:
    """Of frames that are put together, the last one's records are left out."""
    join = repacker._join

    def shorten(parts: Any) -> Any:
        last = replace(parts[-1], batch=parts[-1].batch.slice(0, 0))
        return join([*parts[:-1], last] if len(parts) > 1 else parts)

    return [patch.object(repacker, "_join", shorten)]


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
