"""Merged steps leave behind what the steps would have, whatever they are."""

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.raft import Entry, EntryKind, HardState, Membership, Persist, Snapshot
from penstock.logd.raft.node import merge_steps
from tests.sim.raft_storage import ModelStorage


@st.composite
def histories(draw: st.DrawFn) -> list[Persist]:
    """Steps as a member makes them: appends, truncating ones, hard states, snapshots."""
    steps: list[Persist] = []
    last, base, term = 0, 0, 1
    for number in range(1, draw(st.integers(1, 12)) + 1):
        term += draw(st.integers(0, 1))
        hard_state = draw(st.sampled_from([None, HardState(term)]))
        snapshot, installed = None, False
        if draw(st.integers(0, 4)) == 0:
            installed = draw(st.booleans())
            at = draw(st.integers(base, last + 5 * installed))
            if at > base:
                snapshot = Snapshot(at, term, Membership(), b"")
                base, last = at, at if installed else last
        first = draw(st.integers(base + 1, last + 1))
        size = draw(st.integers(0, 4))
        entries = tuple(
            Entry(first + n, term, EntryKind.COMMAND, b"%d" % number) for n in range(size)
        )
        last = first + size - 1 if size else last
        steps.append(Persist(number, hard_state, snapshot, installed, entries))
    return steps


@given(histories())
def test_merging_changes_nothing_but_the_number_of_steps(steps: list[Persist]) -> None:
    one_by_one, together = ModelStorage(), ModelStorage()
    for step in deepcopy(steps):
        one_by_one.persist(step)
    merged = merge_steps(steps)
    for step in merged:
        together.persist(step)
    assert together == one_by_one
    assert merged[-1].number == steps[-1].number
    assert len(merged) <= 1 + sum(step.snapshot is not None for step in steps)
