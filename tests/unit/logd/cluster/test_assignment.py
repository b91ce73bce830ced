"""Who of a group reads what: all of it, evenly, and little changes hands."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.controller.groups import assign
from penstock.logd.metadata.records import GroupMember, GroupPartition

PARTITIONS = [GroupPartition(stream, "i", number) for stream in "st" for number in range(7)]
NAMES = st.sampled_from(["m1", "m2", "m3", "m4", "m5"])


def members(*names: str, streams: tuple[str, ...] = ("s", "t")) -> list[GroupMember]:
    return [GroupMember(id=name, streams=streams, session_ms=1) for name in names]


def loads(target: dict[GroupPartition, str], names: set[str]) -> list[int]:
    return [sum(member == name for member in target.values()) for name in names]


@given(st.lists(st.sets(NAMES, min_size=1), min_size=1, max_size=5))
def test_everything_is_read_evenly_and_only_what_must_changes_hands(rounds: list[set[str]]) -> None:
    target: dict[GroupPartition, str] = {}
    for names in rounds:
        before, target = target, assign(members(*names), PARTITIONS, target)
        assert sorted(target) == PARTITIONS
        counts = loads(target, names)
        assert max(counts) - min(counts) <= 1
        # A member that stays gives up only what is above its share.
        share = -(-len(PARTITIONS) // len(names))
        for name in names:
            had = {key for key, member in before.items() if member == name}
            kept = {key for key in had if target[key] == name}
            assert len(kept) >= min(len(had), share - 1)
    assert assign(members(*names), PARTITIONS, target) == target


@given(st.dictionaries(NAMES, st.sampled_from([("s",), ("t",), ("s", "t")]), min_size=1))
def test_nobody_reads_what_it_does_not_want(wants: dict[str, tuple[str, ...]]) -> None:
    group = [GroupMember(id=name, streams=some, session_ms=1) for name, some in wants.items()]
    target = assign(group, PARTITIONS, {})
    assert all(key.stream in wants[member] for key, member in target.items())
    wanted = {stream for some in wants.values() for stream in some}
    assert {key.stream for key in target} == wanted


def test_a_group_of_nobody_reads_nothing() -> None:
    assert assign([], PARTITIONS, {PARTITIONS[0]: "m1"}) == {}
