"""Carries out what changes a log otherwise than by appending, on the thread that writes it."""

import structlog

from penstock.logd.core.replication.effects import BeginEpoch, DeleteBefore, Reset, Truncate
from penstock.logd.errors import LogdError
from penstock.logd.log_orders import (
    Change,
    Cut,
    EpochBegun,
    Note,
    Outcome,
    Patch,
    Patched,
    PurgeBefore,
    WasReset,
)
from penstock.logd.retainer import Retainer
from penstock.logd.rewriter import check_room
from penstock.logd.store import CommitLog, EpochFile, LogFailedError, ReplicaFile

_log = structlog.get_logger()


class LogChanges:
    """Changes one log and the small files that must fit it.

    The log is changed before its epochs: a crash between leaves epochs of records that are gone,
    which opening the log puts right, and never records without their epoch.

    Args:
        log: Whose writer calls `carry_out`.
        epochs: Of the log.
        retainer: Of the log.

    Attributes:
        epoch: That began last.
        cuts: Of the last truncation or reset; 0 before the first.
    """

    def __init__(self, log: CommitLog, epochs: EpochFile, retainer: Retainer) -> None:
        self.epoch = epochs.latest
        self.cuts = 0
        self._log = log
        self._epochs = epochs
        self._retainer = retainer
        self._file = ReplicaFile(log.directory, disk=log.disk)

    def carry_out(self, change: Change) -> Outcome | None:
        """Do it; what to report when it is durable.

        Raises:
            LogdError: It cannot be done: the log must take no more.
            OSError: The disk failed.
        """
        match change:
            case BeginEpoch(epoch, start_offset):
                self._epochs.begin(epoch, start_offset)
                self.epoch = epoch
                return EpochBegun(epoch)
            case Truncate(upto, cuts):
                self._log.truncate_to(upto)
                self._epochs.truncate_to(self._log.end_offset)
                self._was_cut(cuts)
                return Cut(self._log.end_offset, cuts)
            case Reset(start, cuts):
                self._log.reset(start)
                self._epochs.clear()
                self._was_cut(cuts)
                return WasReset(start, cuts)
            case DeleteBefore(offset):
                self._retainer.delete_before(offset)
            case PurgeBefore(offset):
                self._retainer.purge_before(offset)
            case Patch():
                return self._patch(change)
            case Note():
                self._note(change)
        return None

    def _was_cut(self, cuts: int) -> None:
        self.cuts = cuts
        self._retainer.was_cut()

    def _patch(self, patch: Patch) -> Patched | None:
        """Fill damage; if that cannot be done, the log goes on as it is."""
        if patch.cuts != self.cuts:
            return None
        name, first, upto = str(self._log.directory), patch.first, patch.upto
        try:
            check_room(self._log, first, upto)
            filled = self._log.patch(first, upto, patch.frames)
        except LogFailedError:
            raise
        except (LogdError, OSError) as error:
            _log.error("damage not filled", log=name, first=first, upto=upto, error=str(error))
            return None
        if not filled:
            reason = "there is no room to seal the active segment"
            _log.error("damage not filled", log=name, first=first, upto=upto, error=reason)
            return None
        _log.info("damage filled", log=name, first=first, upto=upto)
        return Patched(first, upto, patch.cuts)

    def _note(self, note: Note) -> None:
        """Without it the next start knows less of what is committed, and asks."""
        try:
            self._file.save(note.high_watermark, note.agreed_epoch, durable=note.durable)
        except OSError as error:
            if note.durable:
                raise
            _log.warning("replica not noted", log=str(self._log.directory), error=str(error))
