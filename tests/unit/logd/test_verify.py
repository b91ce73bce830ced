"""What replicas hold, as checksums, and what a comparison of them finds."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.logd.api.models import HeldRange
from penstock.logd.api.verification import read_range
from penstock.logd.client.results import HeldRecords
from penstock.logd.client.verify import Comparison, Difference, Kind
from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.format.record_checksums import (
    RecordChecksum,
    checksum_of,
    decode_checksums,
    encode_checksums,
    located,
)
from penstock.logd.storage import CommitLog, LogConfig

NODES = ("a", "b", "c")


def record(number: int, key: bytes | None = None) -> Record:
    return Record("t", b"%d" % number, number, key, (("h", b"x"),), "inbox")


def rows(*numbers: int, base: int = 0) -> pa.RecordBatch:
    return located(build_batch([record(number) for number in numbers]), base)


def test_a_checksum_is_of_records_and_offsets_however_they_lie_in_frames() -> None:
    whole = checksum_of([rows(1, 2, 3)])
    assert whole == checksum_of([rows(1), rows(2, 3, base=1)])
    assert whole == checksum_of([rows(0, 1, 2, 3, base=-1).slice(1)])
    assert whole != checksum_of([rows(1, 2, 4)])
    assert whole != checksum_of([rows(1, 2, 3, base=1)])
    assert checksum_of([]) == checksum_of([rows()]) == ""


def test_records_have_checksums_of_their_own() -> None:
    batch = build_batch([record(1), record(2, b"k"), Record("t", None, 3, b"k"), record(1)])
    encoded = encode_checksums([located(batch, 7)])
    first, keyed, tombstone, again = decode_checksums(encoded)
    assert [first.offset, keyed.offset, tombstone.offset, again.offset] == [7, 8, 9, 10]
    assert first.key is None
    assert keyed.key == tombstone.key
    assert [one.tombstone for one in (first, keyed, tombstone)] == [False, False, True]
    assert first.content == again.content != keyed.content
    with pytest.raises(ValueError, match="no checksums"):
        decode_checksums(encoded[:-1])


def held(
    checksums: Sequence[RecordChecksum], **options: tuple[tuple[int, int], ...]
) -> HeldRecords:
    found = HeldRange(
        incarnation="i",
        start_offset=0,
        high_watermark=99,
        first=0,
        next_offset=100,
        records=len(checksums),
        bytes=0,
        checksum=str(checksums),
        damaged=options.get("damaged", ()),
        missing=options.get("missing", ()),
    )
    return HeldRecords(found, list(checksums))


def at(offset: int, content: str = "", key: str | None = None) -> RecordChecksum:
    named = None if key is None else key.encode()
    return RecordChecksum(offset, named, content.encode(), tombstone=content == "gone")


def compare(*chunks: dict[str, HeldRecords]) -> list[Difference]:
    found = Comparison(NODES)
    for chunk in chunks:
        if found.take(chunk) or found.waits:
            found.take_records(chunk)
    found.end()
    return found.differences


def test_most_nodes_are_right_and_on_equal_votes_the_leader_is() -> None:
    sound = held([at(0), at(1), at(2)])
    other = held([at(0), at(1, "x"), at(2, "x")])
    assert compare({"a": other, "b": sound, "c": sound}) == [Difference(1, 3, Kind.DIFFERS, ("a",))]
    assert compare({"a": sound, "b": other}) == [Difference(1, 3, Kind.DIFFERS, ("b",))]
    assert compare({"a": other, "b": sound}) == [Difference(1, 3, Kind.DIFFERS, ("b",))]
    assert compare({"a": sound, "b": sound, "c": sound}) == []


def test_what_is_damaged_or_has_no_frame_is_told_once() -> None:
    sound = held([at(0), at(1), at(2)])
    hurt = held([at(0)], damaged=((1, 2),), missing=((2, 3),))
    assert compare({"a": sound, "b": hurt}) == [
        Difference(1, 2, Kind.DAMAGED, ("b",)),
        Difference(2, 3, Kind.MISSING, ("b",)),
    ]
    assert compare({"a": hurt}) == [
        Difference(1, 2, Kind.DAMAGED, ("a",)),
        Difference(2, 3, Kind.MISSING, ("a",)),
    ]


def test_a_record_that_compaction_removed_is_no_difference() -> None:
    full = held([at(0, "1", "k"), at(1, "2", "other"), at(2, "3", "k")])
    clean = held([at(1, "2", "other"), at(2, "3", "k")])
    assert compare({"a": full, "b": clean, "c": clean}) == []
    assert compare({"a": clean, "b": full, "c": clean}) == []
    later = {name: held([at(200, "9", "k")]) for name in NODES}
    early = {"a": held([at(0, "1", "k")]), "b": held([]), "c": held([])}
    assert compare(early, later) == []
    gone = {"a": held([at(0, "1", "k"), at(1, "gone", "k")]), "b": held([]), "c": held([])}
    assert compare(gone) == []


def test_a_record_that_nothing_superseded_is_missing() -> None:
    without_key = {"a": held([at(0), at(1)]), "b": held([at(1)])}
    assert compare(without_key) == [Difference(0, 1, Kind.MISSING, ("b",))]
    with_key = {"a": held([at(0, "1", "k"), at(1, "1", "l")]), "b": held([at(1, "1", "l")])}
    assert compare(with_key) == [Difference(0, 1, Kind.MISSING, ("b",))]
    earlier = {"a": held([at(0, "1", "k"), at(1, "2", "k")]), "b": held([at(0, "1", "k")])}
    assert compare(earlier) == [Difference(1, 2, Kind.MISSING, ("b",))], "the last one stays"


def write_log(directory: Path, *counts: int) -> CommitLog:
    """A frame for each count, each in a segment of its own."""
    log = CommitLog.open(directory, LogConfig())
    for count in counts:
        batch = build_batch([record(log.end_offset + number) for number in range(count)])
        body = encode_body(batch)
        header = describe_body(body, batch).at(base_offset=log.end_offset, leader_epoch=1)
        log.append([(header, body)])
        log.sync()
        log.roll()
    return log


def offsets(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_range_is_read_from_and_to_the_middle_of_frames(tmp_path: Path) -> None:
    log = write_log(tmp_path, 3, 3, 3)
    found = read_range(log, 1, 8, bytes_max=1 << 20)
    assert (found.first, found.next_offset) == (1, 8)
    assert offsets(found.batches) == [1, 2, 3, 4, 5, 6, 7]
    assert (found.damaged, found.missing) == ([], [])
    one = read_range(log, 1, 8, bytes_max=1)
    assert (one.next_offset, offsets(one.batches)) == (3, [1, 2])
    nothing = read_range(log, 9, 9, bytes_max=1)
    assert (nothing.first, nothing.next_offset, nothing.batches) == (9, 9, [])


def test_damage_ends_nothing(tmp_path: Path) -> None:
    log = write_log(tmp_path, 2, 2, 2)
    _, path, *_ = sorted(tmp_path.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    found = read_range(log, 0, 6, bytes_max=1 << 20)
    assert found.damaged == [(2, 4)]
    assert (found.next_offset, offsets(found.batches)) == (6, [0, 1, 4, 5])
    with path.open("r+b") as file:
        file.truncate(50)
    cut = read_range(log, 0, 6, bytes_max=1 << 20)
    assert (cut.damaged, offsets(cut.batches)) == ([(2, 4)], [0, 1, 4, 5])


def test_what_retention_deletes_meanwhile_is_not_missing(tmp_path: Path) -> None:
    log = write_log(tmp_path, 2, 2, 2)
    log.delete_before(4)
    found = read_range(log, 1, 6, bytes_max=1 << 20)
    assert (found.first, offsets(found.batches), found.missing) == (4, [4, 5], [])
