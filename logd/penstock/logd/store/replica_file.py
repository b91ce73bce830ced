"""What a replica knows besides its log, so that it need not ask for it after a start.

A checkpoint whose document is `{"high_watermark": offset, "agreed_epoch": epoch}`. Mostly it is
written without a sync: after a crash it may be older or missing, and what it says is then too low,
which costs time and no record (`penstock.logd.core.replication.replica`).
"""

from pathlib import Path

from penstock.logd.errors import CorruptError
from penstock.logd.store.checkpoint import Checkpoint
from penstock.logd.store.disk import REAL_DISK, Disk
from penstock.logd.store.names import REPLICA_NAME


class ReplicaFile:
    """The file of one partition's replica.

    Args:
        directory: Of the log.
        disk: The file system.
    """

    def __init__(self, directory: Path, *, disk: Disk = REAL_DISK) -> None:
        self._checkpoint = Checkpoint(directory / REPLICA_NAME, disk=disk)

    def save(self, high_watermark: int, agreed_epoch: int, *, durable: bool = False) -> None:
        """Replace what it says.

        Args:
            high_watermark: Offset of the last record known to be committed; -1: none.
            agreed_epoch: The last epoch whose leader's log this one agreed with.
            durable: On return no crash takes it back.

        Raises:
            OSError: The disk failed; the old file is still there, or the new one already.
        """
        document = {"high_watermark": high_watermark, "agreed_epoch": agreed_epoch}
        self._checkpoint.save(document, durable=durable)

    def load(self) -> tuple[int, int]:
        """(high watermark, agreed epoch) as written down last; (-1, 0) if that cannot be read.

        Raises:
            RefusedError: `UNKNOWN_FORMAT`: written by a later version.
            OSError: The disk failed.
        """
        try:
            document = self._checkpoint.load() or {}
            return int(document.get("high_watermark", -1)), int(document.get("agreed_epoch", 0))
        except (CorruptError, TypeError, ValueError):
            return -1, 0
