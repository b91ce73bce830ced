"""The room that is left on a disk, and when it ends at the rate of the last day."""

from pathlib import Path

import pytest

from penstock.deploy.disk_room import (
    SAMPLE_S,
    SAMPLES_MAX,
    Sample,
    bytes_per_day,
    note_sample,
    read_samples,
    room_line,
)

DAY_S = 86_400
GIB = 1024**3


def test_the_rate_is_that_of_the_last_day_alone() -> None:
    samples = [Sample(0, 900 * GIB), Sample(DAY_S, 110 * GIB), Sample(DAY_S + 43_200, 105 * GIB)]
    assert bytes_per_day(samples, Sample(2 * DAY_S, 100 * GIB)) == 10 * GIB


@pytest.mark.parametrize("samples", [[], [Sample(2 * DAY_S - 60, 110 * GIB)], [Sample(0, GIB)]])
def test_a_rate_of_a_minute_or_of_yesterday_is_none(samples: list[Sample]) -> None:
    assert bytes_per_day(samples, Sample(2 * DAY_S, 100 * GIB)) is None


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (110 * GIB, "shrinking by 10.0 GiB a day: full in 10.0 days"),
        (100 * GIB, "100.0 GiB free on the disk, and not shrinking"),
        (90 * GIB, "not shrinking"),
        (100 * GIB + 1024**2, "enough for more than 1000 days"),
    ],
)
def test_a_user_is_told_when_the_room_ends(before: int, says: str) -> None:
    assert says in room_line([Sample(0, before)], Sample(DAY_S, 100 * GIB))


def test_samples_are_kept_for_a_day_and_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "room.json"
    assert read_samples(path) == []
    for number in range(SAMPLES_MAX + 3):
        note_sample(path, Sample(number * SAMPLE_S, number))
    assert [one.free_bytes for one in read_samples(path)] == [*range(3, SAMPLES_MAX + 3)]
    path.write_text("{")
    assert read_samples(path) == []
