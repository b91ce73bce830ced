"""Around a daemon's life: its directory, its lock, its addresses, and what its errors mean."""

import os
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from penstock.base.errors import DamagedDataError
from penstock.base.files import atomic_write
from penstock.logd.config import ENV_PREFIX, LogdConfig
from penstock.logd.directories import DATA_FORMAT
from penstock.logd.encryption import EncryptionSection, MasterKeys
from penstock.logd.engine import Engine
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.nats.errors import NatsSetupError
from penstock.logd.rotation import Rotation
from penstock.logd.security.keeper import DoorSetupError, Keeper
from penstock.logd.store import DirectoryLock
from penstock.service import ConfigError, ServiceError, UnavailableError, load_config

NEWER_FIX: Final = (
    "a later Penstock wrote it: start that one, or restore a backup from before the upgrade into"
    " another data_dir; nothing was changed"
)

OPENING_FIXES: Final = {
    "TOO_MANY_STREAMS": "raise the limit, or lower connections_max",
    "CLUSTERED": "give the configuration its section `cluster` back, or use another data_dir",
    "UNKNOWN_FORMAT": NEWER_FIX,
    "NOT_CLUSTERED": "leave that out, or make this node a part of a cluster",
}
"""What to do when streams cannot be opened, by the refusal's code."""


def prepare_directory(config: LogdConfig, config_path: Path) -> None:
    """Make the data directory, if need be.

    Raises:
        ConfigError: This user cannot write there.
    """
    directory = config.data_dir
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK | os.X_OK)
        reason = "not writable by this user"
    except OSError as error:
        writable, reason = False, error.strerror or str(error)
    if not writable:
        raise ConfigError(
            f"{config_path}: data_dir: {directory}: {reason}",
            fix="name a directory that this user may write to",
        )


def lock_directory(config: LogdConfig) -> DirectoryLock:
    """Take the data directory for this process, if this version understands what is in it.

    Raises:
        UnavailableError: Another one has it.
        DataFormatError: A later version wrote it, or another part of Penstock.
    """
    DATA_FORMAT.check(config.data_dir)  # before anything is written, the lock's file included
    try:
        lock = DirectoryLock(config.data_dir)
    except RefusedError as error:
        raise UnavailableError(
            f"another logd runs: {error}",
            fix=f"stop process {error.detail.get('pid')}, or use another data_dir",
        ) from None
    DATA_FORMAT.open(config.data_dir)
    return lock


def write_endpoints(path: Path, endpoints: dict[str, str]) -> None:
    """Write down where the process listens.

    Raises:
        OSError: The disk failed.
    """
    atomic_write(path, orjson.dumps(endpoints) + b"\n", durable=False)


def read_encryption(config_path: Path) -> EncryptionSection | None:
    """The section `encryption` as the configuration's file has it now.

    Raises:
        CorruptError: The file is not understood.
    """
    try:
        return load_config(LogdConfig, config_path, env_prefix=ENV_PREFIX).encryption
    except ConfigError as error:
        raise CorruptError(str(error)) from None


def watch_masters(keeper: Keeper, config_path: Path, masters: MasterKeys, engine: Engine) -> None:
    """Follow the master keys that the configuration's file names, if any are used."""
    if masters.used:
        read = partial(read_encryption, config_path)
        keeper.watch(Rotation(config_path, read, masters, engine.partitions))


def service_error(error: Exception, config: LogdConfig, config_path: Path) -> ServiceError:
    """What a node's part in its cluster has ended with, for whoever must act."""
    match error:
        case DoorSetupError() | NatsSetupError():
            return ConfigError(f"{config_path}: {error.key}: {error}", fix=error.fix)
        case RefusedError(code="UNKNOWN_FORMAT"):
            return ConfigError(f"{config.data_dir}: {error}", fix=NEWER_FIX)
        case RefusedError():
            return ConfigError(
                f"{config_path}: cluster: {error}",
                fix="give each node its own name and data_dir, and all of them the same cluster",
            )
        case CorruptError():
            fix = "nothing was changed; give the node an empty data_dir and another name, so that"
            return DamagedDataError(str(error), fix=f"{fix} it gets everything from the others")
        case _:
            fix = "see to the disk, then start again"
            return UnavailableError(f"{config.data_dir}: {error}", fix=fix)


def first_of(errors: ExceptionGroup[Exception]) -> Exception:
    """One of the errors in a group of groups."""
    first = errors.exceptions[0]
    return first_of(first) if isinstance(first, ExceptionGroup) else first
