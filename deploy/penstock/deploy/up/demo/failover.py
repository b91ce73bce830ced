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
        None when there was no leader to kill, or none that this launch runs.
    """
    leader = await watch.leader(STREAM)
    if leader is None or leader not in topology.logds() or not supervisor.strike(leader):
        return None
    began_ns = clock.monotonic_ns()
    screen.say(f"{leader} leads {STREAM}: killed it with kill -9", "bold")
    while True:
        successor = await watch.leader(STREAM)
        if successor not in (None, leader):
            break
        await asyncio.sleep(_LOOK_S)
    assert successor is not None
    failover = Failover(leader, successor, (clock.monotonic_ns() - began_ns) / 1e9)
    screen.say(f"{successor} leads {STREAM} now", "bold")
    return failover
