"""What a nemesis does to a cluster, a step at a time."""

import random
from contextlib import suppress
from typing import Final

from tests.nemesis.cluster import Arena
from tests.nemesis.network import NATS


class Nemesis:
    """Draws faults and brings them about. Each is told as a line of text.

    Args:
        arena: What it is after.
        stream: Whose leader is a favourite.
        rng: Everything that is drawn.
    """

    def __init__(self, arena: Arena, stream: str, rng: random.Random) -> None:
        self._arena = arena
        self._stream = stream
        self._rng = rng

    def strike(self) -> str:
        """Bring about the next fault; what it is."""
        fault = self._rng.choice(_FAULTS)
        return fault(self, self._victim())

    def _victim(self) -> str:
        """The leader as often as the others together; some node, when nobody knows a leader."""
        cluster, rng = self._arena.cluster, self._rng
        nodes = self._arena.standing()
        if rng.random() < 0.5:
            with suppress(LookupError):  # it has just started
                leader = cluster.partition(self._stream, node=rng.choice(nodes)).leader
                if leader in nodes:
                    return str(leader)
        return rng.choice(nodes)

    def _kill(self, victim: str) -> str:
        self._arena.kill(victim)
        return f"kill {victim}"

    def _kill_all(self, _: str) -> str:
        running = self._arena.cluster.running()
        names = self._rng.sample(running, len(running))
        self._arena.kill(*names)
        return f"kill {', '.join(names)}"

    def _kill_two(self, victim: str) -> str:
        others = [name for name in self._arena.standing() if name != victim]
        both = [victim, *self._rng.sample(others, min(len(others), 1))]
        self._arena.kill(*both)
        return f"kill {', '.join(both)}"

    def _restart(self, victim: str) -> str:
        self._arena.kill(victim)
        self._arena.start(victim)
        return f"kill {victim} and start it"

    def _stop(self, victim: str) -> str:
        self._arena.stop(victim)
        return f"stop {victim}"

    def _freeze(self, victim: str) -> str:
        self._arena.freeze(victim)
        return f"freeze {victim}"

    def _isolate(self, victim: str) -> str:
        nats = self._rng.random() < 0.3
        self._arena.isolate(victim, nats=nats)
        return f"cut {victim} off from the others{' and from NATS' if nats else ''}"

    def _cut_from_nats(self, victim: str) -> str:
        self._arena.isolate(victim, peers=False, nats=True)
        return f"cut {victim} off from NATS"

    def _cut_pair(self, victim: str) -> str:
        other = self._rng.choice(self._arena.others(victim))
        self._arena.network.cut(victim, [other])
        return f"cut between {victim} and {other}"

    def _mute(self, victim: str) -> str:
        self._arena.mute(victim)
        return f"hold up what {victim} says"

    def _deafen(self, victim: str) -> str:
        self._arena.deafen(victim)
        return f"hold up what others say to {victim}"

    def _hold_nats(self, victim: str) -> str:
        flow = self._rng.choice([(victim, NATS), (NATS, victim)])
        self._arena.network.hold(flow)
        return f"hold up what {flow[0]} says to {flow[1]}"

    def _hold_pair(self, victim: str) -> str:
        other = self._rng.choice(self._arena.others(victim))
        self._arena.network.hold((victim, other), (other, victim))
        return f"hold up what {victim} and {other} say to each other"

    def _restart_nats(self, _: str) -> str:
        self._arena.nats.end()
        self._arena.nats.start()
        return "kill the NATS server and start it"


_FAULTS: Final = (
    Nemesis._kill,
    Nemesis._kill,
    Nemesis._kill_two,
    Nemesis._kill_all,
    Nemesis._restart,
    Nemesis._restart,
    Nemesis._stop,
    Nemesis._freeze,
    Nemesis._freeze,
    Nemesis._isolate,
    Nemesis._isolate,
    Nemesis._cut_from_nats,
    Nemesis._cut_pair,
    Nemesis._mute,
    Nemesis._mute,
    Nemesis._deafen,
    Nemesis._hold_nats,
    Nemesis._hold_pair,
    Nemesis._restart_nats,
)
