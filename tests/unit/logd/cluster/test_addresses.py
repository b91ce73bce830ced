"""Where the other nodes are is known before the state is."""

import asyncio
from pathlib import Path

from penstock.logd.cluster.node import AddressBook
from penstock.logd.metadata.records import Addresses, Node, NodeState
from tests.support.waiting import wait_until_async

INITIAL_MEMBERS = {"a": "a:1"}


def node(name: str, at: str, state: NodeState = NodeState.ACTIVE) -> Node:
    return Node(
        id=name, addresses=Addresses(peer=at), rack="", storage=name, boot=name, state=state,
        deposed_at=0,
    )  # fmt: skip


async def test_it_is_remembered_and_an_old_state_takes_nothing_away(tmp_path: Path) -> None:
    path = tmp_path / "peers"
    book = AddressBook(path, INITIAL_MEMBERS)
    assert book.update({}, ()) == INITIAL_MEMBERS
    task = asyncio.create_task(book.run())
    known = {"a": "a:1", "d": "d:1"}
    assert book.update({"a": node("a", "a:2"), "d": node("d", "d:1")}, ()) == known, (
        "an initial member is where the configuration says: all of them may have moved"
    )
    await wait_until_async(path.exists)
    task.cancel()
    again = AddressBook(path, INITIAL_MEMBERS)
    assert again.update({}, ()) == known
    assert again.update({"a": node("a", "a:1")}, ()) == known


def test_a_removed_node_is_known_until_it_is_no_member(tmp_path: Path) -> None:
    book = AddressBook(tmp_path / "peers", INITIAL_MEMBERS)
    nodes = {"a": node("a", "a:1", NodeState.REMOVED), "b": node("b", "b:1")}
    assert book.update(nodes, {"a", "b"}) == {"a": "a:1", "b": "b:1"}
    assert book.update(nodes, {"b"}) == {"b": "b:1"}
