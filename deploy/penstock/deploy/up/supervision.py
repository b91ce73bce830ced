"""Decisions when each part is started, restarted, drained and killed.

Pure: events and the time come in, effects go out; the shell (`penstock.deploy.up.supervisor`) owns
processes and probes. One part moves through these phases:

    WAITING ──▶ STARTING ──▶ READY            a part starts once all it needs is ready
                   │           │
                   ▼           ▼ exited
                  (gives up) BACKOFF ──▶ STARTING
    any ──▶ STOPPING ──▶ STOPPED              in drain order, one part at a time

A part that fails before it was ever ready ends the launch: its configuration or its machine is at
fault and trying again would only repeat the message. One that was ready is always restarted, with
a delay that doubles from `BACKOFF_MIN_NS` to `BACKOFF_MAX_NS` and begins again after it has been up
for `STEADY_NS`. While draining, parts whose turn has not come are still kept up, because those
before them need them to drain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias, assert_never

from penstock.base.backoff import Backoff

SECOND_NS = 1_000_000_000
BACKOFF_MIN_NS = SECOND_NS // 2
BACKOFF_MAX_NS = 30 * SECOND_NS
STEADY_NS = 60 * SECOND_NS


class Phase(Enum):
    """The phase of one part's life."""

    WAITING = auto()
    STARTING = auto()
    READY = auto()
    BACKOFF = auto()
    CATCHING_UP = auto()  # its turn to drain has come; still running, until it has caught up
    STOPPING = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The plan of a part for supervision.

    Attributes:
        name: Unique in the launch.
        after: Parts that must be ready before this one is started.
        ready_within_ns: Maximum nanoseconds of its start.
        catch_up_within_ns: Maximum nanoseconds to wait, before stopping it, until it has caught up;
            0: none.
        stop_within_ns: Maximum nanoseconds of its stop, before it is killed.
        must_drain: Whether what it has accepted must go on before it stops: if it is being
            restarted when its turn comes, it is waited for.
        once: It is expected to end by itself and is not restarted when it ends with 0.
    """

    name: str
    after: tuple[str, ...] = ()
    ready_within_ns: int = 30 * SECOND_NS
    catch_up_within_ns: int = 0
    stop_within_ns: int = 15 * SECOND_NS
    must_drain: bool = False
    once: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """The part answers its probe."""

    name: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The part's process has ended; `code` is negative for a signal."""

    name: str
    code: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Nothing waits in the part any more."""

    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Drain and stop everything."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Stop everything now."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event: TypeAlias = Ready | Exited | CaughtUp | Stop | Kill | Tick


@dataclass(frozen=True, slots=True)
class StartPart:
    """Start the part's process and probe it."""

    name: str


@dataclass(frozen=True, slots=True)
class WatchCatchUp:
    """Tell, by `CaughtUp`, when nothing waits in the part any more."""

    name: str


@dataclass(frozen=True, slots=True)
class TerminatePart:
    """Ask the part to drain and end (SIGTERM)."""

    name: str


@dataclass(frozen=True, slots=True)
class KillPart:
    """End the part and everything it started (SIGKILL)."""

    name: str


@dataclass(frozen=True, slots=True)
class Restarting:
    """The part ended with `code` and will be started again after `delay_ns`."""

    name: str
    code: int
    delay_ns: int


@dataclass(frozen=True, slots=True)
class CutShort:
    """The part did not finish in time: `what` says what it was doing."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The launch has failed because of this part; everything is being stopped."""

    name: str
    code: int | None  # None: it did not become ready in time


@dataclass(frozen=True, slots=True)
class AllReady:
    """Every part is ready for the first time."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Every part has ended."""


Effect: TypeAlias = (
    StartPart
    | WatchCatchUp
    | TerminatePart
    | KillPart
    | Restarting
    | CutShort
    | GaveUp
    | AllReady
    | Finished
)


@dataclass(slots=True)
class _Part:
    plan: PartPlan
    phase: Phase = Phase.WAITING
    deadline_ns: int | None = None
    ready_since_ns: int | None = None  # None: never ready yet
    backoff: Backoff = field(  # begins again when it has been steady
        default_factory=lambda: Backoff(BACKOFF_MIN_NS, BACKOFF_MAX_NS)
    )
    back_by_ns: int | None = None  # its turn to drain came while it was down: until when to wait

    @property
    def is_coming_back(self) -> bool:
        return self.ready_since_ns is not None and self.phase in (Phase.STARTING, Phase.BACKOFF)


class Supervision:
    """The decisions for one launch.

    Args:
        plans: The parts, in the order they are named to people.
        drain_order: Their names in the order they are drained; holds each exactly once.
    """

    def __init__(self, plans: Sequence[PartPlan], drain_order: Sequence[str]) -> None:
        assert sorted(drain_order) == sorted(plan.name for plan in plans)
        self._parts = {plan.name: _Part(plan) for plan in plans}
        self._to_drain = list(drain_order)
        self._draining = False
        self._killing = False
        self._announced = False
        self._finished = False

    def phase(self, name: str) -> Phase:
        """Return the phase of a part."""
        return self._parts[name].phase

    def next_deadline_ns(self) -> int | None:
        """Return when to send `Tick` at the latest; None when only an event can change anything."""
        deadlines = [p.deadline_ns for p in self._parts.values()]
        deadlines += [p.back_by_ns for p in self._parts.values() if p.is_coming_back]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take one event and say what to do, in order."""
        effects: list[Effect] = []
        match event:
            case Ready(name):
                self._ready(self._parts[name], now_ns)
            case Exited(name, code):
                self._exited(self._parts[name], code, now_ns, effects)
            case CaughtUp(name):
                if self._parts[name].phase is Phase.CATCHING_UP:
                    self._terminate(self._parts[name], now_ns, effects)
            case Stop():
                self._draining = True
            case Kill():
                self._kill_all(effects)
            case Tick():
                pass
            case _:
                assert_never(event)
        self._pass_deadlines(now_ns, effects)
        self._advance(now_ns, effects)
        return effects

    def _ready(self, part: _Part, now_ns: int) -> None:
        if part.phase is Phase.STARTING:
            part.phase, part.deadline_ns, part.ready_since_ns = Phase.READY, None, now_ns

    def _exited(self, part: _Part, code: int, now_ns: int, effects: list[Effect]) -> None:
        was, part.deadline_ns = part.phase, None
        if was is Phase.READY and now_ns - (part.ready_since_ns or now_ns) >= STEADY_NS:
            part.backoff.reset()
        part.phase = Phase.STOPPED
        if was in (Phase.STOPPING, Phase.STOPPED) or self._killing:
            return
        if part.plan.once and code == 0:
            return
        if was is Phase.CATCHING_UP:
            effects.append(CutShort(part.plan.name, f"ended with {code} while catching up"))
        elif part.ready_since_ns is None:
            self._give_up(part, code, effects)
        else:
            self._back_off(part, code, now_ns, effects)

    def _back_off(self, part: _Part, code: int, now_ns: int, effects: list[Effect]) -> None:
        delay_ns = int(part.backoff.next_wait())
        part.phase, part.deadline_ns = Phase.BACKOFF, now_ns + delay_ns
        effects.append(Restarting(part.plan.name, code, delay_ns))

    def _give_up(self, part: _Part, code: int | None, effects: list[Effect]) -> None:
        effects.append(GaveUp(part.plan.name, code))
        self._draining = True

    def _pass_deadlines(self, now_ns: int, effects: list[Effect]) -> None:
        for part in self._parts.values():
            if part.deadline_ns is None or now_ns < part.deadline_ns:
                continue
            part.deadline_ns = None
            match part.phase:
                case Phase.STARTING:
                    effects.append(KillPart(part.plan.name))
                    if part.ready_since_ns is None:
                        part.phase = Phase.STOPPING
                        self._give_up(part, None, effects)
                case Phase.BACKOFF:
                    self._start(part, now_ns, effects)
                case Phase.CATCHING_UP:
                    effects.append(CutShort(part.plan.name, "still behind"))
                    self._terminate(part, now_ns, effects)
                case Phase.STOPPING:
                    effects.append(CutShort(part.plan.name, "did not end when told to"))
                    effects.append(KillPart(part.plan.name))
                case _:
                    raise AssertionError(part)

    def _advance(self, now_ns: int, effects: list[Effect]) -> None:
        if not self._draining:
            self._start_what_can(now_ns, effects)
            if not self._announced and all(
                p.phase is Phase.READY or (p.plan.once and p.phase is Phase.STOPPED)
                for p in self._parts.values()
            ):
                self._announced = True
                effects.append(AllReady())
        elif not self._killing:
            self._drain_next(now_ns, effects)
        if not self._finished and all(p.phase is Phase.STOPPED for p in self._parts.values()):
            self._finished = True
            effects.append(Finished())

    def _start_what_can(self, now_ns: int, effects: list[Effect]) -> None:
        for part in self._parts.values():
            if part.phase is Phase.WAITING and all(
                self._parts[name].phase is Phase.READY for name in part.plan.after
            ):
                self._start(part, now_ns, effects)

    def _drain_next(self, now_ns: int, effects: list[Effect]) -> None:
        while self._to_drain:
            part = self._parts[self._to_drain[0]]
            if (
                part.plan.must_drain
                and part.is_coming_back
                and self._waits_for(part, now_ns, effects)
            ):
                return
            match part.phase:
                case Phase.STOPPED:
                    self._to_drain.pop(0)
                    continue
                case Phase.WAITING | Phase.BACKOFF:
                    part.phase, part.deadline_ns = Phase.STOPPED, None
                    continue
                case Phase.READY if part.plan.catch_up_within_ns:
                    part.phase = Phase.CATCHING_UP
                    part.deadline_ns = now_ns + part.plan.catch_up_within_ns
                    effects.append(WatchCatchUp(part.plan.name))
                case Phase.READY | Phase.STARTING:
                    self._terminate(part, now_ns, effects)
                case Phase.CATCHING_UP | Phase.STOPPING:
                    pass
                case _:
                    assert_never(part.phase)
            return

    def _waits_for(self, part: _Part, now_ns: int, effects: list[Effect]) -> bool:
        """Return whether a part that is down may still come back to drain."""
        if part.back_by_ns is None:
            part.back_by_ns = now_ns + part.plan.ready_within_ns
        if now_ns < part.back_by_ns:
            return True
        effects.append(CutShort(part.plan.name, "did not come back to drain"))
        return False

    def _start(self, part: _Part, now_ns: int, effects: list[Effect]) -> None:
        part.phase, part.deadline_ns = Phase.STARTING, now_ns + part.plan.ready_within_ns
        effects.append(StartPart(part.plan.name))

    def _terminate(self, part: _Part, now_ns: int, effects: list[Effect]) -> None:
        part.phase, part.deadline_ns = Phase.STOPPING, now_ns + part.plan.stop_within_ns
        effects.append(TerminatePart(part.plan.name))

    def _kill_all(self, effects: list[Effect]) -> None:
        self._draining = self._killing = True
        for part in self._parts.values():
            part.deadline_ns = None
            if part.phase in (Phase.WAITING, Phase.BACKOFF, Phase.STOPPED):
                part.phase = Phase.STOPPED
            else:
                part.phase = Phase.STOPPING
                effects.append(KillPart(part.plan.name))
