"""Rebuild an intake's dedup state from the log it belongs to.

Message ids live in the records' headers: bodies are read as far back as the window of ids reaches,
and at least the last one. Producers' sequences live in the frames' headers: they are read from
where the last snapshot of producers was taken, or from the start of the log. A frame does not say
when it was received (its timestamps are the publisher's), so a producer counts as seen now.

Before retention deletes records or compaction rewrites frames, a snapshot is taken:
see `penstock.logd.partition.retention` and `penstock.logd.compaction.scheduler`. Below a snapshot
nothing is read: a rewritten frame does not say any more which of its rows came as a producer's
batch, whose headers name no message id.

A snapshot that is missing, damaged or older than it should be is no loss as long as the log has
everything. It is one, and reported (`Dedup.lost`), when records were deleted from the log or frames
above what the snapshot has were rewritten.
"""

from typing import Final

import structlog

from penstock.logd.errors import CorruptFrameError, LogdError
from penstock.logd.intake.dedup import Dedup
from penstock.logd.intake.intake import Intake
from penstock.logd.partition.log_writer import Frame
from penstock.logd.partition.producer_snapshot import FILE_NAME, ProducerSnapshot
from penstock.logd.storage import CommitLog

_CHECKSUM_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of frames older than the window of ids that are read for the checksum alone."""

_log = structlog.get_logger()


def rebuild_intake(
    intake: Intake,
    log: CommitLog,
    now_ns: int,
    *,
    save: bool = True,
    committed: int | None = None,
) -> bool:
    """Replay a log into a new intake; damaged frames are skipped and logged.

    Args:
        intake: An intake without dedup state.
        log: The log to rebuild from.
        now_ns: Unix time.
        save: Whether that is written down: not while records may be cut off again.
        committed: Below this offset nothing will be cut off; None: nothing at all will be.

    Returns:
        Whether its dedup state is on disk.
    """
    dedup = intake.dedup
    window_ns = intake.config.dedup_window_s * 1_000_000_000
    window_start = log.offset_for_timestamp(now_ns - window_ns)
    bodies_from = max(min(window_start, log.end_offset - 1), log.start_offset)
    memory = _restore(intake, log)
    base = log.start_offset if memory is None else memory.offset
    dedup.checksum.begin(base, 0 if memory is None else memory.checksum)
    rewritten, skipped_bytes = _recall_headers(intake, log, base, now_ns, bodies_from)
    if skipped_bytes <= _CHECKSUM_BYTES_MAX:  # else replicas differ, and a copy is made once
        bodies_from = min(bodies_from, base)
    ids_from = base if memory is not None and memory.whole else log.start_offset
    _recall_ids(intake, log, max(bodies_from, ids_from), now_ns)
    if ids_from == log.end_offset > log.start_offset and not dedup.last_message_id:
        dedup.last_message_id = _last_message_id(intake, log)
    dedup.checksum.end()
    dedup.committed(log.end_offset if committed is None else committed)
    dedup.whole |= log.start_offset > 0
    lost = max(rewritten, 0 if memory is not None and memory.whole else log.start_offset)
    if lost:
        _report_loss(intake, lost, now_ns + window_ns)
    saved = memory is not None and memory.offset == log.end_offset and not lost
    if save and not saved:
        try:
            ProducerSnapshot.of(intake).save(log.directory, disk=log.disk, cipher=log.cipher)
        except OSError as error:  # the next start reads as much of the log again
            _log.warning(
                "producer_snapshot_write_failed", stream=intake.config.name, error=str(error)
            )
            return False
    return save or saved


def recall_frames(intake: Intake, frames: list[Frame], now_ns: int) -> None:
    """Keep in mind what a leader has to know of frames that a follower appends next."""
    dedup = intake.dedup
    for header, body in frames:
        if header.compacted:  # it says no more what its producers' sequences were
            dedup.lost = max(dedup.lost, header.next_offset)
        dedup.recall_producer(header, now_ns)
        if header.producer_sequence:
            dedup.last_message_id = b""
        else:
            dedup.recall_ids(header, body, now_ns)
    intake.next_offset = frames[-1][0].next_offset


def remember_anew(intake: Intake, log: CommitLog, now_ns: int, committed: int) -> None:
    """Forget, and replay a log that was cut; below `committed` it will not be cut again.

    Raises:
        LogdError, OSError: It cannot be read.
    """
    before, intake.dedup = intake.dedup, Dedup(intake.config)
    intake.dedup.count_on(before)
    intake.next_offset = log.end_offset
    rebuild_intake(intake, log, now_ns, save=False, committed=committed)


def _restore(intake: Intake, log: CommitLog) -> ProducerSnapshot | None:
    """Take what was written down last; None if it is of no use."""
    try:
        memory = ProducerSnapshot.load(log.directory, disk=log.disk, cipher=log.cipher)
    except LogdError as error:
        _log.warning("producer_snapshot_unreadable", stream=intake.config.name, error=str(error))
        return None
    if memory is None:
        return None
    if memory.offset > log.end_offset:
        # It speaks of records that were cut off, and must not be found when others are there.
        log.disk.unlink(log.directory / FILE_NAME)
        log.disk.sync_directory(log.directory)
        return None
    if memory.offset < log.start_offset:
        return None
    memory.restore(intake.dedup)
    return memory


def _recall_headers(
    intake: Intake, log: CommitLog, start: int, now_ns: int, bodies_from: int
) -> tuple[int, int]:
    """Go on with producers.

    Returns:
        Where the last frame ends that names them no more, or 0; and the bytes of plain frames that
        lie before `bodies_from`.
    """
    rewritten = skipped_bytes = 0
    while start < log.end_offset:
        try:
            for header in log.headers(start):
                intake.dedup.recall_producer(header, now_ns)
                start = header.next_offset
                if header.compacted:
                    rewritten = start
                if start <= bodies_from and not header.producer_sequence:
                    skipped_bytes += header.frame_length
        except CorruptFrameError as error:
            start = _pass_over(error, intake.config.name)
    return rewritten, skipped_bytes


def _recall_ids(intake: Intake, log: CommitLog, start: int, now_ns: int) -> None:
    while start < log.end_offset:
        try:
            for header, body in log.frames(start):
                if header.producer_sequence:
                    intake.dedup.last_message_id = b""
                else:
                    intake.dedup.recall_ids(header, body, now_ns)
                start = header.next_offset
        except CorruptFrameError as error:
            start = _pass_over(error, intake.config.name)


def _last_message_id(intake: Intake, log: CommitLog) -> bytes:
    """Return the id of the last record, if the snapshot is older than its commit."""
    last = Dedup(intake.config)
    try:
        for header, body in log.frames(log.end_offset - 1):
            if not header.producer_sequence and not header.compacted:
                last.recall_ids(header, body, 0)
    except CorruptFrameError as error:
        _pass_over(error, intake.config.name)
    return last.last_message_id


def _report_loss(intake: Intake, offset: int, until_ns: int) -> None:
    intake.dedup.lost = max(intake.dedup.lost, offset)
    intake.dedup.lost_until_ns = until_ns
    _log.error(
        "dedup_state_lost",
        stream=intake.config.name,
        below_offset=offset,
        meaning="repeated messages may be stored again, producers be refused as unknown",
    )


def _pass_over(error: CorruptFrameError, stream: str) -> int:
    _log.error("corrupt_frame_skipped", stream=stream, error=str(error))
    return error.next_offset
