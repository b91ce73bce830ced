"""Who belongs to the metadata group follows who is registered, step by step."""

import pytest
from msgspec.structs import replace

from penstock.logd.metadata.node_rules import HandOver, Step, next_step
from penstock.logd.metadata.records import Addresses, Node, NodeState
from penstock.logd.raft import AddLearner, Membership, NoteDisks, Promote, Remove
from penstock.logd.replication.events import NodeId


def registered(states: str) -> dict[str, Node]:
    """Nodes from `a b-draining c-removed`."""
    nodes = {}
    for word in states.split():
        name, _, state = word.partition("-")
        nodes[name] = Node(
            id=name, addresses=Addresses(peer=f"{name}:1"), rack="", storage=name, boot=name,
            state=NodeState(state or "active"), deposed_at=0,
        )  # fmt: skip
    return nodes


def members(voters: str, learners: str, *, noted: str) -> Membership:
    """A group in which the disks of some are noted."""
    group = Membership(frozenset(map(NodeId, voters)), frozenset(map(NodeId, learners)))
    return group.noting({NodeId(name): name for name in noted})


@pytest.mark.parametrize(
    ("voters", "learners", "nodes", "live", "step"),
    [
        ("abc", "", "a b c", "abc", None),
        ("abc", "", "a", "a", None),  # the others have not registered yet
        ("abc", "", "a b c d", "abc", AddLearner(NodeId("d"))),
        ("abc", "d", "a b c d", "abcd", Promote(NodeId("d"))),
        ("abc", "d", "a b c d", "abc", None),  # a dead voter would only be in the way
        ("abc", "d", "a b c d-draining", "abcd", None),
        ("abcde", "f", "a b c d e f", "abcdef", None),
        ("abcd", "", "a b c-removed d", "abd", Remove(NodeId("c"))),
        ("ab", "c", "a b c-removed", "ab", Remove(NodeId("c"))),
        ("abc", "", "a b c-draining", "abc", None),  # it counts until it is removed
        ("abc", "", "a-draining b c", "ac", HandOver(NodeId("c"))),
        ("abc", "", "a-removed b c", "bc", HandOver(NodeId("b"))),
        ("abc", "", "a-removed b c", "a", Remove(NodeId("a"))),  # nobody to hand it to
        ("a", "", "a-removed", "a", None),  # the last voter cannot leave
    ],
)
def test_each_situation_has_its_step(
    voters: str, learners: str, nodes: str, live: str, step: Step | None
) -> None:
    group = members(voters, learners, noted=voters + learners)
    assert next_step(group, registered(nodes), set(live), NodeId("a")) == step


@pytest.mark.parametrize(
    ("voters", "learners", "noted", "nodes", "expected"),
    [
        ("abc", "", "", "a b c", "abc"),  # a group of an earlier version
        ("abc", "", "", "a b", "ab"),
        ("abc", "", "", "a", ""),  # a majority is noted at once, or nobody
        ("abc", "", "ab", "a b c", "abc"),
        ("abc", "d", "abc", "a b c d", "abcd"),  # before it is a voter
    ],
)
def test_the_disks_of_members_are_noted_as_they_are_registered(
    voters: str, learners: str, noted: str, nodes: str, expected: str
) -> None:
    group = members(voters, learners, noted=noted)
    step = next_step(group, registered(nodes), set("abcd"), NodeId("a"))
    wanted = NoteDisks(tuple((NodeId(name), name) for name in expected))
    assert step == (wanted if expected else None)


def test_a_disk_that_is_noted_stays_noted() -> None:
    group = members("abc", "", noted="abc")
    lost = registered("a b c") | {"c": replace(registered("c")["c"], storage="another")}
    assert next_step(group, lost, set("abc"), NodeId("a")) is None
    assert group.changed(NoteDisks(((NodeId("c"), "another"),))) == group
