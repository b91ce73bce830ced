"""A stream that is made from a backup: where it begins, and which frames it takes.

Its configuration says from where to where each of its partitions is restored (`restore_from`,
`restore_upto`). The log begins at the first of them, on every replica. Below the second its leader
takes nothing but frames as they were fetched when the backup was made, each at the offset that it
had there; then publishers are let in. So a restore is taken up where it stopped, whoever leads.
"""

from itertools import pairwise
from typing import Final

from penstock.logd.acks import Nack
from penstock.logd.batch import SCHEMA_VERSION, decode_body
from penstock.logd.core.body_claims import read_claims
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.publish_options import Refusal
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.frame import FrameHeader, parse_frames
from penstock.logd.log_orders import Frame
from penstock.logd.store import CommitLog, EpochFile

BEING_RESTORED: Final = Refusal(Nack.READ_ONLY, "the stream is being restored from a backup")


def begin(log: CommitLog, epochs: EpochFile, config: StreamConfig, partition: int) -> None:
    """Have a log that was just made begin where the backup does.

    Raises:
        LogFailedError: The disk failed.
    """
    start, _ = config.restored_range(partition)
    if start and log.end_offset == 0 and not epochs.entries:
        log.reset(start)


def read_frames(data: bytes, config: StreamConfig) -> list[Frame]:
    """Frames that somebody sends, checked as those of a publisher are.

    Raises:
        RefusedError: `BAD_BACKUP`.
    """
    try:
        frames = parse_frames(data)
        for header, body in frames:
            _check_frame(header, body, config.batch_decoded_bytes_max)
    except CorruptError as error:
        message = f"these are no frames of a backup: {error}"
        raise RefusedError("BAD_BACKUP", message, stream=config.name) from None
    if not frames:
        raise RefusedError("BAD_BACKUP", "there is no frame", stream=config.name)
    return frames


def _check_frame(header: FrameHeader, body: bytes, decoded_bytes_max: int) -> None:
    rows, size = read_claims(body)
    if size > decoded_bytes_max:
        raise CorruptError(f"it claims {size} bytes; at most {decoded_bytes_max} are taken")
    if header.schema_version != SCHEMA_VERSION or rows != header.record_count:
        raise CorruptError("its header speaks of other records")
    batch = decode_body(body)
    for name in ("offset_delta", "timestamp", "subject"):
        if batch.column(name).null_count:
            raise CorruptError(f"its column {name} holds nulls")
    deltas = batch.column("offset_delta").to_pylist()
    rising = all(a < b for a, b in pairwise(deltas))
    if deltas and not (rising and deltas[0] >= 0 and deltas[-1] <= header.last_offset_delta):
        raise CorruptError("its offsets are not in its range")


def check_wanted(config: StreamConfig, partition: int, frames: list[Frame], wanted: int) -> None:
    """Refuse frames that are not the next ones.

    Raises:
        RefusedError: `NOT_RESTORING`, `WRONG_OFFSET`.
    """
    _, upto = config.restored_range(partition)
    name = config.name
    if wanted >= upto:
        message = f"partition {partition} of stream {name!r} is not being restored"
        raise RefusedError("NOT_RESTORING", message, stream=name, next_offset=wanted)
    first, last = frames[0][0].base_offset, frames[-1][0].last_offset
    if first != wanted or last >= upto:
        message = f"offsets {first} to {last} of {name!r}: wanted is {wanted}, below {upto}"
        raise RefusedError("WRONG_OFFSET", message, stream=name, next_offset=wanted)
