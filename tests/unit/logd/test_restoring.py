"""What a stream takes that is made from a backup."""

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest
from typing_extensions import override

from penstock.logd.cli.backup import check_restored
from penstock.logd.client import LogClient, OffsetRange
from penstock.logd.errors import CorruptError, UnavailableError
from penstock.logd.format.batch import Record
from penstock.logd.format.frame import encode_header
from penstock.logd.metadata.streams import Stream, StreamConfig
from penstock.logd.offline.backup import BackupPartition, Manifest
from tests.support.frames import make_batch_frame
from tests.support.lone_replica import open_partition
from tests.support.partition_context import make_context

ROOM = 64 * 1024


def frame(offset: int) -> bytes:
    """One record, larger than all that may wait for the disk."""
    header, body, _ = make_batch_frame(offset, [Record("a", b"x" * 2 * ROOM, 1)])
    return encode_header(header) + body


async def test_frames_larger_than_what_may_wait_are_restored_one_upload_at_a_time(
    tmp_path: Path,
) -> None:
    """They were laid together by compaction, or come from a stream that had more room."""
    config = StreamConfig(
        name="old", subject="a", max_intake_bytes=ROOM, restore_from=(7,), restore_upto=(10,)
    )
    stream = Stream(config=config, incarnation="1")
    partition = await open_partition(stream, tmp_path / "0", make_context())
    assert await partition.restore(frame(7) + frame(8)) == 9
    assert (partition.start_offset, partition.high_watermark) == (7, 8)
    partition.budget.take(1)  # something waits
    with pytest.raises(UnavailableError, match="too many bytes"):
        await partition.restore(frame(9))
    partition.budget.release(1)
    assert await partition.restore(frame(9)) == 10
    partition.close()
    await asyncio.to_thread(partition.finish)


@pytest.mark.parametrize(
    ("found", "kept", "sound"),
    [
        ((5, 20), False, True),
        ((5, 25), False, True),
        ((8, 20), False, False),
        ((5, 19), False, False),
        ((8, 20), True, True),  # what is older went, as it was asked to
        ((20, 20), True, True),
        ((4, 20), True, False),
        ((8, 19), True, False),
    ],
)
def test_what_was_restored_is_what_the_backup_has_but_for_what_limits_let_go(
    found: tuple[int, int], kept: bool, sound: bool
) -> None:
    manifest = Manifest("1", "", "logs", "a", "x", {}, [BackupPartition(5, 20)])

    class Restored(LogClient):
        @override
        def offsets(self, stream: str, partition: int = 0) -> OffsetRange:
            return OffsetRange(*found)

    outcome = nullcontext() if sound else pytest.raises(CorruptError)
    with Restored("127.0.0.1:1") as log, outcome:
        check_restored(log, "logs", manifest, keep_retention=kept)
