"""Rows of frames with gaps, and a reader whose frames are rewritten between two fetches."""

from typing import Any

import pytest
from typing_extensions import override

from penstock.logd.client import Fetched, LogClient, OffsetRange
from penstock.logd.format.batch import Record
from penstock.logd.format.rows import batch_records, slice_rows
from tests.support.frames import make_batch_frame


def offsets_of(rows: list[int], start: int, end: int | None) -> list[int]:
    header, _, batch = make_batch_frame(10, [Record("t", b"", n) for n in range(8)], kept=rows)
    sliced = slice_rows(header, batch, start, end)
    again = slice_rows(header, sliced, start, end)
    assert again.equals(sliced)
    return [offset for offset, _ in batch_records(header, sliced)]


@pytest.mark.parametrize("rows", [list(range(8)), [0, 3, 4, 7], [2], []], ids=str)
@pytest.mark.parametrize(("start", "end"), [(0, None), (12, 15), (13, 14), (17, None), (5, 10)])
def test_a_slice_has_the_rows_of_its_range(rows: list[int], start: int, end: int | None) -> None:
    wanted = [10 + row for row in rows if start <= 10 + row and (end is None or 10 + row < end)]
    assert offsets_of(rows, start, end) == wanted


def test_no_row_comes_twice_when_frames_are_rewritten_between_two_fetches() -> None:
    records = [Record("t", b"%d" % n, n) for n in range(6)]
    before, after = (
        [make_batch_frame(0, records[:2], kept=[0, 1]), make_batch_frame(2, records[2:], kept=[0])],
        [make_batch_frame(0, records, kept=[0, 1, 3, 5])],
    )
    answers = iter([(before[0], 2), (after[0], 6)])

    class Rewritten(LogClient):
        @override
        def fetch(self, *_: Any, **__: Any) -> Fetched:
            (header, body, _), next_offset = next(answers)
            return Fetched(
                frames=[(header, memoryview(body))],
                range=OffsetRange(0, 6),
                high_watermark=5,
                next_offset=next_offset,
                epoch=1,
                incarnation="",
            )

    found = Rewritten("h:1").batches("s", 0, 6)
    assert [n for header, batch in found for n, _ in batch_records(header, batch)] == [0, 1, 3, 5]
