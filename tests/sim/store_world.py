"""A commit log on a disk that fails, against a list of what was appended.

One seed picks everything: what is appended, when it is synced, rolled, truncated, deleted, when
the disk fills up or fails, when the power goes. The model is a list of bodies, one record each:

- after an opening, the log's frames are exactly `model[start:end]`: no hole, no reordering,
  nothing that was not appended there;
- `end` is not below any offset that `sync` returned;
- `start` is not above what was asked to be deleted;
- a log that was to be reset is empty where it was to begin, or as if nobody had asked.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from penstock.logd.errors import LogFailedError
from penstock.logd.storage import CommitLog, LogConfig
from tests.sim.disk import MemoryDisk
from tests.support.frames import make_frames

DIRECTORY: Final = Path("/data/logs")
CONFIG: Final = LogConfig(max_segment_bytes=4000, index_interval_bytes=600, index_save_bytes=700)
Opener = Callable[..., CommitLog]


@dataclass
class StoreWorld:
    """One run. Call `run`.

    Attributes:
        model: Body of each offset that the log may hold.
        synced: Everything below was said to be durable.
        start_min: Least start offset: what was deleted is gone.
        start_max: Greatest start offset that was asked for.
        counts: How often each rare thing happened.
        resetting: Where the log was to begin again when something failed.
    """

    seed: int
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    opener: Opener = CommitLog.open
    config: LogConfig = CONFIG
    model: list[bytes] = field(default_factory=list)
    synced: int = 0
    start_min: int = 0
    start_max: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    resetting: int | None = None

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.disk.make_directory(DIRECTORY.parent)
        self.log = self._open()

    def run(self, steps: int) -> None:
        """Take random steps, then crash once more and look at everything."""
        actions: list[tuple[Callable[[], None], int]] = [
            (self.append, 40),
            (self.sync, 25),
            (self.roll, 4),
            (self.crash, 6),
            (self.kill, 3),
            (self.close, 2),
            (self.truncate, 3),
            (self.delete, 3),
            (self.reset, 1),
            (self.fill_up, 3),
            (self.break_disk, 4),
            (self.read, 7),
        ]
        chosen = self.random.choices(
            [action for action, _ in actions], [weight for _, weight in actions], k=steps
        )
        for action in chosen:
            self.count(action.__name__)
            try:
                action()
            except LogFailedError:
                self.count("failed")
                self._reopen_after_failure()
        self.crash()
        self.append()
        self.sync()
        self.check()

    # Steps.

    def append(self) -> None:
        bodies = []
        for _ in range(self.random.choice((1, 1, 2, 3, 6))):
            size = self.random.choice((8, 40, 200, 700))
            bodies.append(self.random.randbytes(size) if size < 700 else bytes(size - 4) + b"tail")
        frames = make_frames(self.log.end_offset, bodies)
        assert self.log.end_offset == len(self.model)
        self.model += [body for _, body in frames]
        self.log.append(frames)
        assert self.log.end_offset == len(self.model)

    def sync(self) -> None:
        self.synced = max(self.synced, self.log.sync())

    def roll(self) -> None:
        self.log.roll()
        self.synced = max(self.synced, self.log.synced_offset)

    def crash(self) -> None:
        self.disk.crash(self.random)
        self.log = self._open()
        self.check()

    def kill(self) -> None:
        """The process dies, the machine does not."""
        self._drop_faults()
        self.log = self._open()
        assert self.log.end_offset == len(self.model), "the page cache outlives a process"
        self.check()

    def close(self) -> None:
        self.log.close()
        self._drop_faults()
        if self.random.random() < 0.5:
            self.disk.crash(self.random)
        self.log = self._open()
        self.count("trusted a close" if self.log.was_closed else "did not")
        assert self.log.end_offset == len(self.model)
        self.check()

    def truncate(self) -> None:
        offset = self.random.randint(self.log.start_offset, self.log.end_offset)
        self.synced = min(self.synced, offset)
        self.log.truncate_to(offset)
        assert self.log.end_offset == offset
        self.synced = self.log.synced_offset
        del self.model[offset:]

    def delete(self) -> None:
        offset = self.random.randint(self.log.start_offset, self.log.end_offset)
        self.start_max = max(self.start_max, offset)
        self.start_min = self.log.delete_before(offset)
        assert self.start_min <= offset

    def reset(self) -> None:
        """Begin somewhere else; if it fails on the way, it is done or not when opened again."""
        start = self.random.randint(0, len(self.model) + 5)
        self.resetting = start
        self.log.reset(start)
        assert (self.log.start_offset, self.log.end_offset) == (start, start)
        self.was_reset()

    def was_reset(self) -> None:
        start = self.resetting
        assert start is not None
        self.resetting = None
        del self.model[start:]
        self.model += [b""] * (start - len(self.model))
        self.synced = self.start_min = self.start_max = start

    def fill_up(self) -> None:
        self.disk.free_bytes = self.random.randint(0, 3000)

    def break_disk(self) -> None:
        broken = self.random.choice(
            ("write", "sync", "sync_directory", "create", "unlink", "rename")
        )
        chance = self.random.choice((0.1, 1.0))
        self.disk.fail = lambda operation, _: operation == broken and self.random.random() < chance

    def read(self) -> None:
        start, end = self.log.start_offset, self.log.end_offset
        offset = self.random.randint(start, end)
        upto = self.random.randint(offset, end)
        got = [body for _, body in self.log.frames(offset, upto=upto)]
        assert got == self.model[offset:upto]
        next_offset = offset
        for part in self.log.read(offset, bytes_max=self.random.randint(1, 5000), upto=upto):
            assert part.base_offset == next_offset
            assert len(part.file.read(part.position, part.length)) == part.length
            next_offset = part.next_offset
        assert next_offset <= upto
        assert next_offset > offset or upto == offset

    # Checks.

    def check(self) -> None:
        """The log's frames are the model's; then forget what the log has lost rightly."""
        log = self.log
        assert log.recovery.damages == [], log.recovery
        if log.start_offset == log.end_offset == self.resetting:
            self.was_reset()
        self.resetting = None
        assert self.synced <= log.end_offset <= len(self.model), (self.synced, log.end_offset)
        assert self.start_min <= log.start_offset <= max(self.start_max, self.start_min)
        got = list(log.frames(log.start_offset))
        offsets = [header.base_offset for header, _ in got]
        assert offsets == list(range(log.start_offset, log.end_offset))
        assert [body for _, body in got] == self.model[log.start_offset : log.end_offset]
        del self.model[log.end_offset :]
        assert log.synced_offset == log.end_offset
        self.synced = log.end_offset
        for row in {finding.row for finding in log.recovery.findings}:
            self.count(f"row {row}")

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _open(self) -> CommitLog:
        return self.opener(DIRECTORY, self.config, disk=self.disk, now_ns=lambda: 0)

    def _drop_faults(self) -> None:
        self.disk.fail = lambda _operation, _path: False
        self.disk.free_bytes = 1 << 60

    def _reopen_after_failure(self) -> None:
        readable = self.synced
        got = [body for _, body in self.log.frames(self.log.start_offset)]
        end = min(self.log.synced_offset, self.log.end_offset)
        assert got == self.model[self.log.start_offset : end]
        assert self.log.synced_offset >= min(readable, self.log.end_offset)

        self._drop_faults()
        failed_append = self.log.failure.startswith("append")
        if self.random.random() < 0.5:
            self.disk.crash(self.random)
        elif failed_append:
            del self.model[self.log.end_offset :]  # cut off at once, so nothing of it comes back
        self.log = self._open()
        self.check()


def run_seed(
    seed: int, *, disk: MemoryDisk | None = None, opener: Opener = CommitLog.open
) -> StoreWorld:
    """Run one seed; the error says which."""
    try:
        world = StoreWorld(seed, disk=disk or MemoryDisk(), opener=opener)
        world.run(60)
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return world
