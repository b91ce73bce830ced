"""The commit log on disk: segments, indexes, recovery, and the small files beside them."""

from penstock.logd.storage.checkpoint import Checkpoint, EpochFile, ReplicaFile
from penstock.logd.storage.disk import REAL_DISK, DirectoryLock, Disk, File, RealDisk
from penstock.logd.storage.log import CommitLog, LogConfig
from penstock.logd.storage.recovery import Finding, RecoveryReport
from penstock.logd.storage.rewrite import Rewriting, SegmentMerger
from penstock.logd.storage.segment import FileRange

__all__ = [
    "REAL_DISK",
    "Checkpoint",
    "CommitLog",
    "DirectoryLock",
    "Disk",
    "EpochFile",
    "File",
    "FileRange",
    "Finding",
    "LogConfig",
    "RealDisk",
    "RecoveryReport",
    "ReplicaFile",
    "Rewriting",
    "SegmentMerger",
]
