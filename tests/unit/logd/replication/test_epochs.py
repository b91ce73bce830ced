"""Epochs against a log of which every record's epoch is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.errors import RefusedError
from penstock.logd.replication.log_state import Epochs

RECORDS = st.lists(st.integers(1, 9), max_size=20).map(sorted)
"""The epoch of each record; they do not fall."""


def epochs_of(records: list[int], start: int = 0) -> Epochs:
    epochs = Epochs()
    for offset, epoch in enumerate(records, start):
        if epoch > epochs.latest:
            epochs.begin(epoch, offset)
    return epochs


@given(RECORDS, st.integers(0, 5), st.integers(0, 10))
def test_an_epoch_ends_behind_its_last_record(records: list[int], start: int, wanted: int) -> None:
    end = start + len(records)
    epoch, end_offset = epochs_of(records, start).end_offset_for(wanted, end)
    known = [record for record in records if record <= wanted]
    if known:
        assert (epoch, end_offset) == (known[-1], start + len(known))
    else:
        assert (epoch, end_offset) == (0, start if records else end)


@given(RECORDS, st.integers(0, 20))
def test_an_offset_belongs_to_the_epoch_of_its_record(records: list[int], offset: int) -> None:
    expected = (records[offset] if offset < len(records) else records[-1]) if records else 0
    assert epochs_of(records).epoch_at(offset) == expected


@given(RECORDS, st.integers(0, 20))
def test_a_truncated_log_has_the_epochs_of_what_is_left(records: list[int], upto: int) -> None:
    epochs = epochs_of(records)
    epochs.truncate_to(upto)
    assert epochs.entries == epochs_of(records[:upto]).entries


Log = list[tuple[int, int]]
"""Each record as (epoch, number): what is equal in it is the same record."""

REIGNS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 8), st.booleans()), max_size=8
)
"""(which log leads, records it appends, how many the other copies, whether it hears of it)."""


def reign(reigns: list[tuple[bool, int, int, bool]]) -> tuple[Log, Log]:
    """Two logs after several leaderships, one after the other, each with its own epoch."""
    logs: tuple[Log, Log] = ([], [])
    for epoch, (which, appended, copied, heard) in enumerate(reigns, 1):
        leader, follower = logs[which], logs[not which]
        if heard:
            del follower[agree(follower, leader) :]
        leader += [(epoch, number) for number in range(appended)]
        if heard:
            follower += leader[len(follower) :][:copied]
    return logs


def agree(mine: Log, theirs: Log) -> int:
    """Where the logs agree, found by epochs alone."""
    my_epochs, their_epochs = ([epoch for epoch, _ in log] for log in (mine, theirs))
    cut = len(mine)
    while cut:
        kept = epochs_of(my_epochs[:cut])
        epoch, end = epochs_of(their_epochs).end_offset_for(kept.latest, len(theirs))
        if epoch == kept.latest and cut <= end:
            break
        lower = min(end, kept.end_offset_for(epoch, cut)[1])
        assert lower < cut
        cut = lower
    return cut


@given(REIGNS)
def test_two_logs_find_exactly_what_they_share(reigns: list[tuple[bool, int, int, bool]]) -> None:
    mine, theirs = reign(reigns)
    shared = next(
        (n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b),
        min(len(mine), len(theirs)),
    )
    assert agree(mine, theirs) == shared


def test_an_epoch_without_records_is_replaced_and_forgotten() -> None:
    epochs = Epochs([(1, 0)])
    epochs.begin(2, 5)
    assert epochs.has_empty(5)
    assert not epochs.has_empty(6)
    epochs.begin(4, 5)
    assert epochs.entries == [(1, 0), (4, 5)]
    epochs.truncate_to(5)
    assert epochs.entries == [(1, 0)]


@pytest.mark.parametrize(("epoch", "start"), [(4, 20), (3, 20), (5, 9)])
def test_an_epoch_must_follow(epoch: int, start: int) -> None:
    with pytest.raises(RefusedError, match="does not follow"):
        Epochs([(4, 10)]).begin(epoch, start)
    with pytest.raises(ValueError, match="do not rise"):
        Epochs([(4, 10), (epoch, start), (9, 8)])
