"""The file of what an intake remembers: what it keeps, and that it finds every changed byte."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.core.dedup import Dedup
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.producers import ProducerState
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.memory import FILE_NAME, Memory
from penstock.logd.store import Checkpoint

GOLDEN = Path("tests/golden/logd/memory-1")
CONFIG = StreamConfig(name="logs", subject="t.>", dedup_window_s=10**6)
INT64 = st.integers(-(2**63), 2**63 - 1)
MEMORY = Memory(
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
    memory = Memory(
        offset,
        (list(producers), list(producers.values())),
        (list(ids), list(ids.values())),
        last,
        whole,
        lost=offset // 2,
    )
    memory.save(directory)
    assert Memory.load(directory) == memory


def test_nothing_is_read_before_the_first_time(tmp_path: Path) -> None:
    assert Memory.load(tmp_path) is None


def test_what_is_remembered_comes_back_in_the_order_of_its_offsets() -> None:
    dedup = Dedup(CONFIG)
    MEMORY.restore(dedup)
    assert (dedup.last_message_id, dedup.whole, dedup.lost) == (b"two", True, 3)
    assert dedup.message_ids.offset(b"two", 50) == 5
    assert [list(dedup.message_ids._ids), list(dedup.producers._states)] == [
        [b"\xff one", b"two"],
        [bytes(16), b"p" * 16],
    ]


def test_a_file_of_version_1_is_read() -> None:
    """Arrow may write other bytes one day; those of today must be read then, too."""
    assert Memory.load(GOLDEN) == MEMORY


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
            Memory.load(tmp_path)
    for length in (0, 3, 15, 16, 40, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptError):
            Memory.load(tmp_path)


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    MEMORY.save(tmp_path)
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())
    data[4] = 2
    path.write_bytes(data)
    with pytest.raises(RefusedError, match="version 2 is not known"):
        Memory.load(tmp_path)


def test_what_earlier_releases_wrote_down_is_read(tmp_path: Path) -> None:
    rows = {
        "offset": 7,
        "producers": [[bytes(16).hex(), 3, 1, 40], [(b"p" * 16).hex(), 9, 6, 50]],
        "ids": [[b"one".hex(), 4, 45]],
        "last_message_id": b"one".hex(),
        "complete": True,
    }
    Checkpoint(tmp_path / FILE_NAME).save(rows)
    assert Memory.load(tmp_path) == Memory(
        7,
        ([bytes(16), b"p" * 16], [ProducerState(3, 1, 40), ProducerState(9, 6, 50)]),
        ([b"one"], [(4, 45)]),
        b"one",
        whole=True,
    )
    Checkpoint(tmp_path / FILE_NAME).save({"offset": 7})
    with pytest.raises(CorruptError, match="cannot be read"):
        Memory.load(tmp_path)
