"""The system clock is set an hour forward or back: what README says of it holds."""

from pathlib import Path

import pytest

from penstock.logd.format.batch import decode_body
from penstock.logd.format.headers import format_headers
from penstock.logd.format.rows import batch_records
from penstock.logd.intake.intake import Arrived, Intake
from penstock.logd.intake.turn import AckLater, Append, Message, PendingAck
from penstock.logd.metadata.retention_policy import Retention
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.log_writer import build_frames
from penstock.logd.partition.rebuild import rebuild_intake
from penstock.logd.partition.retention import RetentionTask
from penstock.logd.storage import CommitLog, LogConfig

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
NOON = 500_000 * HOUR
CONFIG = StreamConfig(
    name="logs", subject="t.>", dedup_window_s=120, retention=Retention(age_s=1800)
)


class World:
    """A log, its intake, and a clock that is set."""

    def __init__(self, directory: Path) -> None:
        self.now_ns = NOON
        self.since_start_ns = 0
        self.directory = directory
        self.start()

    def unix_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.since_start_ns

    def start(self) -> None:
        """As after kill -9."""
        self.log = CommitLog.open(
            self.directory, LogConfig(index_interval_bytes=1), now_ns=self.unix_ns
        )
        self.intake = Intake(
            CONFIG, next_offset=self.log.end_offset, epoch=1, streams_for=lambda _: ()
        )
        rebuild_intake(self.intake, self.log, self.now_ns)
        self.retention_task = RetentionTask(
            self.log, CONFIG, interval_s=1, high_watermark=lambda: 1 << 40, clock=self
        )

    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND
        self.since_start_ns += seconds * SECOND

    def publish(self, name: bytes) -> bool:
        """Whether it was stored; else it was a duplicate."""
        headers = format_headers((("Nats-Msg-Id", name),))
        message = Message(b"t.a", b"r", headers, name)
        effects = self.intake.handle(Arrived([message], 1 << 20), self.now_ns)
        for effect in effects:
            if isinstance(effect, Append):
                self.log.append(list(build_frames(effect.items, epoch=1)))
                self.log.sync()
                return True
        (later,) = [effect for effect in effects if isinstance(effect, AckLater)]
        (ack,) = later.acks
        assert isinstance(ack, PendingAck)
        assert ack.duplicate
        return False

    def look(self) -> int:
        """Let retention do what is due; where the log begins then."""
        self.retention_task.snapshot_saved(1 << 40)
        for _ in range(10):
            self.wait(1)
            self.retention_task.step()
        return self.log.start_offset

    def times(self) -> list[int]:
        return [
            record.timestamp_ns
            for header, body in self.log.frames(self.log.start_offset)
            for _, record in batch_records(header, decode_body(body))
        ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "log")


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_time_is_looked_up_as_the_first_record_that_is_not_earlier(
    world: World,
    jump: int,
    restart: bool,
) -> None:
    for number in range(12):
        world.publish(b"%d" % number)
        world.wait(7)
        if number in (3, 7):
            world.now_ns += jump if number == 3 else -jump
            world.log.roll()
        if restart and number % 4 == 1:
            world.start()
    times = world.times()
    assert len(times) == 12
    for time_ns in {t + off for t in times for off in (-1, 0, 1)} | {0, NOON + 9 * HOUR}:
        later = [offset for offset, t in enumerate(times) if t >= time_ns]
        assert world.log.offset_for_timestamp(time_ns) == (later[0] if later else 12)


@pytest.mark.parametrize("restart", [False, True])
def test_ids_outlive_a_clock_that_is_set_back_and_are_forgotten_in_the_end(
    world: World,
    restart: bool,
) -> None:
    assert world.publish(b"a")
    world.now_ns -= HOUR
    assert world.publish(b"b")
    if restart:
        world.start()
    world.wait(119)
    assert not world.publish(b"a")
    assert not world.publish(b"b")
    world.wait(2)
    assert world.publish(b"b"), "its own window is over, whatever came before it"
    # After a restart, what is of the future counts as of the restart.
    assert world.publish(b"a") == restart
    world.wait(3600 + 120)
    assert world.publish(b"a")
    assert len(world.intake.dedup.message_ids) == 1


def test_a_clock_that_is_set_forward_ends_the_windows_that_it_passes(world: World) -> None:
    assert world.publish(b"a")
    world.now_ns += HOUR
    assert world.publish(b"a")
    assert not world.publish(b"a")
    world.now_ns -= HOUR
    assert not world.publish(b"a")


def test_a_clock_that_is_set_forward_makes_records_old_and_back_again_keeps_the_rest(
    world: World,
) -> None:
    world.publish(b"old")
    world.log.roll()
    world.publish(b"kept")
    assert world.look() == 0
    world.now_ns += HOUR
    world.publish(b"of the future")
    assert world.look() == 1, "the second one's segment is not too old, for the third is in it"
    world.now_ns -= HOUR
    world.publish(b"now")
    assert world.look() == 1
    world.now_ns += 2 * HOUR
    for _ in range(3):
        world.look()
    assert world.log.start_offset == 4, "all are too old"


def test_records_of_before_a_clock_was_set_back_stay_until_they_are_too_old_by_the_clock(
    world: World,
) -> None:
    world.publish(b"of the future")
    world.log.roll()
    world.now_ns -= HOUR
    world.publish(b"now")
    world.log.roll()
    world.wait(1800)
    assert world.look() == 0, "the first record is half an hour in the future"
    world.wait(3600)
    assert world.look() == 2


def test_records_of_the_future_that_a_later_one_follows_count_as_of_its_arrival(
    world: World,
) -> None:
    world.publish(b"of the future")
    world.now_ns -= HOUR
    world.publish(b"now")
    world.log.roll()
    world.wait(1800)
    assert world.look() == 2
