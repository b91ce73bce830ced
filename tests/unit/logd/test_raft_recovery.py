"""Each row of the Raft recovery table, by its letter, and the bytes of the write-ahead log."""

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.logd.errors import CorruptError, RefusedError, UnavailableError
from penstock.logd.format.frame import crc32c
from penstock.logd.raft import Entry, EntryKind, HardState, Persist, Snapshot, membership_of
from penstock.logd.raft.snapshots import decode_snapshot, encode_snapshot
from penstock.logd.raft.storage import RaftStorage
from penstock.logd.raft.wal import FILE_NAME as MARK
from penstock.logd.raft.wal import (
    Item,
    SegmentHead,
    SnapshotMark,
    Truncation,
    decode_record,
    encode_step,
    records_behind,
)
from penstock.logd.replication.events import NodeId
from tests.sim.disk import MemoryDisk

DIRECTORY = Path("/raft")
NODE = NodeId("n1")
INITIAL_MEMBERS = membership_of(["n1", "n2", "n3"])
FIRST = DIRECTORY / f"{1:020}.wal"


def entries(first: int, count: int, size: int = 20) -> tuple[Entry, ...]:
    return tuple(Entry(n, 2, EntryKind.COMMAND, b"x" * size) for n in range(first, first + count))


def step(number: int, *, first: int = 0, count: int = 0, **changes: object) -> Persist:
    empty = Persist(number, None, None, False, entries(first, count) if count else ())
    return replace(empty, **changes)


def snapshot(index: int) -> Snapshot:
    return Snapshot(index, 2, INITIAL_MEMBERS, b"state")


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    RaftStorage.create(DIRECTORY, group="g", node=NODE, initial_members=INITIAL_MEMBERS, disk=disk)
    return disk


def opened(disk: MemoryDisk, *, max_segment_bytes: int = 1 << 20, group: str = "g") -> RaftStorage:
    return RaftStorage.open(
        DIRECTORY, group=group, node=NODE, disk=disk, max_segment_bytes=max_segment_bytes
    )


def rows(storage: RaftStorage) -> str:
    return "".join(finding.row for finding in storage.findings)


def change(disk: MemoryDisk, path: Path, how: Callable[[bytearray], None]) -> None:
    """Change a file's bytes behind the storage's back."""
    inode = disk.names[path]
    assert inode is not None
    how(inode.seen)


def flip(position: int) -> Callable[[bytearray], None]:
    def flip_one(data: bytearray) -> None:
        data[position] ^= 0x10

    return flip_one


def test_founded_member_has_the_founding_entry(disk: MemoryDisk) -> None:
    recovered = opened(disk).recovered
    assert recovered.hard_state == HardState(1, None)
    assert recovered.entries == (Entry(1, 1, EntryKind.MEMBERSHIP, INITIAL_MEMBERS.encode()),)


def test_joining_member_has_nothing() -> None:
    disk = MemoryDisk()
    RaftStorage.create(DIRECTORY, group="g", node=NODE, initial_members=None, disk=disk)
    recovered = opened(disk).recovered
    assert (recovered.hard_state, recovered.snapshot, recovered.entries) == (HardState(), None, ())


def test_state_is_never_made_over_another(disk: MemoryDisk) -> None:
    with pytest.raises(RefusedError, match="not empty"):
        RaftStorage.create(DIRECTORY, group="g", node=NODE, initial_members=None, disk=disk)


def test_row_a_nothing_there() -> None:
    with pytest.raises(RefusedError) as refused:
        opened(MemoryDisk())
    assert refused.value.code == "NO_STATE"


def test_row_b_state_of_another_group(disk: MemoryDisk) -> None:
    with pytest.raises(RefusedError) as refused:
        opened(disk, group="other")
    assert refused.value.code == "OTHER_MEMBER"


def test_row_c_temporary_file(disk: MemoryDisk) -> None:
    disk.create(DIRECTORY / "snapshot-1.tmp")
    assert rows(opened(disk)) == "C"
    assert rows(opened(disk)) == ""


@pytest.mark.parametrize("lost", ["cut", "sector"])
def test_row_d_torn_step_is_cut_off(disk: MemoryDisk, lost: str) -> None:
    storage = opened(disk)
    storage.persist(step(1, first=2, count=1))
    mark = disk.names[DIRECTORY / MARK]
    assert mark
    before = bytes(mark.seen)
    storage.persist(step(2, first=3, count=3, hard_state=HardState(2, NODE)))
    mark.seen[:] = before

    def tear(data: bytearray) -> None:
        if lost == "cut":
            del data[-1:]
        else:
            data[512:1024] = bytes(len(data[512:1024]))

    change(disk, FIRST, tear)
    storage = opened(disk)
    assert rows(storage) == "D"
    assert storage.recovered.hard_state == HardState(1, None)  # the step is gone as a whole
    assert [entry.index for entry in storage.recovered.entries] == [1, 2]
    storage.persist(step(1, first=3, count=1))
    assert rows(opened(disk)) == ""


def test_row_e_segment_that_was_never_synced(disk: MemoryDisk) -> None:
    storage = opened(disk)
    storage.persist(step(1, first=2, count=1))
    disk.create(DIRECTORY / f"{5:020}.wal")
    storage = opened(disk)
    assert rows(storage) == "E"
    assert [entry.index for entry in storage.recovered.entries] == [1, 2]


def test_row_f_rot_below_the_mark_is_no_torn_step(disk: MemoryDisk) -> None:
    opened(disk).persist(step(1, first=2, count=1))
    change(disk, FIRST, lambda data: data.__delitem__(slice(-1, None)))
    with pytest.raises(CorruptError, match=r"row F.*below .* durable.*must not take part"):
        opened(disk)


def test_row_f_rot_before_later_steps_without_a_mark(disk: MemoryDisk) -> None:
    storage = opened(disk)
    for number in range(1, 4):
        storage.persist(step(number, first=number + 1, count=1))
    disk.unlink(DIRECTORY / MARK)
    change(disk, FIRST, flip(130))
    with pytest.raises(CorruptError, match=r"row F.*written later"):
        opened(disk)


def test_row_f_changed_bit_in_the_last_step_without_a_mark(disk: MemoryDisk) -> None:
    opened(disk).persist(step(1, first=2, count=1))
    disk.unlink(DIRECTORY / MARK)
    change(disk, FIRST, flip(-5))
    with pytest.raises(CorruptError, match=r"row F.*something else than a power loss"):
        opened(disk)


def test_row_f_damage_in_a_finished_segment(disk: MemoryDisk) -> None:
    storage = opened(disk, max_segment_bytes=100)
    storage.persist(step(1, first=2, count=1))
    storage.persist(step(2, first=3, count=1))
    change(disk, FIRST, flip(60))
    with pytest.raises(CorruptError, match=r"row F.*finished"):
        opened(disk)


def test_row_g_missing_segment(disk: MemoryDisk) -> None:
    storage = opened(disk, max_segment_bytes=100)
    for number in range(1, 4):
        storage.persist(step(number, first=number + 1, count=1))
    segments = [name for name in disk.list_directory(DIRECTORY) if name.endswith(".wal")]
    assert len(segments) >= 3
    disk.unlink(DIRECTORY / segments[1])
    with pytest.raises(CorruptError, match="row G"):
        opened(disk)
    disk.unlink(DIRECTORY / segments[-1])
    with pytest.raises(CorruptError, match="row G"):
        opened(disk)
    for name in disk.list_directory(DIRECTORY):
        if name.endswith(".wal"):
            disk.unlink(DIRECTORY / name)
    with pytest.raises(CorruptError, match="row G"):
        opened(disk)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_row_h_snapshot_is_never_taken_for_an_empty_state(disk: MemoryDisk, how: str) -> None:
    storage = opened(disk)
    storage.persist(step(1, first=2, count=4))
    storage.persist(step(2, snapshot=snapshot(3)))
    [name] = [name for name in disk.list_directory(DIRECTORY) if name.startswith("snapshot")]
    if how == "missing":
        disk.unlink(DIRECTORY / name)
    else:
        change(disk, DIRECTORY / name, flip(-1))
    with pytest.raises(CorruptError, match="row H"):
        opened(disk)


def test_row_i_snapshot_that_nothing_names(disk: MemoryDisk) -> None:
    file = disk.create(DIRECTORY / f"snapshot-{9:020}-{2:020}")
    file.write(0, [encode_snapshot(snapshot(9))])
    storage = opened(disk)
    assert rows(storage) == "I"
    assert storage.recovered.snapshot is None


def test_row_j_entries_that_do_not_join(disk: MemoryDisk) -> None:
    opened(disk)
    later = encode_step(list(entries(7, 1)), sequence=4, step=2)
    change(disk, FIRST, lambda data: data.extend(later))
    with pytest.raises(CorruptError, match=r"row J.*entry 7 follows on 1"):
        opened(disk)


def test_row_k_later_format(disk: MemoryDisk) -> None:
    def raise_version(data: bytearray) -> None:
        struct.pack_into("<I", data, 36, 2)
        length = struct.unpack_from("<I", data, 4)[0]
        struct.pack_into("<I", data, 8, crc32c(bytes(data[12 : 37 + length])))

    change(disk, FIRST, raise_version)
    with pytest.raises(RefusedError) as refused:
        opened(disk)
    assert refused.value.code == "UNKNOWN_FORMAT"


def test_old_segments_go_with_a_snapshot(disk: MemoryDisk) -> None:
    storage = opened(disk, max_segment_bytes=300)
    for number in range(1, 20):
        storage.persist(step(number, first=number + 1, count=1))
    many = len(disk.list_directory(DIRECTORY))
    storage.persist(step(20, snapshot=snapshot(18), hard_state=HardState(7, NODE)))
    assert len(disk.list_directory(DIRECTORY)) < many - 3
    recovered = opened(disk).recovered
    assert recovered.snapshot == snapshot(18)
    assert [entry.index for entry in recovered.entries] == [19, 20]
    assert recovered.hard_state == HardState(7, NODE)


def test_state_survives_on_a_real_disk(tmp_path: Path) -> None:
    directory = tmp_path / "raft"
    RaftStorage.create(directory, group="g", node=NODE, initial_members=INITIAL_MEMBERS)
    for life in range(3):
        storage = RaftStorage.open(directory, group="g", node=NODE, max_segment_bytes=400)
        assert storage.findings == ()
        first = 2 + 10 * life
        for number in range(10):
            vote = HardState(life + 2, NODE) if number == 0 else None
            storage.persist(step(number + 1, first=first + number, count=1, hard_state=vote))
        storage.persist(step(11, snapshot=snapshot(first + 4)))
        storage.close()
    recovered = RaftStorage.open(directory, group="g", node=NODE).recovered
    assert recovered.hard_state == HardState(4, NODE)
    assert recovered.snapshot == snapshot(26)
    assert [entry.index for entry in recovered.entries] == [27, 28, 29, 30, 31]


def test_nothing_is_written_after_a_failure(disk: MemoryDisk) -> None:
    storage = opened(disk)
    disk.fail = lambda operation, _: operation == "sync"
    with pytest.raises(OSError, match="Input/output"):
        storage.persist(step(1, first=2, count=1))
    disk.fail = lambda *_: False
    with pytest.raises(UnavailableError, match="restart"):
        storage.persist(step(2, first=3, count=1))


def test_any_changed_byte_is_found_or_harmless(disk: MemoryDisk) -> None:
    """What was promised is there, or opening fails; nothing in between."""
    storage = opened(disk)
    for number in range(1, 5):
        storage.persist(step(number, first=number + 1, count=2, hard_state=HardState(number, NODE)))
    expected = opened(disk).recovered
    inode = disk.names[FIRST]
    assert inode
    sound = bytes(inode.seen)
    for position in range(len(sound)):
        inode.seen[:] = sound
        inode.seen[position] ^= 1 << Random(position).randrange(8)
        with pytest.raises(CorruptError):
            assert opened(disk).recovered != expected
    inode.seen[:] = sound


texts = st.text(max_size=20)
numbers = st.integers(0, 2**64 - 1)
items: st.SearchStrategy[Item] = st.one_of(
    st.builds(SegmentHead, texts, texts.map(NodeId)),
    st.builds(HardState, numbers, st.none() | st.text(min_size=1).map(NodeId)),
    st.builds(Entry, numbers, numbers, st.sampled_from(EntryKind), st.binary(max_size=50)),
    st.builds(Truncation, numbers),
    st.builds(SnapshotMark, numbers, numbers, st.booleans()),
)


@given(st.lists(items, min_size=1, max_size=5), st.integers(1, 1000), st.binary(max_size=40))
def test_step_survives_its_bytes(step: list[Item], sequence: int, noise: bytes) -> None:
    data = encode_step(step, sequence=sequence, step=3)
    position = 0
    got: list[Item] = []
    while record := decode_record(data, position):
        assert record.sequence == sequence + len(got)
        assert record.left == len(step) - len(got) - 1
        got.append(record.item)
        position = record.end
    assert (got, position) == (step, len(data))
    behind = [record.item for record in records_behind(b"P" + noise + data, 0)]
    assert behind[-len(step) :] == step


@given(st.binary(max_size=120))
def test_noise_is_no_record_and_no_snapshot(noise: bytes) -> None:
    assert decode_record(noise, 0) is None
    assert decode_record(b"PRWR" + noise, 0) is None
    with pytest.raises(CorruptError):
        decode_snapshot(noise, where="noise")
