"""Rebuild what an intake remembers from the log it belongs to.

Message ids live in the records' headers: bodies are read as far back as the window of ids reaches,
and at least the last one. Producers' sequences live in the frames' headers: they are read from
where the last snapshot of producers was taken, or from the start of the log. A frame does not say
when it was received (its timestamps are the publisher's), so a producer counts as seen now.

Before retention deletes records or compaction rewrites frames, a snapshot is taken:
see `penstock.logd.retainer` and `penstock.logd.upkeep`. Below a snapshot nothing is read: a
rewritten frame does not say any more which of its rows came as a producer's batch, whose headers
name no message id.

A snapshot that is missing, damaged or older than it should be is no loss as long as the log has
everything. It is one, and told (`Dedup.lost`), when records were deleted from the log or frames
above what the snapshot has were rewritten.
"""

import structlog

from penstock.logd.batch import decode_body
from penstock.logd.core.dedup import Dedup
from penstock.logd.core.intake import Intake
from penstock.logd.errors import LogdError
from penstock.logd.log_orders import Frame
from penstock.logd.memory import Memory
from penstock.logd.store import CommitLog, CorruptFrameError
from penstock.logd.store.disk import REAL_DISK, Disk

_log = structlog.get_logger()


def rebuild_intake(
    intake: Intake, log: CommitLog, now_ns: int, *, save: bool = True, disk: Disk = REAL_DISK
) -> None:
    """Replay a log into a new intake; damaged frames are passed over and logged.

    Args:
        intake: That remembers nothing.
        log: What it is to remember.
        now_ns: Unix time.
        save: Whether that is written down: not while records may be cut off again.
        disk: The file system.
    """
    window_ns = intake.config.dedup_window_s * 1_000_000_000
    window_start = log.offset_for_timestamp(now_ns - window_ns)
    bodies_from = max(min(window_start, log.end_offset - 1), log.start_offset)
    restored = _restore(intake, log, disk)
    producers_from, ids_from = restored or (log.start_offset, log.start_offset)
    rewritten = _recall_headers(intake, log, producers_from, now_ns)
    _recall_ids(intake, log, max(bodies_from, ids_from), now_ns)
    lost = max(rewritten, log.start_offset if restored is None else 0)
    if lost:
        _tell_loss(intake, lost, now_ns + window_ns)
    if save and (restored is None or producers_from != log.end_offset):
        try:
            Memory.of(intake).save(log.directory, disk=disk, vault=log.vault)
        except OSError as error:  # the next start reads as much of the log again
            _log.warning("producers not saved", stream=intake.config.name, error=str(error))


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
            dedup.recall_ids(header, decode_body(body), now_ns)
    intake.next_offset = frames[-1][0].next_offset


def remember_anew(intake: Intake, log: CommitLog, now_ns: int) -> None:
    """Forget, and replay a log that was cut.

    Raises:
        LogdError, OSError: It cannot be read.
    """
    before, intake.dedup = intake.dedup, Dedup(intake.config)
    intake.dedup.count_on(before)
    intake.next_offset = log.end_offset
    rebuild_intake(intake, log, now_ns, save=False)


def _restore(intake: Intake, log: CommitLog, disk: Disk) -> tuple[int, int] | None:
    """Take what was written down last.

    Returns:
        Where to go on in the log for producers, and for message ids; None if it is of no use.
    """
    try:
        memory = Memory.load(log.directory, disk=disk, vault=log.vault)
    except LogdError as error:
        _log.warning("producers not restored", stream=intake.config.name, error=str(error))
        return None
    if memory is None or not log.start_offset <= memory.offset <= log.end_offset:
        return None
    memory.restore(intake.dedup)
    return memory.offset, memory.offset if memory.whole else log.start_offset


def _recall_headers(intake: Intake, log: CommitLog, start: int, now_ns: int) -> int:
    """Go on with producers; where the last frame ends that names them no more, or 0."""
    rewritten = 0
    while start < log.end_offset:
        try:
            for header in log.headers(start):
                intake.dedup.recall_producer(header, now_ns)
                start = header.next_offset
                if header.compacted:
                    rewritten = start
        except CorruptFrameError as error:
            start = _pass_over(error, intake.config.name)
    return rewritten


def _recall_ids(intake: Intake, log: CommitLog, start: int, now_ns: int) -> None:
    while start < log.end_offset:
        try:
            for header, body in log.frames(start):
                if header.producer_sequence:
                    intake.dedup.last_message_id = b""
                else:
                    intake.dedup.recall_ids(header, decode_body(body), now_ns)
                start = header.next_offset
        except CorruptFrameError as error:
            start = _pass_over(error, intake.config.name)


def _tell_loss(intake: Intake, offset: int, until_ns: int) -> None:
    intake.dedup.lost = max(intake.dedup.lost, offset)
    intake.dedup.lost_until_ns = until_ns
    _log.error(
        "what the stream remembered is lost",
        stream=intake.config.name,
        below_offset=offset,
        meaning="repeated messages may be stored again, producers be refused as unknown",
    )


def _pass_over(error: CorruptFrameError, stream: str) -> int:
    _log.error("damaged frame", stream=stream, error=str(error))
    return error.next_offset
