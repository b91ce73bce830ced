"""The file of what an intake remembers: what it keeps, and that it finds every changed byte."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.intake.dedup import Dedup, DedupChecksum, ProducerState
from penstock.logd.intake.intake import Intake
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.producer_snapshot import FILE_NAME, ProducerSnapshot
from penstock.logd.storage import Checkpoint

GOLDEN = Path("tests/golden/logd/memory-1")
CONFIG = StreamConfig(name="logs", subject="t.>", dedup_window_s=10**6)
INT64 = st.integers(-(2**63), 2**63 - 1)
MEMORY = ProducerSnapshot(
    7,
    ([b"p" * 16, bytes(16)], [ProducerState(2**64 - 1, 6, 50), ProducerState(3, 1, 40)]),
    ([b"two", b"\xff one"], [(5, 50), (4, 45)]),
    b"two",
    whole=True,
    lost=3,
)


@given(
    st.dictionaries(st.binary(min_size=16, max_size=16),
                    st.builds(ProducerState, st.integers(1, 2**64 - 1), INT64, INT64)),
    st.dictionaries(st.binary(max_size=300), st.tuples(INT64, INT64)),
    st.binary(),
    st.booleans(),
    st.integers(0, 2**63 - 1),
)  # fmt: skip
def test_what_is_written_down_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    producers: dict[bytes, ProducerState],
    ids: dict[bytes, tuple[int, int]],
    last: bytes,
    whole: bool,
    offset: int,
) -> None:
    directory = tmp_path_factory.mktemp("memory")
    memory = ProducerSnapshot(
        offset,
        (list(producers), list(producers.values())),
        (list(ids), list(ids.values())),
        last,
        whole,
        lost=offset // 2,
        checksum=2**64 - 1 - offset,
    )
    memory.save(directory)
    kept = {name: at for name, at in ids.items() if at[0] < offset}  # the rest may be cut off
    ids_kept = list(kept), list(kept.values())
    assert ProducerSnapshot.load(directory) == replace(memory, ids=ids_kept)


def test_nothing_is_read_before_the_first_time(tmp_path: Path) -> None:
    assert ProducerSnapshot.load(tmp_path) is None


def test_what_is_remembered_comes_back_in_the_order_of_its_offsets() -> None:
    dedup = Dedup(CONFIG)
    MEMORY.restore(dedup)
    assert (dedup.last_message_id, dedup.whole, dedup.lost) == (b"two", True, 3)
    assert dedup.message_ids.offset(b"two", 50) == 5
    ids = [name for name, _ in dedup.message_ids.since(0)]
    producers = [name for name, _ in dedup.producers.since(0)]
    assert [ids, producers] == [[b"\xff one", b"two"], [bytes(16), b"p" * 16]]


def test_a_file_of_version_1_is_read() -> None:
    """Arrow may write other bytes one day; those of today must be read then, too."""
    assert ProducerSnapshot.load(GOLDEN) == MEMORY


def test_every_changed_or_missing_byte_is_found(tmp_path: Path) -> None:
    MEMORY.save(tmp_path)
    path = tmp_path / FILE_NAME
    data = path.read_bytes()
    for position in (*range(16), *range(16, len(data), 37), len(data) - 1):
        if 5 <= position < 8:  # reserved, outside of the CRC
            continue
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises((CorruptError, RefusedError)):
            ProducerSnapshot.load(tmp_path)
    for length in (0, 3, 15, 16, 40, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptError):
            ProducerSnapshot.load(tmp_path)


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    MEMORY.save(tmp_path)
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())
    data[4] = 2
    path.write_bytes(data)
    with pytest.raises(RefusedError, match="version 2 is not known"):
        ProducerSnapshot.load(tmp_path)


def test_what_earlier_releases_wrote_down_is_read(tmp_path: Path) -> None:
    rows = {
        "offset": 7,
        "producers": [[bytes(16).hex(), 3, 1, 40], [(b"p" * 16).hex(), 9, 6, 50]],
        "ids": [[b"one".hex(), 4, 45]],
        "last_message_id": b"one".hex(),
        "complete": True,
    }
    Checkpoint(tmp_path / FILE_NAME).save(rows)
    assert ProducerSnapshot.load(tmp_path) == ProducerSnapshot(
        7,
        ([bytes(16), b"p" * 16], [ProducerState(3, 1, 40), ProducerState(9, 6, 50)]),
        ([b"one"], [(4, 45)]),
        b"one",
        whole=True,
    )
    Checkpoint(tmp_path / FILE_NAME).save({"offset": 7})
    with pytest.raises(CorruptError, match="cannot be read"):
        ProducerSnapshot.load(tmp_path)


def intake_of(*records: tuple[bytes, int]) -> Intake:
    """It has stored ids, and batches of producers (names of 16 bytes) of sequence offset + 1."""
    intake = Intake(CONFIG, next_offset=0, epoch=1, streams_for=lambda _: ())
    intake.dedup.committed(0)
    for name, offset in records:
        if len(name) == 16:
            intake.dedup.record_batch(name, offset + 1, offset, 10 + offset)
        else:
            intake.dedup.record_id(name, offset, 10 + offset)
        intake.next_offset = offset + 1
    return intake


P, Q = b"p" * 16, b"q" * 16
HISTORY = [(b"a", 0), (P, 1), (b"b", 2), (Q, 3), (P, 4), (b"c", 5), (P, 6), (b"d", 7)]


def installed(follower: Intake, memory: ProducerSnapshot) -> None:
    since = follower.next_offset
    merged = memory.merged(ProducerSnapshot.of(follower, whole=True), CONFIG)
    assert follower.dedup.checksum.correct(memory.offset, memory.checksum)
    lost = memory.lost
    follower.dedup.install(*merged, offset=memory.offset, since=since, lost=lost)


def known(
    intake: Intake, end_offset: int | None = None
) -> tuple[dict[bytes, int], dict[bytes, int]]:
    memory = ProducerSnapshot.of(intake, end_offset, whole=True)
    memory = ProducerSnapshot.decode(b"".join(memory.encode()), "here")
    producers = {name: state.sequence for name, state in zip(*memory.producers, strict=True)}
    return {name: at[0] for name, at in zip(*memory.ids, strict=True)}, producers


@pytest.mark.parametrize("begins", range(len(HISTORY) + 1))
@pytest.mark.parametrize("committed", range(len(HISTORY) + 1))
def test_a_replica_that_began_later_remembers_as_its_leader_does(
    begins: int, committed: int
) -> None:
    """Whatever of it may be cut off again, there and here."""
    leader, follower = intake_of(*HISTORY), intake_of()
    follower.next_offset = begins
    follower.dedup.checksum.begin(begins, 0)
    follower.dedup.checksum.end()
    for name, offset in HISTORY[begins:]:
        if len(name) == 16:
            follower.dedup.record_batch(name, offset + 1, offset, 10 + offset)
        else:
            follower.dedup.record_id(name, offset, 10 + offset)
        follower.next_offset = offset + 1
    memory = ProducerSnapshot.of(leader, committed, whole=True)
    if memory.offset < begins:  # only what is committed is removed, so that nobody begins there
        assert not follower.dedup.checksum.correct(memory.offset, memory.checksum)
        return
    follower.dedup.lost = begins
    installed(follower, memory)
    assert known(follower) == known(leader)
    assert follower.dedup.checksum.total == leader.dedup.checksum.total
    assert (follower.dedup.lost, follower.dedup.unsaved) == (0, True)
    for end in range(committed, len(HISTORY) + 1):
        assert known(follower, end) == known(leader, end), end
        assert follower.dedup.checksum.at(end) == leader.dedup.checksum.at(end)


def test_what_is_stored_while_a_copy_is_made_is_not_forgotten() -> None:
    leader, follower = intake_of(*HISTORY[:4]), intake_of(*HISTORY[2:4])
    memory = ProducerSnapshot.of(leader, whole=True)
    since = follower.next_offset
    merged = memory.merged(ProducerSnapshot.of(follower, whole=True), CONFIG)
    for intake in (leader, follower):
        intake.dedup.record_batch(P, 9, 4, 20)
        intake.dedup.record_id(b"late", 5, 21)
        intake.next_offset = 6
    assert follower.dedup.checksum.correct(4, memory.checksum)
    follower.dedup.install(*merged, offset=4, since=since, lost=0)
    assert known(follower) == known(leader)
    assert known(follower, 4) == known(leader, 4)


def test_a_checksum_tells_every_difference() -> None:
    whole = intake_of(*HISTORY).dedup.checksum
    for left_out in range(len(HISTORY)):
        other = intake_of(*HISTORY[:left_out], *HISTORY[left_out + 1 :]).dedup.checksum
        assert other.total != whole.total, HISTORY[left_out]
        for end in range(len(HISTORY) + 1):
            assert (other.at(end) == whole.at(end)) is (end <= left_out), (left_out, end)
    moved = intake_of((b"a", 1), (P, 2)).dedup.checksum
    assert moved.total != intake_of((b"a", 0), (P, 2)).dedup.checksum.total


def test_a_checksum_keeps_what_may_be_cut_off_or_is_waited_for() -> None:
    checksum = DedupChecksum()
    for offset in range(60_000):
        checksum.add(b"%d" % offset, offset)
    before = checksum.at(30_000)
    checksum.kept_from = 30_000
    checksum.committed(59_000)
    assert (checksum.at(30_000), checksum.at(29_000)) == (before, None)
    checksum.kept_from = None
    checksum.committed(41_000)
    assert checksum.at(40_500) is None
    assert checksum.at(41_000) is not None
    checksum.committed(59_000)
    assert checksum.at(52_000) is not None
    assert not checksum.correct(30_000, 1)
