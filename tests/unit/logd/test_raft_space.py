"""A Raft log whose disk has no space for a while: the same step again, and nothing is lost."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.logd.errors import UnavailableError
from penstock.logd.raft import Entry, EntryKind, HardState, Persist, Snapshot, membership_of
from penstock.logd.raft.node import OutOfSpaceError
from penstock.logd.raft.storage import RaftStorage
from penstock.logd.replication.events import NodeId
from tests.sim.disk import MemoryDisk

DIRECTORY, NODE = Path("/raft"), NodeId("n1")
INITIAL_MEMBERS = membership_of(["n1", "n2", "n3"])
LOTS = 1 << 40


def made() -> tuple[MemoryDisk, RaftStorage]:
    disk = MemoryDisk()
    RaftStorage.create(DIRECTORY, group="g", node=NODE, initial_members=INITIAL_MEMBERS, disk=disk)
    return disk, opened(disk)


def opened(disk: MemoryDisk) -> RaftStorage:
    return RaftStorage.open(DIRECTORY, group="g", node=NODE, disk=disk, max_segment_bytes=600)


def steps(kinds: list[str]) -> list[Persist]:
    found, last = [], 1
    for number, kind in enumerate(kinds, 1):
        first = last if kind == "again" and last > 2 else last + 1
        entries = tuple(Entry(n, 2, EntryKind.COMMAND, b"x" * 60) for n in range(first, first + 2))
        empty = Persist(number, HardState(number + 1, NODE), None, False, entries)
        if kind == "snapshot":
            empty = replace(empty, snapshot=Snapshot(last, 2, INITIAL_MEMBERS, b"state" * 20))
        found.append(empty)
        last = entries[-1].index
    return found


@given(
    st.lists(
        st.tuples(st.sampled_from(["more", "again", "snapshot"]), st.integers(0, 700)),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_what_is_tried_again_is_there_after_a_crash(told: list[tuple[str, int]]) -> None:
    (disk, storage), (_, sound) = made(), (other := made())
    for step, (_, free) in zip(steps([kind for kind, _ in told]), told, strict=True):
        disk.free_bytes = free
        for space in (0, LOTS):
            try:
                storage.persist(step)
                break
            except OutOfSpaceError:
                disk.free_bytes = space
        else:
            disk.free_bytes = LOTS
            storage.persist(step)
        sound.persist(step)
        disk.free_bytes = LOTS
    wanted = opened(other[0]).recovered
    assert opened(disk).recovered == wanted


def test_a_sync_that_fails_is_not_tried_again_whatever_its_error() -> None:
    disk, storage = made()
    disk.fail = lambda operation, _: operation == "sync"
    with pytest.raises(OSError, match="Input/output"):
        storage.persist(steps(["more"])[0])
    disk.fail = lambda *_: False
    with pytest.raises(UnavailableError, match="restart"):
        storage.persist(steps(["more"])[0])
