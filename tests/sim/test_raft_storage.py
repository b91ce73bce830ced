"""The Raft storage keeps what it promised through power losses; storages that cut corners do not.

One seed picks the steps a member asks for and where the power goes. After each crash the storage
must have the state before the unfinished step, or the one after it, and nothing else.
`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from typing_extensions import override

from penstock.logd.errors import LogdError
from penstock.logd.raft import (
    Entry,
    EntryKind,
    HardState,
    Persist,
    Snapshot,
    initial_state,
    membership_of,
)
from penstock.logd.raft.snapshots import remove_other_snapshots, write_snapshot
from penstock.logd.replication.events import NodeId
from penstock.logd.storage import File
from tests.sim.disk import MemoryDisk, MemoryFile
from tests.sim.raft_storage import DiskStorage
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "300"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
TWIN_SEEDS = 200
STEPS = 40


class Steps:
    """What a member might ask for next, given what is durable."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.number = 0

    def next(self, storage: DiskStorage) -> Persist:
        random, model = self.random, storage.model
        self.number += 1
        term = model.hard_state.term + random.choice((0, 0, 1))
        hard_state = HardState(term, random.choice((None, NodeId("n"), NodeId("m"))))
        base = model.snapshot.index if model.snapshot else 0
        snapshot, installed = None, False
        last, first = model.last_index, model.last_index + 1
        match random.randrange(8):
            case 0 if last > base:
                index = random.randint(base + 1, last)
                snapshot = self._snapshot(index, model.entries[index - base - 1].term)
            case 1:
                installed = True
                snapshot = self._snapshot(random.randint(base + 1, last + 5), term)
                first = snapshot.index + 1
            case 2 | 3 if last > base:
                first = random.randint(base + 1, last)
            case _:
                pass
        count = random.choice((0, 1, 1, 3, 6))
        entries = tuple(
            Entry(index, term, EntryKind.COMMAND, random.randbytes(random.choice((0, 30, 700))))
            for index in range(first, first + count)
        )
        same = hard_state == model.hard_state
        return Persist(self.number, None if same else hard_state, snapshot, installed, entries)

    def _snapshot(self, index: int, term: int) -> Snapshot:
        data = self.random.randbytes(self.random.choice((0, 900)))
        return Snapshot(index, term, membership_of("nm"), data)


def run_seed(seed: int, make_disk: Callable[[], MemoryDisk] = MemoryDisk) -> Counter[str]:
    """Run one seed; the rows of the recovery table that were met."""
    random = Random(seed)
    rows: Counter[str] = Counter()
    storage = DiskStorage(initial_state(membership_of("nm")), make_disk())
    steps = Steps(random)
    try:
        for _ in range(STEPS):
            if random.random() < 0.15:
                storage.crash([steps.next(storage)] if random.random() < 0.9 else [], random)
                rows.update(finding.row for finding in storage.storage.findings)
            else:
                effect = steps.next(storage)
                if effect.hard_state or effect.snapshot or effect.entries:
                    storage.persist(effect)
        storage.recover()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return rows


def test_storage_has_what_it_promised_after_every_crash() -> None:
    rows: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        rows.update(run_seed(seed))
    if SEEDS >= 300:
        assert {row for row in "CDEI" if rows[row] < 5} == set()


def is_caught(make_disk: Callable[[], MemoryDisk] = MemoryDisk) -> bool:
    for seed in range(TWIN_SEEDS):
        try:
            run_seed(seed, make_disk)
        except (AssertionError, LogdError, OSError):
            return True
    return False


class NoDirectorySync(MemoryDisk):
    """Names are never made durable on purpose."""

    @override
    def sync_directory(self, path: Path) -> None:
        pass


def test_simulation_catches_missing_directory_sync() -> None:
    assert is_caught(NoDirectorySync)


class UnsyncedWal(MemoryFile):
    """A part of the log that says that it is synced before it is."""

    @override
    def sync(self) -> None:
        if not self.path.name.endswith(".wal"):
            super().sync()


class LyingDisk(MemoryDisk):
    """Its snapshots are synced, its log is not."""

    @override
    def open(self, path: Path) -> File:
        return UnsyncedWal(self, path, self.inode(path))

    @override
    def create(self, path: Path) -> File:
        super().create(path)
        return UnsyncedWal(self, path, self.inode(path))


def test_simulation_catches_missing_sync() -> None:
    assert is_caught(LyingDisk)


class HastyDisk(MemoryDisk):
    """With each new part of the log, those before it go, whatever a snapshot has of them."""

    @override
    def create(self, path: Path) -> File:
        if path.suffix == ".wal":
            for name in self.list_directory(path.parent):
                if name.endswith(".wal") and name < path.name:
                    self.unlink(path.parent / name)
        return super().create(path)


def test_simulation_catches_segments_deleted_too_early() -> None:
    assert is_caught(HastyDisk)


def test_simulation_catches_torn_steps_taken_for_damage(code: Mutation) -> None:
    code.replace("penstock.logd.raft.recovery", "_lacks_sector", lambda *_: False)
    assert is_caught()


def test_simulation_catches_old_snapshots_removed_before_the_mark(
    code: Mutation,
) -> None:
    def write_and_remove(directory: Path, snapshot: Snapshot, disk: MemoryDisk) -> None:
        write_snapshot(directory, snapshot, disk)
        remove_other_snapshots(directory, snapshot, disk)

    code.replace("penstock.logd.raft.storage", "write_snapshot", write_and_remove)
    assert is_caught()
