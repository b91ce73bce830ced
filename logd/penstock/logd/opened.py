"""A partition's log as it is opened: recovered, with a role and what publishers' repeats need."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from penstock.logd.core.intake import Intake
from penstock.logd.core.metadata import Stream
from penstock.logd.frame import FrameHeader
from penstock.logd.log_orders import Outcome
from penstock.logd.purging import PurgePoint
from penstock.logd.rebuild import rebuild_intake
from penstock.logd.restoring import begin
from penstock.logd.store import CommitLog, EpochFile, LogConfig
from penstock.logd.store.errors import CorruptFrameError
from penstock.logd.store.names import EPOCHS_NAME
from penstock.logd.surroundings import Surroundings

Place = tuple[Path, int]
"""A partition's directory and number."""

_log = structlog.get_logger()


class Role(Protocol):
    """What decides who commits: a replica of its own, or one among others.

    Attributes:
        epoch: The leader epoch; 0 before the first.
        high_watermark: Offset of the last committed record; -1 when there is none. It is looked at
            several times a turn.
        leads: Whether it leads as soon as the partition is open.
        epochs: Of the log; from the start of its writer on only that changes them.
    """

    epoch: int
    high_watermark: int
    leads: bool
    epochs: EpochFile

    def settle(self, outcome: Outcome, now_ns: int) -> bool:
        """Take what the log's writer says; whether more is committed that nobody was told of."""

    def submitted(self, upto: int) -> None:
        """What was taken has been handed to the log's writer; not told to one that `leads`."""

    def failed(self, reason: str, now_ns: int) -> None:
        """The log takes no writes any more."""

    def remembers(self) -> None:
        """What the leader remembers, too, has been written down here."""


MakeRole = Callable[[CommitLog, EpochFile], Role]
"""Given the recovered log. Raises CorruptError, OSError."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A log that was recovered, and who decides about it."""

    log: CommitLog
    role: Role
    intake: Intake
    purged: PurgePoint


def recover(stream: Stream, place: Place, around: Surroundings, make_role: MakeRole) -> Opened:
    """Recover a log, find a role, rebuild what the intake remembers.

    Raises:
        CorruptError, RefusedError, OSError: As `Partition.open` says.
    """
    config, directory = stream.config, place[0]
    log_config = LogConfig(
        segment_bytes_max=config.deleting.segment_bytes_max(config.segment_bytes_max),
        segment_age_s_max=config.deleting.segment_age_s_max(),
    )
    disk = around.disk
    vault = around.masters.vault_of(stream, *place)
    log = CommitLog.open(directory, log_config, disk=disk, vault=vault)
    epochs, rebuilt = EpochFile.open(
        directory / EPOCHS_NAME, partial(_sound_headers, log), disk=disk
    )
    if rebuilt:
        _log.warning(
            "epochs_rebuilt", stream=config.name, reason=rebuilt, epochs=len(epochs.entries)
        )
    begin(log, epochs, config, place[1])
    role = make_role(log, epochs)
    end, epoch = log.end_offset, role.epoch
    intake = Intake(
        config,
        next_offset=end,
        epoch=epoch,
        streams_for=around.streams_for,
        knows_stream=around.knows_stream,
    )
    committed = None if role.leads else role.high_watermark + 1
    rebuild_intake(intake, log, around.clock.unix_ns(), save=role.leads, committed=committed)
    for finding in log.recovery.findings:
        _log.warning("log recovered", stream=config.name, finding=str(finding))
    return Opened(log, role, intake, PurgePoint.load(directory))


def _sound_headers(log: CommitLog) -> Iterator[FrameHeader]:
    """The headers of a log's frames, past damage."""
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            for header in log.headers(offset):
                yield header
                offset = header.next_offset
        except CorruptFrameError as error:
            offset = error.next_offset
