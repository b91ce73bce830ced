"""What a simulated replica plays in: a world of its own, or a part of `cluster_world`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from penstock.logd.replication.events import Finding, NodeId
    from tests.sim.replication_history import History, Message
    from tests.sim.replication_node import Node


class World(Protocol):
    """Of one partition."""

    history: History

    @property
    def disk_failure(self) -> float: ...

    @property
    def calm(self) -> bool: ...

    @property
    def random(self) -> Random: ...

    @property
    def now_ns(self) -> int: ...

    @property
    def nodes(self) -> Mapping[NodeId, Node]: ...

    def mark(self, what: str) -> None: ...

    def at(self, delay_ns: int, action: Callable[[], None]) -> None: ...

    def send(self, source: str, target: str, action: Callable[[Any], None]) -> None: ...

    def delays(self) -> list[int]: ...

    def ack(self, node: Any, offset: int, message: Message, policy: str) -> None: ...

    def told(self, finding: Finding) -> None: ...
