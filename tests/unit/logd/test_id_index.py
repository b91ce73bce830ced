"""Which ranges of a log may hold an id: never too few, and few too many."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.logd.errors import CorruptError
from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.ids.filters import (
    HEADER_SIZE,
    FilterHeader,
    bits_of,
    decode_filter,
    encode_filter,
    ids_of,
)
from penstock.logd.ids.index import NAME, IdIndex
from penstock.logd.storage import CommitLog, LogConfig

PER_FRAME = 10


def id_of(number: int) -> str:
    return f"{random.Random(number).getrandbits(128):032x}"


def append(log: CommitLog, numbers: range, *, epoch: int = 1) -> None:
    """Append a frame of some records, each with an id of its own."""
    values = [json.dumps({"kind": "log", "trace_id": id_of(n), "body": "x" * 50}) for n in numbers]
    batch = build_batch([Record("logs", value.encode(), 1) for value in values])
    body = encode_body(batch)
    header = describe_body(body, batch)
    placed = header.at(base_offset=log.end_offset, leader_epoch=epoch)
    log.append([(placed, body)])
    log.sync()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    made = CommitLog.open(tmp_path, LogConfig())
    for first in range(0, 200, PER_FRAME):
        append(made, range(first, first + PER_FRAME))
    yield made
    made.close()


def indexed(log: CommitLog, **limits: int) -> IdIndex:
    index = IdIndex(log, stretch_bytes=4000, **limits)
    parts = 0
    while not index.extend(200, bytes_max=10_000):
        parts += 1
    assert parts > 1, "a bounded part at a time"
    return index


def test_ids_are_those_at_the_root_of_records() -> None:
    values = [
        b'{"trace_id": "a", "record_id": "b", "attributes": {"trace_id": "no"}}',
        b'{"trace_id": 7, "record_id": "' + b"x" * 129 + b'"}',
        None,
        b'{"body": "\\u00e9", "record_id": "\xc3\xa9"}',
    ]
    assert list(ids_of(values)) == ["a", "b", "é"]
    odd = [b"no JSON", b'{"trace_id":\n"c"}', b"\xff", b'["trace_id"]']
    assert list(ids_of([*values, *odd])) == ["a", "b", "é", "c"]


def test_a_filter_has_its_ids_and_hardly_any_other() -> None:
    ids = {id_of(number) for number in range(3000)}
    encoded = encode_filter(ids, 5, 3005, 7)
    header = decode_filter(memoryview(encoded))
    assert (header.first, header.next_offset, header.epoch) == (5, 3005, 7)
    assert header.length == len(encoded)
    bits = encoded[HEADER_SIZE:]

    def has(wanted: str) -> bool:
        return all(bits[bit >> 3] & 1 << (bit & 7) for bit in bits_of(wanted, header.size))

    assert all(map(has, ids))
    wrong = sum(has(id_of(number)) for number in range(10_000, 20_000))
    assert wrong < 200, "16 bits for an id, and two of them set: about 1.4 %"


@pytest.mark.parametrize("at", [0, 4, 5, 9, 13, 20, 60])
def test_a_damaged_filter_is_noticed(at: int) -> None:
    encoded = bytearray(encode_filter({"a", "b"}, 0, 3, 1)) + bytes(100)
    encoded[at] ^= 1
    if at == 60:
        encoded = encoded[:41]
    with pytest.raises(CorruptError):
        decode_filter(memoryview(encoded))


def test_the_range_of_an_id_is_found_and_the_end_is_left_to_the_reader(log: CommitLog) -> None:
    index = indexed(log)
    for number in (0, 57, 120):
        ranges = index.candidates([id_of(number)], 0, 200)
        assert any(first <= number < upto for first, upto in ranges)
        assert sum(upto - first for first, upto in ranges) < 100
    nobody = index.candidates(["nobody"], 0, 200)
    assert sum(upto - first for first, upto in nobody) < 100
    append(log, range(200, 200 + PER_FRAME))
    index.extend(210, bytes_max=1)
    assert index.candidates(["nobody"], 190, 210)[-1] == (200, 210), "that stretch is not whole"
    assert index.candidates([id_of(57)], 100, 130) == [], "not in what is asked for"


def test_the_index_goes_on_where_it_was_and_a_torn_end_is_made_again(log: CommitLog) -> None:
    whole = indexed(log).size_bytes
    path = log.directory / NAME
    assert path.stat().st_size == whole
    assert IdIndex(log, stretch_bytes=4000).size_bytes == whole
    path.write_bytes(path.read_bytes()[:-7])
    again = IdIndex(log, stretch_bytes=4000)
    assert again.size_bytes < whole
    again.extend(200, bytes_max=1 << 20)
    assert again.size_bytes == path.stat().st_size == whole


def test_what_a_failed_write_has_left_hides_no_record(log: CommitLog) -> None:
    index = IdIndex(log, stretch_bytes=4000)
    index.extend(100, bytes_max=1 << 20)
    with (log.directory / NAME).open("ab") as file:
        file.write(bytes(500))  # of a filter, before the disk was full
    index.extend(200, bytes_max=1 << 20)
    for number in range(200):
        ranges = index.candidates([id_of(number)], 0, 200)
        assert any(first <= number < upto for first, upto in ranges), number
    again = IdIndex(log, stretch_bytes=4000)
    assert again.size_bytes == index.size_bytes


def test_an_index_whose_file_was_deleted_hides_no_record(log: CommitLog) -> None:
    index = indexed(log)
    (log.directory / NAME).unlink()
    index.drop(lambda _: True)
    index.extend(200, bytes_max=10_000)
    for number in range(200):
        ranges = index.candidates([id_of(number)], 0, 200)
        assert any(first <= number < upto for first, upto in ranges), number


def test_filters_of_records_that_were_cut_off_do_not_count(log: CommitLog) -> None:
    indexed(log)
    log.truncate_to(50)
    for first in range(1000, 1150, PER_FRAME):
        append(log, range(first, first + PER_FRAME), epoch=2)
    index = IdIndex(log, stretch_bytes=4000)

    def reaches(header: FilterHeader) -> bool:
        return header.next_offset <= 50 or header.epoch == 2

    index.drop(reaches)
    index.extend(200, bytes_max=1 << 20)
    for number in (1003, 1090):
        ranges = index.candidates([id_of(number)], 0, 200)
        assert any(first <= number - 950 < upto for first, upto in ranges)


def test_an_index_that_is_full_forgets_its_oldest_half(log: CommitLog) -> None:
    whole = indexed(log).size_bytes
    (log.directory / NAME).unlink()
    index = indexed(log, max_bytes=whole // 2)
    assert index.size_bytes <= whole // 2
    assert any(first <= 3 < upto for first, upto in index.candidates([id_of(3)], 0, 200))
    ranges = index.candidates(["nobody"], 0, 200)
    assert ranges[0][0] == 0, "the beginning is not indexed any more"
    assert sum(upto - first for first, upto in ranges) < 200
