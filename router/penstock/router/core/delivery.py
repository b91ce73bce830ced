"""Delivering one request to an HTTP destination: when to send, wait, split or give up.

    start ─▶ SENDING ─▶ 2xx            ─▶ DONE (Delivered)
               ▲   │  ─▶ 413, records>1 ─▶ DONE (SplitUp)
               │   │  ─▶ other 4xx      ─▶ DONE (Refused)
               │   └──▶ 408 425 429 401 403 5xx, no answer ─▶ WAITING
               └───────────────── deadline reached ─────────────┘

A destination that refuses the sender (401, 403) refuses nothing for good: somebody has to correct a
password, so the records wait. Pauses are full jitter: a random part of a limit that doubles at each
attempt; a Retry-After header lengthens them.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, assert_never

if TYPE_CHECKING:
    import random  # the type of what is passed in; a core rolls no dice of its own

_TRANSIENT: Final = frozenset({401, 403, 408, 425, 429})
_TOO_LARGE: Final = 413
_NANOSECONDS: Final = 1_000_000_000
RETRY_AFTER_MAX_S: Final = 300.0
"""Seconds; a destination that asks for more is asked again sooner."""

_EXPONENT_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Answered:
    """The destination answered; `retry_after_s` as it asked, if it did."""

    status: int
    retry_after_s: float | None = None
    excerpt: str = ""


@dataclass(frozen=True, slots=True)
class Broke:
    """There was no answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


Event = Answered | Broke | Ticked


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request; this is attempt `attempt`, from 1 on."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Retrying:
    """Nothing to do before the deadline; `reason` says what went wrong."""

    reason: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination has it."""


@dataclass(frozen=True, slots=True)
class SplitUp:
    """Too large: send it as two halves."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The destination will never take it."""

    reason: str
    status: int
    attempt: int


Effect = Send | Retrying | Delivered | SplitUp | Refused


class _Phase(Enum):
    NEW = auto()
    SENDING = auto()
    WAITING = auto()
    DONE = auto()


class Delivery:
    """The state of one request.

    Args:
        records: In the request.
        first_s: Upper limit of the first pause.
        max_s: Upper limit of any pause that the destination did not ask for.
        dice: For the jitter.
    """

    def __init__(
        self, *, records: int, first_s: float, max_s: float, dice: "random.Random"
    ) -> None:
        self._records = records
        self._first_s = first_s
        self._max_s = max_s
        self._dice = dice
        self._phase = _Phase.NEW
        self._attempt = 0
        self._deadline_ns: int | None = None

    def next_deadline_ns(self) -> int | None:
        """When to call `handle(Ticked())`; None while an answer is awaited or all is done."""
        return self._deadline_ns

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take an event. The first one is `Ticked`."""
        match event:
            case Ticked():
                return self._tick(now_ns)
            case Answered():
                assert self._phase is _Phase.SENDING, self._phase
                return [self._answered(event, now_ns)]
            case Broke(reason):
                assert self._phase is _Phase.SENDING, self._phase
                return [self._wait(reason, 0.0, now_ns)]
            case _:
                assert_never(event)

    def _tick(self, now_ns: int) -> list[Effect]:
        due = self._phase is _Phase.NEW or (
            self._phase is _Phase.WAITING
            and self._deadline_ns is not None
            and now_ns >= self._deadline_ns
        )
        if not due:
            return []
        self._phase = _Phase.SENDING
        self._deadline_ns = None
        self._attempt += 1
        return [Send(self._attempt)]

    def _answered(self, answer: Answered, now_ns: int) -> Effect:
        reason = f"HTTP {answer.status} {answer.excerpt}".rstrip()
        if 200 <= answer.status < 300:
            return self._done(Delivered())
        if answer.status == _TOO_LARGE and self._records > 1:
            return self._done(SplitUp())
        if 400 <= answer.status < 500 and answer.status not in _TRANSIENT:
            return self._done(Refused(reason, answer.status, self._attempt))
        return self._wait(reason, answer.retry_after_s or 0.0, now_ns)

    def _done(self, effect: Effect) -> Effect:
        self._phase = _Phase.DONE
        return effect

    def _wait(self, reason: str, asked_s: float, now_ns: int) -> Effect:
        limit_s = min(self._max_s, self._first_s * 2 ** min(self._attempt - 1, _EXPONENT_MAX))
        pause_s = max(self._dice.uniform(0, limit_s), min(asked_s, RETRY_AFTER_MAX_S))
        self._phase = _Phase.WAITING
        self._deadline_ns = now_ns + int(pause_s * _NANOSECONDS)
        return Retrying(reason)
