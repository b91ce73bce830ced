"""A leader dies in the middle of `penstock demo`, as by accident: `kill -9`."""

import asyncio
from dataclasses import dataclass

from penstock.base.clock import Clock
from penstock.deploy.up.monitor import Monitor
from penstock.deploy.up.progress import Screen
from penstock.deploy.up.supervisor import Supervisor
from penstock.deploy.up.topology import Topology

STREAM = "logs"
"""Stream whose leader is killed: the busiest one."""
_LOOK_S = 0.05
_FAILOVER_S_MAX = 60
"""Maximum seconds until a leader is found, killed and replaced. The demo ends no earlier."""


@dataclass(frozen=True, slots=True)
class Failover:
    """The result of the failover.

    Attributes:
        killed: The node.
        successor: Leader after it.
        seconds: Seconds between the kill and the sight of the successor.
    """

    killed: str
    successor: str
    seconds: float

    @property
    def statement(self) -> str:
        """Return the result as a sentence."""
        return (
            f"{self.killed} was killed with kill -9 while it led {STREAM};"
            f" {self.successor} led it {self.seconds:.1f} s later"
        )


async def kill_leader(
    topology: Topology, supervisor: Supervisor, watch: Monitor, screen: Screen, clock: Clock
) -> Failover | None:
    """Kill the node that leads the busiest stream, and wait until another one does.

    Returns:
        None when this launch does not run the leader, or no node led within `_FAILOVER_S_MAX`.
    """
    try:
        async with asyncio.timeout(_FAILOVER_S_MAX):
            leader = await _leader(watch)
            if leader not in topology.logds() or not supervisor.strike(leader):
                return None
            began_ns = clock.monotonic_ns()
            screen.say(f"{leader} leads {STREAM}: killed it with kill -9", "bold")
            successor = await _leader(watch, after=leader)
    except TimeoutError:
        screen.say(f"no node led {STREAM} within {_FAILOVER_S_MAX} s", "bold red")
        return None
    failover = Failover(leader, successor, (clock.monotonic_ns() - began_ns) / 1e9)
    screen.say(f"{successor} leads {STREAM} now", "bold")
    return failover


async def _leader(watch: Monitor, *, after: str | None = None) -> str:
    """Wait for a leader of the stream that is another one than `after`."""
    while True:
        leader = await watch.leader(STREAM)
        if leader is not None and leader != after:
            return leader
        await asyncio.sleep(_LOOK_S)
