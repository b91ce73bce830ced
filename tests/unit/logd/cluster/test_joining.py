"""Who belongs to the metadata group follows who is registered, step by step."""

import pytest

from penstock.logd.core.cluster.joining import HandOver, Step, next_step
from penstock.logd.core.cluster.records import Addresses, Node, NodeState
from penstock.logd.core.node import NodeId
from penstock.logd.core.raft import AddLearner, Membership, Promote, Remove


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
    group = Membership(frozenset(map(NodeId, voters)), frozenset(map(NodeId, learners)))
    assert next_step(group, registered(nodes), set(live), NodeId("a")) == step
