"""Circuit breaker: whether a destination may be sent a request now, and how long it stays open.

    closed     requests go; after a failure there is a short pause
      │ ▲
      │ └────────────────── one is taken ◀──────────┐
      ▼ `failure_threshold` failures in a row       │
    open       nothing goes ── the pause is over ─▶ half_open   one request goes
      ▲                                             │
      └─────────────────────────────────────────────┘ that fails, too: a longer pause

    paused     the destination refuses the sender (a wrong password, a missing right). Likewise,
               but from the first such answer on, with longer pauses, for accounts get locked.
    rejected   the destination refuses every record for the same reason (a wrong index, a missing
               header): a setting is wrong, and no record. Likewise.

A pause is a random part of a limit that doubles with each failure in a row: any part of it while
closed ("full jitter"), the upper half of it otherwise. What the destination asks for (Retry-After)
lengthens it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

if TYPE_CHECKING:
    import random  # the type of what is passed in; a core rolls no dice

from penstock.base.backoff import Backoff

_NANOSECONDS: Final = 1_000_000_000
RETRY_AFTER_MAX_S: Final = 300.0
"""Seconds; a destination that asks for more is asked again sooner."""

State = Literal["closed", "open", "half_open", "paused", "rejected"]
STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """Limits of a breaker.

    Attributes:
        initial_backoff_s: Upper limit of the first pause.
        max_backoff_s: Upper limit of any pause that the destination did not ask for.
        failure_threshold: Failures in a row that open it.
        max_paused_backoff_s: Upper limit of a pause while the sender, or every record, is refused.
    """

    initial_backoff_s: float
    max_backoff_s: float
    failure_threshold: int
    max_paused_backoff_s: float


@dataclass(frozen=True, slots=True)
class Circuit:
    """A breaker's state as others see it.

    Attributes:
        since_ns: Monotonic time of the last change of state, 0 at first.
        retry_at_ns: Time at which the next request may go; None: now.
        opened: Number of times it opened or paused.
        reason: Reason of the last failure; None while closed without one.
    """

    state: State = "closed"
    since_ns: int = 0
    retry_at_ns: int | None = None
    opened: int = 0
    reason: str | None = None

    def as_json(self, now_ns: int) -> dict[str, Any]:
        """Return the fields for `/status`; times are seconds relative to now."""
        retry_at_ns = now_ns if self.retry_at_ns is None else self.retry_at_ns
        return {
            "state": self.state,
            "for_s": round((now_ns - self.since_ns) / _NANOSECONDS, 1) if self.since_ns else None,
            "retry_in_s": round(max(retry_at_ns - now_ns, 0) / _NANOSECONDS, 1),
            "opened": self.opened,
        }


class Breaker:
    """The breaker of one destination; who asks it sends one request at a time.

    Args:
        limits: Limits of the breaker.
        dice: Source of the jitter.
    """

    def __init__(self, limits: BreakerLimits, dice: "random.Random") -> None:
        self._limits = limits
        self._dice = dice
        self._failures = 0
        self._circuit = Circuit()
        self.refusals = 0
        """Records refused since the last one that was taken."""

    @property
    def circuit(self) -> Circuit:
        """The state now."""
        return self._circuit

    def next_deadline_ns(self) -> int | None:
        """Return when `admits` may change, in monotonic ns; None: a request may go now."""
        return self._circuit.retry_at_ns

    def admits(self, now_ns: int) -> bool:
        """Return whether a request may go; the first one after a pause half-opens the circuit."""
        now = self._circuit
        if now.retry_at_ns is None:
            return True
        if now_ns < now.retry_at_ns:
            return False
        if now.state == "open":
            self._circuit = Circuit("half_open", now_ns, None, now.opened, now.reason)
        else:  # who is refused stays `paused` or `rejected` until something is taken
            self._circuit = Circuit(now.state, now.since_ns, None, now.opened, now.reason)
        return True

    def succeeded(self, now_ns: int) -> None:
        """The destination took something, or found fault with a record: it is well."""
        self._failures = 0
        if self._circuit.state != "closed" or self._circuit.reason is not None:
            self._circuit = Circuit("closed", now_ns, None, self._circuit.opened)

    def failed(self, reason: str, asked_s: float, now_ns: int) -> None:
        """It did not take a request; it asks for a pause of `asked_s` seconds, or of 0."""
        state: State = "open" if self._failures + 1 >= self._limits.failure_threshold else "closed"
        self._pause(state, self._limits.max_backoff_s, reason, asked_s, now_ns)

    def refused(self, reason: str, asked_s: float, now_ns: int) -> None:
        """It does not let the sender in."""
        self._pause("paused", self._limits.max_paused_backoff_s, reason, asked_s, now_ns)

    def rejected(self, reason: str, now_ns: int) -> None:
        """It refuses every record for the same reason."""
        self._pause("rejected", self._limits.max_paused_backoff_s, reason, 0.0, now_ns)

    def _pause(
        self, state: State, max_backoff_s: float, reason: str, asked_s: float, now_ns: int
    ) -> None:
        jitter = 1.0 if state == "closed" else 0.5
        backoff = Backoff(
            self._limits.initial_backoff_s, max_backoff_s, jitter=jitter, failures=self._failures
        )
        self._failures += 1
        pause_s = max(backoff.next_wait(self._dice.random()), min(asked_s, RETRY_AFTER_MAX_S))
        before = self._circuit
        goes_on = state == before.state or (state == "open" and before.state == "half_open")
        opened = before.opened + (state != "closed" and not goes_on)
        since_ns = before.since_ns if state == before.state else now_ns
        until_ns = now_ns + int(pause_s * _NANOSECONDS)
        self._circuit = Circuit(state, since_ns, until_ns, opened, reason)
