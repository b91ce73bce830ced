"""Which partition a key belongs to: the same for ever, and about as many keys to each."""

from collections import Counter

import pytest

from penstock.logd.publisher import partition_of, partition_subject


def test_a_key_belongs_to_its_crc_modulo_the_partitions() -> None:
    """The check value of CRC-32 (IEEE), as go-liftbridge has it: both put a key in one place."""
    assert partition_of(b"123456789", 1 << 32) == 0xCBF43926
    assert [partition_of(b"123456789", count) for count in (1, 2, 3, 7)] == [0, 0, 2, 5]
    assert partition_of(b"", 5) == 0


@pytest.mark.parametrize("partitions", [2, 3, 4, 8, 12, 32])
@pytest.mark.parametrize("form", ["%d", "user-%d", "%08x", "order/%d/line", "%d@example.org"])
def test_keys_are_spread_about_evenly(partitions: int, form: str) -> None:
    count = 500 * partitions
    found = Counter(partition_of((form % n).encode(), partitions) for n in range(count))
    assert len(found) == partitions
    assert 350 < min(found.values()) <= max(found.values()) < 650


def test_partition_0_has_the_subject_itself() -> None:
    found = {partition_subject("t.a", b"%d" % n, 3) for n in range(50)}
    assert found == {"t.a", "t.a.1", "t.a.2"}
    assert partition_subject("t.a", b"123456789", 7) == "t.a.5"
    assert partition_subject("t.a", None, 1) == "t.a"
    with pytest.raises(ValueError, match="needs a key"):
        partition_subject("t.a", None, 2)
    with pytest.raises(ValueError, match="at least one"):
        partition_subject("t.a", b"k", 0)
