"""The demo kills the leader, also where none is known at first."""

from types import SimpleNamespace
from typing import Any

from penstock.base.clock import SystemClock
from penstock.deploy.up.demo.failover import Failover, kill_leader


class Watch:
    """Names the leader, as a `Monitor` does: each answer once, the last one from then on."""

    def __init__(self, *leaders: str | None) -> None:
        self._leaders = [*leaders]

    async def leader(self, stream: str) -> str | None:
        assert stream == "logs"
        return self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]


class Striker:
    """Notes which parts it is to kill, as a `Supervisor` kills them."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    def strike(self, name: str) -> bool:
        self.killed.append(name)
        return True


async def failover(striker: Any, watch: Any, *logds: str) -> Failover | None:
    topology: Any = SimpleNamespace(logds=lambda: logds)
    screen: Any = SimpleNamespace(say=lambda *_: None)
    return await kill_leader(topology, striker, watch, screen, SystemClock())


async def test_a_leader_that_is_not_known_at_first_is_killed_and_its_successor_waited_for() -> None:
    striker, watch = Striker(), Watch(None, None, "logd-1", "logd-1", None, "logd-2")
    found = await failover(striker, watch, "logd-1", "logd-2")
    assert found is not None
    assert (striker.killed, found.killed, found.successor) == (["logd-1"], "logd-1", "logd-2")


async def test_a_leader_that_another_launch_runs_is_left_alone() -> None:
    striker = Striker()
    assert await failover(striker, Watch("logd-9"), "logd-1") is None
    assert striker.killed == []
