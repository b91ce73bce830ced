"""Rebuild what an intake remembers from the log it belongs to.

Message ids live in the records' headers: bodies are read as far back as the window of ids reaches,
and at least the last one. Producers' sequences live in the frames' headers: they are read from
where the last snapshot of producers was taken, or from the start of the log. A frame does not say
when it was received (its timestamps are the publisher's), so a producer counts as seen now.

Before retention deletes records or compaction rewrites frames, a snapshot is taken:
see `penstock.logd.retainer` and `penstock.logd.upkeep`. Below a snapshot nothing is read: a
rewritten frame does not say any more which of its rows came as a producer's batch, whose headers
name no message id.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from penstock.logd.batch import decode_body
from penstock.logd.core.intake import Intake
from penstock.logd.core.producers import ProducerState
from penstock.logd.errors import LogdError
from penstock.logd.store import Checkpoint, CommitLog, CorruptFrameError
from penstock.logd.store.disk import REAL_DISK, Disk

_FILE: Final = "producers"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Memory:
    """What an intake remembers of everything below `offset`, at one moment.

    Attributes:
        whole: Message ids included, because records are removed or rewritten; else the log itself
            has them all.
    """

    offset: int
    producers: tuple[list[bytes], list[ProducerState]]
    ids: tuple[list[bytes], list[tuple[int, int]]]
    last_message_id: bytes
    whole: bool

    @classmethod
    def of(cls, intake: Intake) -> "Memory":
        """What an intake remembers now."""
        dedup = intake.dedup
        whole = dedup.whole  # once: compaction's thread may set it meanwhile
        return cls(
            intake.next_offset,
            dedup.producers.snapshot(),
            dedup.message_ids.snapshot() if whole else ([], []),
            dedup.last_message_id if whole else b"",
            whole,
        )

    def save(self, directory: Path, *, disk: Disk = REAL_DISK) -> bool:
        """Write it down; everything below `offset` is durable. Whether it worked."""
        document = {
            "offset": self.offset,
            "producers": [
                [producer.hex(), state.sequence, state.offset, state.seen_ns]
                for producer, state in sorted(
                    zip(*self.producers, strict=True), key=lambda one: one[1].offset
                )
            ],
            "ids": [
                [message_id.hex(), *seen]
                for message_id, seen in sorted(zip(*self.ids, strict=True), key=lambda one: one[1])
            ],
            "last_message_id": self.last_message_id.hex(),
            "complete": self.whole,
        }
        try:
            Checkpoint(directory / _FILE, disk=disk).save(document)
        except OSError as error:  # the log itself has it; the next start reads more of it
            _log.warning("producers not saved", directory=str(directory), error=str(error))
            return False
        return True


def rebuild_intake(intake: Intake, log: CommitLog, now_ns: int, *, disk: Disk = REAL_DISK) -> None:
    """Replay a log into a new intake; damaged frames are passed over and logged."""
    window_ns = intake.config.dedup_window_s * 1_000_000_000
    window_start = log.offset_for_timestamp(now_ns - window_ns)
    bodies_from = max(min(window_start, log.end_offset - 1), log.start_offset)
    restored = _restore(intake, log, disk)
    producers_from, ids_from = restored or (log.start_offset, log.start_offset)
    _recall_headers(intake, log, producers_from, now_ns)
    _recall_ids(intake, log, max(bodies_from, ids_from), now_ns)
    if restored is None or producers_from != log.end_offset:
        Memory.of(intake).save(log.directory, disk=disk)


def _restore(intake: Intake, log: CommitLog, disk: Disk) -> tuple[int, int] | None:
    """Take what was written down last.

    Returns:
        Where to go on in the log for producers, and for message ids; None if it is of no use.
    """
    try:
        document = Checkpoint(log.directory / _FILE, disk=disk).load()
        if document is None or not log.start_offset <= document["offset"] <= log.end_offset:
            return None
        intake.dedup.producers.restore(_row(row) for row in document["producers"])
        intake.dedup.message_ids.restore(
            (bytes.fromhex(message_id), int(offset), int(seen_ns))
            for message_id, offset, seen_ns in document.get("ids", ())
        )
        intake.dedup.last_message_id = bytes.fromhex(document.get("last_message_id", ""))
    except (LogdError, KeyError, TypeError, ValueError) as error:
        _log.warning("producers not restored", stream=intake.config.name, error=str(error))
        intake.dedup.producers.restore(())
        intake.dedup.message_ids.restore(())
        return None
    offset, whole = int(document["offset"]), bool(document.get("complete"))
    intake.dedup.whole |= whole
    return offset, offset if whole else log.start_offset


def _recall_headers(intake: Intake, log: CommitLog, start: int, now_ns: int) -> None:
    while start < log.end_offset:
        try:
            for header in log.headers(start):
                intake.dedup.recall_producer(header, now_ns)
                start = header.next_offset
        except CorruptFrameError as error:
            start = _pass_over(error, intake.config.name)


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


def _pass_over(error: CorruptFrameError, stream: str) -> int:
    _log.error("damaged frame", stream=stream, error=str(error))
    return error.next_offset


def _row(row: list[Any]) -> tuple[bytes, int, int, int]:
    producer, sequence, offset, seen_ns = row
    return bytes.fromhex(producer), int(sequence), int(offset), int(seen_ns)
