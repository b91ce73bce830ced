"""Retention over a disk that loses power between any two of its steps.

Each seed makes a log, lets retention work until the power goes at a random operation of the disk,
opens the log again and looks: what is left is one stretch without a hole, everything that a limit
keeps is there, everything not committed is there, and what was deleted stays deleted.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from penstock.logd.metadata.retention_policy import Retention
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.retention import RetentionTask
from penstock.logd.storage import CommitLog, LogConfig
from penstock.logd.storage.segment import Segment
from tests.sim.disk import MemoryDisk
from tests.sim.power import Power
from tests.sim.twins import Mutation
from tests.support.frames import make_frame

DIRECTORY = Path("/data/logs")
SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "400"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
SECOND = 1_000_000_000


class World:
    """One log under retention, its clock, and what must be there."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ns = 1000 * SECOND
        self.disk = MemoryDisk()
        self.disk.make_directory(DIRECTORY.parent)
        self.model: list[tuple[bytes, int]] = []
        self.high_watermark = -1
        self.retention = self.random.choice(
            [Retention(bytes=6000), Retention(messages=12), Retention(age_s=30)]
        )
        self.start_min = 0
        self.commit_chance = self.random.choice((0.6, 0.02))
        self.open()

    def unix_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def open(self) -> None:
        config = StreamConfig(name="logs", subject="t.>", retention=self.retention)
        log_config = LogConfig(max_segment_bytes=1500, segment_age_s_max=8)
        self.log = CommitLog.open(DIRECTORY, log_config, disk=self.disk, now_ns=self.unix_ns)
        self.retention_task = RetentionTask(
            self.log,
            config,
            interval_s=1,
            high_watermark=lambda: self.high_watermark,
            clock=self,
        )
        self.retention_task.snapshot_saved(1 << 62)

    def append(self) -> None:
        self.now_ns += self.random.randint(0, 3) * SECOND
        body = self.random.randbytes(self.random.choice((40, 400)))
        frame = make_frame(self.log.end_offset, body, timestamp_ns=self.now_ns)
        self.log.append([frame])
        self.model.append((frame[1], self.now_ns))
        self.log.sync()
        if self.random.random() < self.commit_chance:
            self.high_watermark = self.random.randint(self.high_watermark, len(self.model) - 1)

    def step(self) -> None:
        self.now_ns += SECOND
        self.retention_task.step()
        self.start_min = self.log.start_offset

    def steps(self) -> None:
        for _ in range(60):
            self.append()
            self.step()

    def check(self) -> None:
        start, end = self.log.start_offset, self.log.end_offset
        assert self.log.recovery.damages == []
        assert self.start_min <= start, "what was deleted came back"
        assert start <= self.high_watermark + 1, "deleted above the high watermark"
        got = [(header.base_offset, body) for header, body in self.log.frames(start)]
        assert got == [(n, self.model[n][0]) for n in range(start, end)]
        assert end > self.high_watermark
        del self.model[end:]
        kept = range(start, self.high_watermark + 1)
        if self.retention.messages is not None and start > 0:
            assert len(kept) >= self.retention.messages
        if self.retention.bytes is not None and start > 0:
            assert self.log.size_bytes >= self.retention.bytes
        if self.retention.age_s is not None:
            limit_ns = self.now_ns - self.retention.age_s * SECOND
            assert all(time_ns <= limit_ns for _, time_ns in self.model[:start])


def run_seed(seed: int) -> int:
    world = World(seed)
    power, counts = Power(world.disk), Counter[str]()
    for _ in range(4):
        operations = world.random.randint(20, 300)
        power.lasts_until_lost(world.random, operations, world.steps, counts)
        assert not counts["failed"]
        # What was never durable is not in the model's future.
        world.high_watermark = min(world.high_watermark, world.log.synced_offset - 1)
        world.open()
        world.check()
    return world.log.start_offset


def test_retention_survives_a_power_loss_at_every_step() -> None:
    deleted = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        try:
            deleted += run_seed(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert deleted > 20 * SEEDS


def caught(run: Callable[[int], int]) -> bool:
    for seed in range(60):
        try:
            run(seed)
        except AssertionError:
            return True
    return False


def test_simulation_catches_deletion_above_the_high_watermark(code: Mutation) -> None:
    def init_blindly(really: Any, *args: Any, **options: Any) -> None:
        really(*args, **options | {"high_watermark": lambda: 1 << 62})

    code.wrap(RetentionTask, "__init__", init_blindly)
    assert caught(run_seed)


def test_simulation_catches_deletion_of_what_a_limit_keeps(code: Mutation) -> None:
    code.wrap(CommitLog, "delete_before", lambda really, log, offset: really(log, offset + 8))
    assert caught(run_seed)


def test_simulation_catches_a_deletion_that_is_not_made_durable(code: Mutation) -> None:
    """The log file goes; what would sync the directory then does nothing."""
    code.replace(Segment, "unlink_index", lambda _: None)
    assert caught(run_seed)
