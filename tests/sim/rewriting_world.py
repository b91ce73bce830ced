"""A log that is rewritten on a disk that loses power, against a list of its records.

One seed picks everything: appends of small real batches under changing epochs, rolls, deletions
from the front, cuts at the end, rewriting of random runs with random records removed, a disk that
fills up or fails, and the power going at a random operation. The model is what each offset holds,
and which offsets were asked to be removed:

- after an opening, the frames tile one range without a hole, and each record is the model's, bit
  for bit;
- a record that nobody asked to remove is there, if it was durable;
- one that was removed does not come back once `swap_in` has returned;
- what was rewritten before a cut does not take the place of what was appended after it;
- between any two steps a reader sees the same, from the list it took before or from a new one.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

from penstock.logd.encryption.cipher import SegmentCipher
from penstock.logd.errors import LogFailedError
from penstock.logd.format.batch import Record, decode_body
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.rows import batch_records
from penstock.logd.storage import CommitLog, LogConfig, Rewriting, SegmentMerger
from tests.sim.disk import MemoryDisk
from tests.sim.power import Power
from tests.support.frames import make_batch_frame

DIRECTORY: Final = Path("/data/logs")
CONFIG: Final = LogConfig(max_segment_bytes=6000, index_interval_bytes=1500, index_save_bytes=700)


class RewritingWorld:
    """One run. Call `run`.

    Args:
        seed: Of everything.
        cuts: Whether the log is cut at its end, too.
        disk: An empty one.
        cipher: Encrypts the log.

    Attributes:
        model: The record of each offset.
        gone: Offsets whose removal was durable.
        going: Offsets whose removal was asked for.
        synced: Everything below is durable.
        counts: How often each rare thing happened.
    """

    def __init__(
        self,
        seed: int,
        *,
        cuts: bool = False,
        disk: MemoryDisk | None = None,
        cipher: SegmentCipher | None = None,
    ) -> None:
        self.random = Random(seed)
        self.disk, self.cipher = disk or MemoryDisk(), cipher
        self.cuts = cuts
        self.disk.make_directory(DIRECTORY.parent)
        self.model: list[Record] = []
        self.epochs: list[int] = []
        self.epoch = 1
        self.gone: set[int] = set()
        self.going: set[int] = set()
        self.synced = self.start_min = self.start_max = 0
        self.counts: Counter[str] = Counter()
        self.power = Power(self.disk)
        self.open()

    def run(self, steps: int) -> None:
        """Take random steps, the power going now and then; look at everything after each loss."""
        for _ in range(steps):
            operations = self.random.randint(3, 60)
            self.power.lasts_until_lost(self.random, operations, self.steps, self.counts)
            self.epoch += 1
            self.open()
            self.check()

    def steps(self) -> None:
        for _ in range(12):
            self.step()

    # Steps.

    def step(self) -> None:
        choices: list[Callable[[], None]] = [self.append, self.rewrite, self.rewrite, self.roll]
        choices += [self.append, self.append, self.delete, self.fill_up, self.break_disk]
        if self.cuts:
            choices.append(self.truncate)
        action = self.random.choice(choices)
        self.counts[action.__name__] += 1
        action()

    def append(self) -> None:
        count = self.random.choice((1, 1, 1, 2, 5))
        base = self.log.end_offset
        records = [
            Record(
                f"t.{self.random.randint(0, 2)}",
                None if self.random.random() < 0.2 else self.random.randbytes(8),
                self.random.randint(-5, 1_000),
                self.random.choice((None, b"", b"k", b"key" * 20)),
                self.random.choice(((), (("H", b"v"), ("H", b"")))),
                self.random.choice((None, "_INBOX.x")),
            )
            for _ in range(count)
        ]
        header, body, _ = make_batch_frame(
            base,
            records,
            epoch=self.epoch,
            producer_id=self.random.choice((bytes(16), b"p" * 16)),
            producer_sequence=base + 1,
        )
        self.model += records
        self.epochs += [self.epoch] * count
        self.log.append([(header, body)])
        self.synced = self.log.sync()

    def roll(self) -> None:
        self.log.roll()

    def delete(self) -> None:
        offset = self.random.randint(self.log.start_offset, self.log.end_offset)
        if self.random.random() < 0.3:
            self.start_max = max(self.start_max, offset)
            self.start_min = self.log.delete_before(offset)

    def truncate(self) -> None:
        """Cut the end off, as a follower does; a frame that compaction has made goes as a whole."""
        start, end = self.log.start_offset, self.log.end_offset
        offset = self.random.randint(max(start, end - 12), end)
        self.synced = 0  # while it goes on, the log may end anywhere down to where that frame began
        self.log.truncate_to(offset)
        end = self.synced = self.log.end_offset
        assert end <= offset
        self.forget_above(end)

    def cut_meanwhile(self) -> bool:
        """Other records at the same offsets, sealed where the old ones were if it comes so."""
        before = self.log.end_offset
        self.truncate()
        was_cut = self.log.end_offset < before
        while self.log.end_offset < before:
            self.append()
        self.roll()
        return was_cut

    def fill_up(self) -> None:
        self.disk.free_bytes = self.random.choice((100, 3000, 1 << 60))

    def break_disk(self) -> None:
        broken = self.random.choice(("sync", "sync_directory", "create", "unlink", "rename"))
        synced = broken == "sync_directory"
        self.power.break_once(broken, lambda path: synced or "swap" in path.name)

    def rewrite(self) -> None:
        """Rewrite a random run of sealed segments without some of its records."""
        sealed = self.log.segments()[:-1]
        if not sealed:
            return
        first = self.random.randrange(len(sealed))
        last = self.random.randint(first, min(len(sealed) - 1, first + 3))
        base, end = sealed[first].base_offset, sealed[last].next_offset
        chance = self.random.choice((0.0, 0.3, 1.0))
        drop = {n for n in range(base, end) if self.random.random() < chance}
        before = self.log.frames(self.log.start_offset)
        seen = [next(before)]  # who reads has taken the list of segments as it is
        self.going |= drop
        rewriting: Rewriting | None = None
        try:
            rewriting = self.log.begin_rewriting(base, end)
            self.copy(rewriting, drop)
            rewriting.finish()
            if self.cuts and self.random.random() < 0.5 and self.cut_meanwhile():
                assert not self.log.swap_in(rewriting)
                rewriting.discard()
                self.counts["cut meanwhile"] += 1
                return
            if self.random.random() < 0.3:
                self.power.goes_after(self.random.randint(1, 14))  # while it takes its place
            assert self.log.swap_in(rewriting), "nobody else removes anything"
            self.gone |= drop
            self.counts["swapped"] += 1
        except LogFailedError:
            raise
        except OSError:
            self.counts["rewriting failed"] += 1
            if rewriting is not None:
                rewriting.discard()
            assert self.log.failure == ""
        seen += list(before)
        self.check_frames(iter(seen), self.log.start_offset, removed=set())
        self.check_frames(self.log.frames(self.log.start_offset), self.log.start_offset)

    def copy(self, rewriting: Rewriting, drop: set[int]) -> None:
        """Fill the new segment."""
        merger = SegmentMerger(
            lambda header, batch: [n not in drop for n, _ in batch_records(header, batch)]
        )
        swap = rewriting.swap
        for header, body in self.log.frames(swap.base_offset, upto=swap.end_offset):
            for frame in merger.take(header, body):
                rewriting.add(*frame)
        for frame in merger.finish():
            rewriting.add(*frame)

    # Checks.

    def check(self) -> None:
        log = self.log
        assert log.recovery.damages == [], log.recovery
        assert self.synced <= log.end_offset <= len(self.model)
        assert self.start_min <= log.start_offset <= max(self.start_min, self.start_max)
        self.check_frames(log.frames(log.start_offset), log.start_offset)
        assert [name for name in self.disk.list_directory(DIRECTORY) if "swap" in name] == []
        self.forget_above(log.end_offset)
        self.synced = log.end_offset
        for finding in log.recovery.findings:
            self.counts[f"row {finding.row}"] += 1

    def forget_above(self, end: int) -> None:
        """What comes at those offsets is other records."""
        del self.model[end:], self.epochs[end:]
        self.gone = {offset for offset in self.gone if offset < end}
        self.going = {offset for offset in self.going if offset < end}

    def check_frames(
        self,
        frames: Iterator[tuple[FrameHeader, bytes]],
        start: int,
        *,
        removed: set[int] | None = None,
    ) -> None:
        """Frames tile the log from `start`; what they hold is the model's, without the removed."""
        removed = self.gone if removed is None else removed
        expected, found = start, set()
        for header, body in frames:
            assert header.base_offset == expected, (header, expected)
            expected = header.next_offset
            for offset, record in batch_records(header, decode_body(body)):
                assert record == self.model[offset], offset
                assert header.leader_epoch == self.epochs[offset]
                found.add(offset)
        assert expected == self.log.end_offset
        assert set(range(start, expected)) - self.going <= found, "a record is lost"
        assert not found & removed, "a removed record came back"

    def open(self) -> None:
        self.log = CommitLog.open(
            DIRECTORY, CONFIG, disk=self.disk, now_ns=lambda: 0, cipher=self.cipher
        )


def run_seed(
    seed: int,
    *,
    cuts: bool = False,
    disk: MemoryDisk | None = None,
    cipher: SegmentCipher | None = None,
) -> Counter[str]:
    """Run one seed; the error says which."""
    try:
        world = RewritingWorld(seed, cuts=cuts, disk=disk, cipher=cipher)
        world.run(5)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return world.counts
