"""A compacted log on a disk that loses power, against a dictionary of what each key holds.

One seed picks everything: keyed and keyless records, tombstones, rolls, retention, what is
committed, how much memory a pass has, the time that passes, faults of the disk, and the power going
at a random operation. After a power loss the log is cut to the high watermark, as a new leader may
ask for. Then:

- frames tile one range, and every record that is there is the one that was appended, bit for bit;
- a record is missing only if a later one of its key is committed, or if it is a tombstone whose
  time has come, or if retention deleted it;
- where a tombstone is gone, so is every earlier record of its key;
- in the end, with the disk sound and time enough, sealed segments hold each key at most once and no
  tombstone.
"""

import contextlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

from penstock.logd.compaction.cleaner import Pace
from penstock.logd.compaction.policy import KEY_BYTES
from penstock.logd.compaction.scheduler import CompactionScheduler, CompactionSettings, Wants
from penstock.logd.errors import LogFailedError
from penstock.logd.format.batch import Record, decode_body
from penstock.logd.format.rows import batch_records
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.storage import CommitLog, LogConfig
from tests.sim.disk import MemoryDisk
from tests.sim.power import Power
from tests.support.frames import make_batch_frame

DIRECTORY: Final = Path("/data/logs")
CONFIG: Final = LogConfig(max_segment_bytes=5000, index_interval_bytes=1500, index_save_bytes=700)
RETENTION_S: Final = 50
SECOND: Final = 1_000_000_000


class CompactionWorld:
    """One run. Call `run`.

    Attributes:
        model: The record of each offset.
        appended_ns: When each was appended.
        start_max: Greatest start offset that was asked for.
        counts: How often each rare thing happened.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ns = 1000 * SECOND
        self.disk = MemoryDisk()
        self.disk.make_directory(DIRECTORY.parent)
        self.model: list[Record] = []
        self.appended_ns: list[int] = []
        self.high_watermark = -1
        self.start_max = 0
        self.power = Power(self.disk)
        self.compact = self.random.random() < 0.8
        self.keys = self.random.choice((2, 5, 40))
        memory_keys = self.random.choice((2, 10, 1000))
        self.settings = CompactionSettings(
            interval_s=1,
            memory_bytes=memory_keys * KEY_BYTES,
            dirty_ratio=self.random.choice((0.01, 0.5, 1.0)),
        )
        self.counts: Counter[str] = Counter()
        self.open()

    # The clock, for everything.

    def unix_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND) + 1

    def run(self, rounds: int) -> None:
        """Work, lose power, look; in the end everything must have been cleaned."""
        for _ in range(rounds):
            operations = self.random.randint(5, 200)
            self.power.lasts_until_lost(self.random, operations, self.steps, self.counts)
            self.open()
            self.check()
        self.settle()

    def steps(self) -> None:
        for _ in range(15):
            self.step()

    def open(self) -> None:
        self.log = CommitLog.open(DIRECTORY, CONFIG, disk=self.disk, now_ns=self.unix_ns)
        if self.high_watermark + 1 < self.log.end_offset and self.random.random() < 0.5:
            cut = max(self.high_watermark + 1, self.log.start_offset)
            with contextlib.suppress(LogFailedError):
                self.log.truncate_to(cut)
                self.counts["cut"] += 1
        del self.model[self.log.end_offset :], self.appended_ns[self.log.end_offset :]
        self.high_watermark = min(self.high_watermark, self.log.end_offset - 1)
        config = StreamConfig(
            name="logs",
            subject="t.>",
            compact=self.compact,
            tombstone_retention_s=RETENTION_S,
            max_segment_bytes=CONFIG.max_segment_bytes,
        )
        self.compaction_scheduler = CompactionScheduler(
            self.log,
            config,
            self.settings,
            high_watermark=lambda: self.high_watermark,
            wants=Wants(memory=self.remember, seal=self.roll),
            clock=self,
        )
        self.pace = Pace(1 << 40, self, wait=self.wait, stopped=lambda: False)

    def remember(self) -> None:
        self.compaction_scheduler.snapshot_saved(self.log.end_offset)

    # Steps.

    def step(self) -> None:
        choices = [
            (self.append, 6),
            (self.roll, 3),
            (self.work, 8),
            (self.pass_time, 2),
            (self.delete, 1),
            (self.fill_up, 1),
            (self.break_disk, 1),
        ]
        (action,) = self.random.choices([a for a, _ in choices], [weight for _, weight in choices])
        self.counts[action.__name__] += 1
        action()

    def append(self) -> None:
        for _ in range(self.random.choice((1, 3))):
            self.append_frame()
        self.log.sync()
        if self.random.random() < 0.7:
            self.high_watermark = self.random.randint(self.high_watermark, len(self.model) - 1)

    def append_frame(self) -> None:
        records = []
        for _ in range(self.random.choice((1, 1, 4))):
            key = b"%d" % self.random.randrange(self.keys)
            record = Record(
                "t.a",
                None if self.random.random() < 0.3 else self.random.randbytes(6),
                self.random.randint(0, 100),
                None if self.random.random() < 0.15 else key * self.random.choice((1, 40)),
            )
            records.append(record)
        header, body, _ = make_batch_frame(self.log.end_offset, records)
        self.model += records
        self.appended_ns += [self.now_ns] * len(records)
        self.log.append([(header, body)])

    def roll(self) -> None:
        self.log.roll()

    def work(self) -> None:
        self.now_ns += SECOND
        self.compaction_scheduler.work(self.pace)

    def pass_time(self) -> None:
        self.now_ns += self.random.randint(1, RETENTION_S) * SECOND

    def delete(self) -> None:
        if self.random.random() < 0.2:
            offset = self.random.randint(self.log.start_offset, self.high_watermark + 1)
            self.start_max = max(self.start_max, offset)
            self.log.delete_before(offset)

    def fill_up(self) -> None:
        self.disk.free_bytes = self.random.choice((2000, 1 << 60))

    def break_disk(self) -> None:
        broken = self.random.choice(("sync", "sync_directory", "create", "rename"))
        self.power.break_once(broken, lambda path: "swap" in path.name)

    # Checks.

    def read(self) -> dict[int, Record]:
        """What is there, each record checked against the model."""
        expected, found = self.log.start_offset, {}
        for header, body in self.log.frames(expected):
            assert header.base_offset == expected
            expected = header.next_offset
            for offset, record in batch_records(header, decode_body(body)):
                assert record == self.model[offset], offset
                found[offset] = record
        assert expected == self.log.end_offset
        return found

    def check(self) -> None:
        assert self.log.recovery.damages == []
        assert self.log.end_offset > self.high_watermark
        assert self.log.start_offset <= self.start_max
        found = self.read()
        last: dict[bytes, int] = {}
        for offset in reversed(range(self.log.start_offset, self.log.end_offset)):
            record = self.model[offset]
            key = record.key
            if key is not None and offset not in found and record.value is None:
                assert not [
                    n for n in range(self.log.start_offset, offset) if n in found
                    and self.model[n].key == key
                ], f"tombstone {offset} is gone, what it removed is not"  # fmt: skip
            if offset not in found:
                assert key is not None, f"keyless record {offset} is gone"
                assert offset <= self.high_watermark
                assert self.compact
                waited_s = (self.now_ns - self.appended_ns[offset]) // SECOND
                expired = record.value is None and waited_s >= RETENTION_S
                assert key in last or expired, f"the last record of {key!r}, {offset}, is gone"
            if key is not None and offset <= self.high_watermark:
                last[key] = offset

    def settle(self) -> None:
        """Without faults and with time enough, sealed segments come to be clean."""
        self.high_watermark = self.log.end_offset - 1
        self.log.roll()
        for _ in range(3):
            self.now_ns += (RETENTION_S + 1) * SECOND
            for _ in range(300):
                before = (
                    self.compaction_scheduler.counts.last_ns,
                    self.compaction_scheduler.counts.passes,
                )
                self.work()
                if before == (
                    self.compaction_scheduler.counts.last_ns,
                    self.compaction_scheduler.counts.passes,
                ):
                    break
            else:
                raise AssertionError("compaction does not come to an end")
        self.check()
        assert self.compaction_scheduler.counts.failures == 0
        if self.compact:
            keyed = [record for record in self.read().values() if record.key is not None]
            assert not [record for record in keyed if record.value is None], "old tombstones"
            assert len({record.key for record in keyed}) == len(keyed), "keys come twice"
            self.counts["clean"] += 1
        self.counts["removed"] += self.compaction_scheduler.counts.records_removed


def run_seed(seed: int) -> Counter[str]:
    """Run one seed; the error says which."""
    try:
        world = CompactionWorld(seed)
        world.run(4)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return world.counts
