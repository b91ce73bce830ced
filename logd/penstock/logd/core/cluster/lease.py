"""A node's lease on what it leads: while it holds, no other node leads that.

The node sends heartbeats; an answer renews the lease until `lease_ms` after the heartbeat was
*sent*, by the node's monotonic clock. The controller counts from when it answered, which is later,
and a tenth longer, so the lease ends here before anyone acts on its end there. When it ends, the
node stops acking and unsubscribes.

The clock must go on while the machine is suspended (`CLOCK_BOOTTIME`). What happens between a look
at the clock and what is then done is not covered by a lease, nor by any other clock; records acked
with the policy `all` do not depend on it.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.logd.core.cluster.heartbeats import NS_PER_MS, Timing

UNANSWERED_MAX: Final = 64
"""Heartbeats whose sending time is remembered; older ones have no lease left to give."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that `next_deadline_ns` named has come."""


@dataclass(frozen=True, slots=True)
class BeatNow:
    """There is something that the controller should know at once.

    It lost a leadership, a log failed or is whole again, or there is a new controller.
    """


@dataclass(frozen=True, slots=True)
class Answered:
    """The controller answered a heartbeat of this process."""

    sequence: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Send a heartbeat with this sequence to the controller, if one is known."""

    sequence: int


@dataclass(frozen=True, slots=True)
class LeaseBegun:
    """What this node leads by the applied state, it leads now."""


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """It leads nothing until the lease begins again."""


LeaseEvent: TypeAlias = Tick | BeatNow | Answered
LeaseEffect: TypeAlias = SendHeartbeat | LeaseBegun | LeaseEnded


class NodeLease:
    """One process's side; a new process begins without a lease."""

    def __init__(self, timing: Timing) -> None:
        self._interval_ns = timing.heartbeat_interval_ms * NS_PER_MS
        self._sent_ns: dict[int, int] = {}
        self._sequence = 0
        self._beat_ns = 0
        self._until_ns = 0
        self._held = False

    def is_valid(self, now_ns: int) -> bool:
        """Whether this node leads what it leads; to be asked before each ack of a leader."""
        return self._held and now_ns < self._until_ns

    @property
    def until_ns(self) -> int:
        """Until when the lease holds; 0 while there is none."""
        return self._until_ns if self._held else 0

    def next_deadline_ns(self) -> int:
        """When `Tick` is due."""
        return min(self._beat_ns, self._until_ns) if self._held else self._beat_ns

    def handle(self, event: LeaseEvent, now_ns: int) -> list[LeaseEffect]:
        """Take in what happened; what is to be done."""
        effects: list[LeaseEffect] = []
        if self._held and now_ns >= self._until_ns:
            self._held = False
            effects.append(LeaseEnded())
        if isinstance(event, Answered):
            return effects + self._renew(event, now_ns)
        if isinstance(event, BeatNow) or now_ns >= self._beat_ns:
            effects.append(self._beat(now_ns))
        return effects

    def _beat(self, now_ns: int) -> SendHeartbeat:
        self._sequence += 1
        self._sent_ns[self._sequence] = now_ns
        if len(self._sent_ns) > UNANSWERED_MAX:
            del self._sent_ns[next(iter(self._sent_ns))]
        self._beat_ns = now_ns + self._interval_ns
        return SendHeartbeat(self._sequence)

    def _renew(self, answer: Answered, now_ns: int) -> list[LeaseEffect]:
        sent_ns = self._sent_ns.pop(answer.sequence, None)
        if sent_ns is None:
            return []
        for sequence in [older for older in self._sent_ns if older < answer.sequence]:
            del self._sent_ns[sequence]
        until_ns = self._end_ns(sent_ns, answer.lease_ms * NS_PER_MS, now_ns)
        self._until_ns = max(self._until_ns, until_ns)
        if self._held or now_ns >= self._until_ns:
            return []
        self._held = True
        return [LeaseBegun()]

    def _end_ns(self, sent_ns: int, lease_ns: int, now_ns: int) -> int:
        del now_ns
        return sent_ns + lease_ns
