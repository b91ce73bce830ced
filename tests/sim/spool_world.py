"""The collector's spool and checkpoint on a disk that loses what was not synced, against a model.

One seed picks everything: what is put, when it is committed, delivered and checkpointed, when the
disk fails or fills up, when the process is killed or the power goes. After each opening:

- every unit that was promised and not delivered is read again from the cursor on, in its place and
  with its bytes;
- the cursor passes nothing that was not delivered, and the spool is never taken for another one:
  offsets of what was promised are never given to anything else;
- of each sender, what was promised is a repeat, and what is a repeat can be read or was delivered.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.collector.checkpoint.state import State, read_state
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.ledger import Ledger
from penstock.collector.spool.journal import Journal
from penstock.collector.spool.spool import Spool, Unit, decode_unit, sender_id
from penstock.logd.format.frame import NO_PRODUCER
from penstock.logd.storage import Checkpoint
from tests.sim.disk import MemoryDisk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_DIRECTORY: Final = Path("/data/spool")
_BYTES_MAX: Final = 700_000  # segments of 256 KiB
_SENDERS: Final = ("a", "b")


@dataclass
class SpoolWorld:
    """One run. Call `run`.

    Attributes:
        promised: Bytes of each unit that somebody was told is durable, by offset.
        delivered: Offsets below were delivered.
        acked: The last sequence that each sender was told is durable.
        seen: What was ever found in the spool after an opening, by sender and sequence.
        counts: How often each rare thing happened.
    """

    seed: int
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    promised: dict[int, bytes] = field(default_factory=dict)
    delivered: int = 0
    acked: dict[str, int] = field(default_factory=dict)
    seen: set[tuple[bytes, int]] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.disk.make_directory(_DIRECTORY.parent)
        self.disk.make_directory(_DIRECTORY)
        self.checkpoint = Checkpoint(_DIRECTORY.parent / "checkpoint", disk=self.disk)
        self.waiting: list[tuple[asyncio.Future[int], str, int, bytes]] = []

    async def run(self, steps: int) -> None:
        """Take random steps, then lose power once more and look at everything."""
        self._open()
        actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.put, 40),
            (self.commit, 20),
            (self.deliver, 10),
            (self.save, 10),
            (self.lose_power, 6),
            (self.kill, 3),
            (self.die_untold, 3),
            (self.break_disk, 4),
            (self.fill_up, 2),
        ]
        weights = [weight for _, weight in actions]
        for action, _ in self.random.choices(actions, weights, k=steps):
            self.counts[action.__name__] += 1
            await action()
        await self.lose_power()
        self._leave()

    async def put(self) -> None:
        """A sender's next batch, or a unit that nobody can send again."""
        data = self.random.randbytes(self.random.choice((10, 3_000, 90_000)))
        sender = self.random.choice((*_SENDERS, ""))
        last = max(
            [self.acked.get(sender, 0), *(n for _, who, n, _ in self.waiting if who == sender)]
        )
        unit = Unit("app", "unix", data, 1, 99, sender=sender, sequence=last + 1 if sender else 0)
        try:
            future = await self.spool.put(unit, wait=False)
        except SpoolFullError:
            self.counts["full"] += 1
            return
        if future is None:  # it was durable, though its sender was not told
            self.counts["repeat"] += 1
            assert sender, "only what a sender numbers can be a repeat"
            self.acked[sender] = unit.sequence
            return
        self.waiting.append((future, sender, unit.sequence, data))

    async def commit(self) -> None:
        """Whatever the disk says is told to the senders."""
        await self.spool.journal.commit()
        waiting, self.waiting = self.waiting, []
        await asyncio.sleep(0)  # what follows a future's end has its turn
        for future, sender, sequence, data in waiting:
            try:
                offset = future.result()
            except SpoolFailedError:
                self.counts["failed"] += 1
                continue
            assert offset not in self.promised, "an offset was promised twice"
            self.promised[offset] = data
            if sender:
                self.acked[sender] = sequence

    async def deliver(self) -> None:
        """logd has some more; only what is durable is ever read."""
        self.delivered = self.random.randint(self.delivered, self.spool.journal.durable_offset)

    async def save(self) -> None:
        """The checkpoint, and then what it allows to be deleted, as the agent does it."""
        self.state.cursor = self.delivered
        self.state.senders = self.spool.senders.snapshot()
        try:
            self.checkpoint.save(self.state.as_document())
        except OSError:
            self.counts["not saved"] += 1
            return
        await self.spool.journal.delete_before(self.state.cursor)

    async def lose_power(self) -> None:
        self._leave()
        self.disk.crash(self.random)
        self._open()

    async def kill(self) -> None:
        """The page cache stays."""
        self._leave()
        self.disk.fail = lambda _operation, _path: False
        self.disk.free_bytes = 1 << 60
        self._open()

    async def die_untold(self) -> None:
        """A commit is done, and the process ends before anybody hears of it."""
        await self.spool.journal.commit()
        await asyncio.sleep(0)
        await self.kill()

    async def break_disk(self) -> None:
        """Some of the operations until the next crash fail, or the next one only."""
        once, chance = self.random.random() < 0.7, self.random.choice((0.05, 1.0))
        broken = self.random.choice((("write",), ("sync",), ("write", "sync")))

        def fail(operation: str, _: Path) -> bool:
            failing = operation in broken and self.random.random() < chance
            if failing and once:
                self.disk.fail = lambda _operation, _path: False
            return failing

        self.disk.fail = fail

    async def fill_up(self) -> None:
        self.disk.free_bytes = self.random.choice((0, 100, 50_000))

    def _leave(self) -> None:
        self.waiting = []
        assert not self.spool.journal.held().locked(), "something is being written"

    def _open(self) -> None:
        document = self.checkpoint.load()
        self.state = State() if document is None else read_state(document)
        journal = Journal(_DIRECTORY, bytes_max=_BYTES_MAX, disk=self.disk)
        journal.open()
        log = journal.log
        if log.start_offset:
            self.counts["deleted"] += 1
        assert self.state.cursor <= self.delivered, "the cursor passes what was not delivered"
        foreign = self.state.fit_to_spool(log.start_offset, log.end_offset)
        assert not foreign, "the spool is not the one of the checkpoint"
        self.spool = Spool(journal, Ledger(), when_full=lambda _: "drop_newest")
        self.spool.recover(self.state.senders, self.state.cursor)
        self.delivered = max(self.state.cursor, min(self.delivered, log.end_offset))
        self._check()

    def _check(self) -> None:
        log = self.spool.journal.log
        read = {
            header.base_offset: decode_unit(header, body).payload
            for header, body in self.spool.journal.frames(self.state.cursor)
        }
        for offset, data in self.promised.items():
            assert offset < log.end_offset, f"the promised unit {offset} is gone"
            if offset >= self.delivered:
                assert read.get(offset) == data, f"the promised unit {offset} is not what it was"
        self.promised = {n: data for n, data in self.promised.items() if n >= self.delivered}
        # What nobody confirmed may have survived; from now on it is there.
        for offset, data in read.items():
            assert self.promised.setdefault(offset, data) == data
        self._check_senders(log.start_offset)

    def _check_senders(self, start: int) -> None:
        found = [
            (header.producer_id, header.producer_sequence)
            for header in self.spool.journal.log.headers(start)
            if header.producer_id != NO_PRODUCER
        ]
        sequences = set(found)
        assert len(sequences) == len(found), "a batch was taken twice"
        self.seen |= sequences
        for sender in _SENDERS:
            name = sender_id(sender)
            acked = self.acked.get(sender, 0)
            assert self.spool.senders.is_repeat(name, acked) or not acked, "an ack is forgotten"
            following = acked + 1
            while self.spool.senders.is_repeat(name, following):
                assert (name, following) in self.seen, "a repeat of what was never there"
                following += 1


def run_seed(seed: int, *, disk: MemoryDisk | None = None) -> SpoolWorld:
    """One world, run to its end.

    Raises:
        AssertionError: A promise was broken.
    """
    world = SpoolWorld(seed, disk or MemoryDisk())
    asyncio.run(world.run(60))
    return world
