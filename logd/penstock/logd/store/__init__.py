"""The commit log on disk: segments, indexes, recovery, and the small files beside them."""

from penstock.logd.store.checkpoint import Checkpoint
from penstock.logd.store.config import LogConfig
from penstock.logd.store.disk import REAL_DISK, Disk, File, RealDisk
from penstock.logd.store.epochs import EpochFile
from penstock.logd.store.errors import CorruptFrameError, LogFailedError
from penstock.logd.store.file_range import FileRange
from penstock.logd.store.key_file import Masters, bound_to, open_vault, rewrap
from penstock.logd.store.lock import DirectoryLock
from penstock.logd.store.log import CommitLog
from penstock.logd.store.recovery import Finding, RecoveryReport
from penstock.logd.store.repacker import Repacker
from penstock.logd.store.replica_file import ReplicaFile
from penstock.logd.store.rewriting import Rewriting
from penstock.logd.store.vault import Vault

__all__ = [
    "REAL_DISK",
    "Checkpoint",
    "CommitLog",
    "CorruptFrameError",
    "DirectoryLock",
    "Disk",
    "EpochFile",
    "File",
    "FileRange",
    "Finding",
    "LogConfig",
    "LogFailedError",
    "Masters",
    "RealDisk",
    "RecoveryReport",
    "Repacker",
    "ReplicaFile",
    "Rewriting",
    "Vault",
    "bound_to",
    "open_vault",
    "rewrap",
]
