"""How many replicas a stream gets that does not say, also when two nodes make it at once."""

from typing import TYPE_CHECKING, Any

import pytest

from penstock.logd.cluster.controller_client import make_internal, make_stream
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.state import ClusterState, Refused
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import Done
from penstock.logd.partition.cursors import CURSORS_STREAM
from penstock.logd.stream_options import ReplicationSettings
from tests.support.cluster_state import Cluster, create, register

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = ("a", "b", "c", "d")


class _Standin:
    """The group's state, and a controller that places on the first nodes.

    Attributes:
        first: What another node does before the next creation.
    """

    def __init__(self, *nodes: str, initial_members: tuple[str, ...] = NODES[:3]) -> None:
        self.cluster = Cluster(*nodes)
        self.initial_members = set(initial_members)
        self.group = self
        self.age_s = 0.0
        self.first: Callable[[], None] = lambda: None

    async def read(self, *, timeout_s: float) -> ClusterState:
        assert timeout_s == 1
        return self.cluster.state

    async def create(self, config: StreamConfig, options: ReplicationOptions, **_: Any) -> Done:
        first, self.first = self.first, lambda: None
        first()
        replicas = NODES[: options.replication_factor]
        result = self.cluster.apply(create(config.name, replicas, options=options))
        if isinstance(result, Refused):
            raise RefusedError(result.code, result.message)
        assert isinstance(result, Done)
        return result

    async def make(self, **options: Any) -> Done:
        config = create("s", ("a",)).config
        wanted = ReplicationSettings(**options)
        standin: Any = self
        return await make_stream(standin, standin, config, wanted, timeout_s=1)

    async def make_cursors(self) -> None:
        standin: Any = self
        await make_internal(standin, standin, CURSORS_STREAM, timeout_s=1)

    def factor(self, name: str = "s") -> int:
        return self.cluster.stream(name).options.replication_factor

    def make_with(self, factor: int, name: str = "s") -> None:
        options = ReplicationOptions(replication_factor=factor)
        self.cluster.apply(create(name, NODES[:factor], options=options))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_a_stream_gets_three_replicas_or_as_many_as_there_are_nodes(count: int) -> None:
    world = _Standin(*NODES[:count])
    assert (await world.make()).changed
    assert world.factor() == min(3, count)


async def test_one_that_was_made_of_fewer_nodes_is_found() -> None:
    world = _Standin("a", "b")
    await world.make()
    world.cluster.apply(register("c"))
    assert not (await world.make()).changed
    assert world.factor() == 2
    with pytest.raises(RefusedError, match="other replication") as refused:
        await world.make(replication_factor=3)
    assert refused.value.code == "STREAM_DIFFERS"


async def test_one_that_another_node_makes_of_fewer_nodes_at_once_is_found() -> None:
    world = _Standin("a", "b", "c")
    world.first = lambda: world.make_with(2)
    assert not (await world.make()).changed
    assert world.factor() == 2


async def test_one_that_differs_in_something_else_is_refused() -> None:
    world = _Standin("a", "b", "c")
    await world.make(min_isr=1)
    with pytest.raises(RefusedError, match="other replication"):
        await world.make(min_isr=3)


async def test_what_is_internal_waits_for_every_initial_member() -> None:
    world = _Standin("a", "b")
    with pytest.raises(UnavailableError, match="no word of c"):
        await world.make_cursors()
    world.cluster.apply(register("c"))
    await world.make_cursors()
    assert world.factor(CURSORS_STREAM.name) == 3


async def test_an_initial_member_that_never_comes_is_not_waited_for_for_ever() -> None:
    world = _Standin("a", "b")
    world.age_s = 31.0
    await world.make_cursors()
    assert world.factor(CURSORS_STREAM.name) == 2


async def test_what_is_internal_is_taken_as_another_node_made_it() -> None:
    world = _Standin("a", "b", "c")
    world.first = lambda: world.make_with(1, CURSORS_STREAM.name)
    await world.make_cursors()
    assert world.factor(CURSORS_STREAM.name) == 1
