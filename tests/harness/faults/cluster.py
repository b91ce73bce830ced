"""What meets a cluster: its nodes, the network between them and to NATS, the NATS server.

Each lasts until the cluster recovers. The victim is the leader as often as the others together.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tests.harness.network import NATS
from tests.harness.plan import Fault
from tests.harness.systems.cluster import ClusterUnderLoad, FaultyCluster


def _victim(it: ClusterUnderLoad) -> str:
    """The leader, or some node; some node, when nobody knows a leader."""
    nodes, rng = it.cluster.standing(), it.run.rng
    if rng.random() < 0.5:
        with suppress(LookupError):  # it has just started
            leader = it.cluster.cluster.partition(it.stream, node=rng.choice(nodes)).leader
            if leader in nodes:
                return str(leader)
    return rng.choice(nodes)


def _on_one(words: str, act: Callable[[FaultyCluster, str], None]) -> Fault[ClusterUnderLoad]:
    """A fault of one node, which the words name as `{0}`."""

    def fault(it: ClusterUnderLoad) -> str:
        victim = _victim(it)
        act(it.cluster, victim)
        return words.format(victim)

    return fault


def _on_pair(words: str, act: Callable[[FaultyCluster, str, str], None]) -> Fault[ClusterUnderLoad]:
    """A fault between a node and another one, `{0}` and `{1}`."""

    def fault(it: ClusterUnderLoad) -> str:
        victim = _victim(it)
        other = it.run.rng.choice(it.cluster.others(victim))
        act(it.cluster, victim, other)
        return words.format(victim, other)

    return fault


def _kill_and_start(cluster: FaultyCluster, node: str) -> None:
    cluster.kill(node)
    cluster.start(node)


def kill_two(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    others = [name for name in it.cluster.standing() if name != victim]
    both = [victim, *it.run.rng.sample(others, min(len(others), 1))]
    it.cluster.kill(*both)
    return f"kill {', '.join(both)}"


def kill_all(it: ClusterUnderLoad) -> str:
    running = it.cluster.cluster.running()
    names = it.run.rng.sample(running, len(running))
    it.cluster.kill(*names)
    return f"kill {', '.join(names)}"


def restart_nats(it: ClusterUnderLoad) -> str:
    it.cluster.nats.end()
    it.cluster.nats.start()
    return "kill the NATS server and start it"


_KILL: Final = _on_one("kill {0}", FaultyCluster.kill)
_KILL_AND_START: Final = _on_one("kill {0} and start it", _kill_and_start)
_FREEZE: Final = _on_one("freeze {0}", FaultyCluster.freeze)
_ISOLATE: Final = _on_one("cut {0} off from the others", FaultyCluster.isolate)
_MUTE: Final = _on_one("hold up what {0} says", FaultyCluster.mute)

ANY: Final = (
    *(_KILL, _KILL, kill_two, kill_all, _KILL_AND_START, _KILL_AND_START),
    *(_FREEZE, _FREEZE, _ISOLATE, _ISOLATE, _MUTE, _MUTE, restart_nats),
    _on_one("stop {0}", FaultyCluster.stop),
    _on_one("cut {0} off from NATS", lambda it, node: it.isolate(node, peers=False, nats=True)),
    _on_one("cut {0} off from all and NATS", lambda it, node: it.isolate(node, nats=True)),
    _on_one("hold up what others say to {0}", FaultyCluster.deafen),
    _on_one("hold up what {0} says to NATS", lambda it, node: it.network.hold((node, NATS))),
    _on_one("hold up what NATS says to {0}", lambda it, node: it.network.hold((NATS, node))),
    _on_pair("cut between {0} and {1}", lambda it, one, other: it.network.cut(one, [other])),
    _on_pair(
        "hold up what {0} and {1} say to each other",
        lambda it, one, other: it.network.hold((one, other), (other, one)),
    ),
)
"""All of them; what is there twice comes twice as often."""
