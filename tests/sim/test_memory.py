"""What is remembered is written down on a disk that loses power at every step of that.

Whichever file survives, what is made again from it and the log is what was remembered, also when
the log has not everything any more; and it is what the log alone gives, as long as it has.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.format.headers import format_headers
from penstock.logd.intake.dedup import Dedup
from penstock.logd.intake.intake import Arrived, Intake
from penstock.logd.intake.turn import Append, Message
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.log_writer import build_frames
from penstock.logd.partition.producer_snapshot import FILE_NAME, ProducerSnapshot
from penstock.logd.partition.rebuild import rebuild_intake
from penstock.logd.storage import CommitLog, LogConfig
from tests.sim.disk import MemoryDisk

DIRECTORY = Path("/data/logs")
NOW_NS = 10**18
CONFIG = StreamConfig(
    name="logs", subject="t.>", dedup_window_s=3600, max_dedup_entries=20, max_producers=5
)


class PowerLossError(BaseException):
    """The machine stops in the middle of an operation."""


def fill(log: CommitLog, intake: Intake, random: Random, turns: int) -> None:
    """Plain messages with ids and without, and batches of some producers."""
    for _ in range(turns):
        if random.random() < 0.4:
            rows = build_batch([Record("t.b", b"x", 1)] * random.randint(1, 3))
            body = encode_body(rows)
            described = describe_body(
                body, rows, producer_id=bytes([random.randint(1, 8)]) * 16,
                producer_sequence=log.end_offset + 1,
            )  # fmt: skip
            header = described.at(base_offset=log.end_offset, leader_epoch=1)
            log.append([(header, body)])
            intake.dedup.recall_producer(header, NOW_NS)
            intake.dedup.last_message_id = b""
            intake.next_offset = header.next_offset
        else:
            name = random.randbytes(2).hex().encode()
            headers = format_headers((("Nats-Msg-Id", name),)) if random.random() < 0.8 else b""
            message = Message(b"t.a", b"", headers, b"x")
            for effect in intake.handle(Arrived([message], 1 << 20), NOW_NS):
                assert isinstance(effect, Append)
                log.append(list(build_frames(effect.items, epoch=1)))
    log.sync()


def made_again(disk: MemoryDisk) -> dict[str, Any]:
    log = CommitLog.open(DIRECTORY, LogConfig(), disk=disk)
    intake = new_intake(log)
    rebuild_intake(intake, log, NOW_NS)
    return facts(intake.dedup)


def new_intake(log: CommitLog) -> Intake:
    return Intake(CONFIG, next_offset=log.end_offset, epoch=1, streams_for=lambda _: ())


def facts(dedup: Dedup) -> dict[str, Any]:
    """Everything, in order."""
    return {
        "ids": dedup.message_ids.since(0),
        "producers": [(name, s.sequence, s.offset) for name, s in dedup.producers.since(0)],
        "last": dedup.last_message_id,
    }


def one_run(seed: int, *, whole: bool, operations: int) -> bool:
    """Whether the power went before the file was whole."""
    random, disk = Random(seed), MemoryDisk()
    disk.make_directory(DIRECTORY.parent)
    log = CommitLog.open(DIRECTORY, LogConfig(), disk=disk)
    intake = new_intake(log)
    intake.dedup.whole = whole
    fill(log, intake, random, 25)
    ProducerSnapshot.of(intake).save(DIRECTORY, disk=disk)
    if whole:  # only the file has it now
        log.roll()
        log.delete_before(log.end_offset)
    fill(log, intake, random, 25)
    expected, left = facts(intake.dedup), operations

    def stop(_operation: str, _path: Path) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise PowerLossError
        return False

    disk.fail = stop
    lost = False
    try:
        ProducerSnapshot.of(intake).save(DIRECTORY, disk=disk)
    except PowerLossError:
        lost = True
    disk.crash(random)
    assert made_again(disk) == expected
    return lost


@pytest.mark.parametrize("whole", [False, True])
def test_the_power_may_go_at_any_step(whole: bool) -> None:
    operations = 0
    while all(one_run(seed, whole=whole, operations=operations) for seed in range(12)):
        operations += 1
    assert operations >= 5, "create, write, sync, rename, sync of the directory"


def test_what_was_written_down_gives_what_the_log_gives() -> None:
    for seed in range(40):
        random, disk = Random(seed), MemoryDisk()
        disk.make_directory(DIRECTORY.parent)
        log = CommitLog.open(DIRECTORY, LogConfig(), disk=disk)
        intake = new_intake(log)
        intake.dedup.whole = random.random() < 0.5
        fill(log, intake, random, random.randint(0, 40))
        ProducerSnapshot.of(intake).save(DIRECTORY, disk=disk)
        fill(log, intake, random, random.randint(0, 40))
        from_both = made_again(disk)
        disk.unlink(DIRECTORY / FILE_NAME)
        assert from_both == made_again(disk) == facts(intake.dedup)
