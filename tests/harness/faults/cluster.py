"""What meets a cluster: its nodes, the network between them and to NATS, the NATS server.

Each lasts until the cluster recovers. The victim is the leader as often as the others together.
"""

from contextlib import suppress
from typing import Final

from tests.harness.network import NATS
from tests.harness.systems.cluster import ClusterUnderLoad


def _victim(it: ClusterUnderLoad) -> str:
    """The leader, or some node; some node, when nobody knows a leader."""
    nodes, rng = it.cluster.standing(), it.run.rng
    if rng.random() < 0.5:
        with suppress(LookupError):  # it has just started
            leader = it.cluster.cluster.partition(it.stream, node=rng.choice(nodes)).leader
            if leader in nodes:
                return str(leader)
    return rng.choice(nodes)


def _other(it: ClusterUnderLoad, victim: str) -> str:
    return it.run.rng.choice(it.cluster.others(victim))


def kill(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    it.cluster.kill(victim)
    return f"kill {victim}"


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


def kill_and_start(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    it.cluster.kill(victim)
    it.cluster.start(victim)
    return f"kill {victim} and start it"


def stop(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    it.cluster.stop(victim)
    return f"stop {victim}"


def freeze(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    it.cluster.freeze(victim)
    return f"freeze {victim}"


def isolate(it: ClusterUnderLoad) -> str:
    victim, nats = _victim(it), it.run.rng.random() < 0.3
    it.cluster.isolate(victim, nats=nats)
    return f"cut {victim} off from the others{' and from NATS' if nats else ''}"


def cut_from_nats(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    it.cluster.isolate(victim, peers=False, nats=True)
    return f"cut {victim} off from NATS"


def cut_pair(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    other = _other(it, victim)
    it.cluster.network.cut(victim, [other])
    return f"cut between {victim} and {other}"


def hold_pair(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    other = _other(it, victim)
    it.cluster.network.hold((victim, other), (other, victim))
    return f"hold up what {victim} and {other} say to each other"


def mute(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    it.cluster.mute(victim)
    return f"hold up what {victim} says"


def deafen(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    it.cluster.deafen(victim)
    return f"hold up what others say to {victim}"


def hold_nats(it: ClusterUnderLoad) -> str:
    victim = _victim(it)
    flow = it.run.rng.choice([(victim, NATS), (NATS, victim)])
    it.cluster.network.hold(flow)
    return f"hold up what {flow[0]} says to {flow[1]}"


def restart_nats(it: ClusterUnderLoad) -> str:
    it.cluster.nats.end()
    it.cluster.nats.start()
    return "kill the NATS server and start it"


ANY: Final = (
    *(kill, kill, kill_two, kill_all, kill_and_start, kill_and_start),
    *(stop, freeze, freeze, restart_nats),
    *(isolate, isolate, cut_from_nats, cut_pair),
    *(mute, mute, deafen, hold_nats, hold_pair),
)
"""All of them; what is there twice comes twice as often."""
