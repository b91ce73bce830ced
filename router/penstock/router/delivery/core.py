"""Delivering a batch's requests: what to send, when, in which pieces, and when to give a record up.

    requests ─▶ queue ─▶ Send ─▶ result ─▶ Success        ─▶ Delivered
                  ▲                 │   ─▶ Accepted       ─▶ Ask ─▶ Delivered, or to the queue
                  │                 │   ─▶ PartialFailure ─▶ Delivered, Refused, or to the queue
                  ├── halves ◀──────┤   ─▶ TooLarge, Rejected; a lone record ─▶ Refused
                  └── same again ◀──┘   ─▶ Retryable, Paused, Failed

One request is out at a time, in the order of the log. When one may go, `delivery.breaker` and the
sink's rate limiter say, which outlive the batch.

**A record that makes the destination fail** (500 each time, or silence) must neither block its sink
for ever nor be told from an outage by a guess. A request that failed `suspect_after` times in a row
is suspected: it goes behind the others, in halves. Where order is kept it is bisected in its place,
and only a lone record is overtaken, by the next request: if that fails, too, as in an outage, the
record is first again. A failure is evidence against a request, and not for an outage, if others
were delivered since its failure before; what still fails then is bisected at once. A lone record is
refused when `EVIDENCE` failures, its own or of what it was cut from, were evidence, and meanwhile
others were delivered without a pause of `evidence_gap_s`, and it fails `confirmed_after_s` later,
too: one request that gets through an outage convicts nothing. How long other suspects take, one
after the other, does not count. With less evidence nothing is given up, but for one lone record
each `poison_after_s` that the destination itself answers so, or that is suspected: what breaks it
at the end of its batch would else block it for ever.

**A setting that is wrong** makes the destination refuse every record (a wrong index, a missing
header). So a lone record that is refused is held back until another is delivered, and refused only
then. Where `rejected_after` are held for one reason, some others are tried, from all over the
batch; where order is kept the next ones, and more of them. If these are refused, too, the breaker
is told: the records stay, and go again after a pause. A batch of fewer records counts with those
before it, as long as nothing was delivered in between.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, assert_never

from penstock.router.delivery.breaker import Breaker, Circuit
from penstock.router.delivery.rate_limiter import RateLimiter
from penstock.router.delivery.result import (
    Accepted,
    DeliveryResult,
    Failed,
    Fault,
    PartialFailure,
    Paused,
    Rejected,
    Retryable,
    Success,
    TooLarge,
)

_NANOSECONDS: Final = 1_000_000_000
_PROBES: Final = 4
"""Further records that are tried before every record counts as refused."""

_PROBES_IN_ORDER: Final = 100
"""The same where order is kept: the next ones, which one sender may have spoiled all alike."""

EVIDENCE: Final = 3
"""Failures, with other records delivered in between, after which a record may be refused."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Retry policy of a sink for records and requests.

    Attributes:
        suspect_after: Failures in a row after which a request's records are suspected.
        evidence_gap_s: Maximum seconds between two deliveries. A longer gap resets the count of
            failures that are evidence, for an outage lets a request through now and then.
        confirmed_after_s: Seconds that a record must fail after the first evidence against it; a
            server that restarts, or a shard that moves, takes a minute.
        poison_after_s: Seconds that a lone record may fail without any evidence.
        confirm_s: Seconds that the destination has to confirm what it accepted.
        confirm_every_s: Seconds between two requests for a confirmation.
        max_unconfirmed: Maximum requests that wait for confirmation at once.
        rejected_after: Records refused in a row for one reason, none accepted meanwhile, after
            which no record is to blame; 0: each record is.
        keeps_order: Whether no record may be sent before an earlier one that may yet be taken.
    """

    suspect_after: int = 5
    evidence_gap_s: float = 60.0
    confirmed_after_s: float = 120.0
    poison_after_s: float = 3600.0
    confirm_s: float = 300.0
    confirm_every_s: float = 1.0
    max_unconfirmed: int = 100
    rejected_after: int = 3
    keeps_order: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Records, by their places in the request numbered `request`, that travel together."""

    request: int
    records: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to the request that was sent last."""

    result: DeliveryResult


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The destination confirms what it accepted under these tokens, of those asked for."""

    tokens: Collection[str]


Event = Ticked | Answered | Confirmed


@dataclass(frozen=True, slots=True)
class Send:
    """Send the part; for its records this is attempt `attempt`, from 1 on."""

    part: Part
    attempt: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask whether what was accepted under these tokens is confirmed."""

    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retrying:
    """Something goes on later; `circuit` says what went wrong, and when that is."""

    circuit: Circuit


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination has these records."""

    part: Part


@dataclass(frozen=True, slots=True)
class Refused:
    """The destination will never take these records."""

    part: Part
    fault: Fault
    attempt: int


Effect = Send | Ask | Retrying | Delivered | Refused


@dataclass(slots=True)
class _Task:
    """A part on its way.

    Attributes:
        failures: In a row that a record may be to blame for, since it was cut.
        seen: Number of deliveries at the last of them, or of the task it was cut from; None before
            the first. A higher number at the next is evidence.
        failing_since_ns: The first such failure.
        evidence: Failures that were evidence, since deliveries last paused.
        evident_since_ns: The delivery that made the first of those evidence.
        evident_ns: The last such delivery.
    """

    part: Part
    attempt: int = 0
    failures: int = 0
    seen: int | None = None
    failing_since_ns: int = 0
    evidence: int = 0
    evident_since_ns: int = 0
    evident_ns: int = 0

    def cut(self, records: tuple[int, ...]) -> "_Task":
        """A piece of it, as suspect as it is itself."""
        return replace(self, part=Part(self.part.request, records), failures=0)


def _is_past(since_ns: int, seconds: float, now_ns: int) -> bool:
    return now_ns - since_ns >= int(seconds * _NANOSECONDS)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that the destination has accepted and not confirmed."""

    task: _Task
    until_ns: int


class Delivery:
    """The state of one batch's requests.

    Args:
        requests: Number of records of each request, in order.
        policy: Retry policy.
        breaker: The destination's; it records each answer.
        rate_limiter: The sink's, in which who sends books; None: there is none.
    """

    def __init__(
        self,
        requests: Sequence[int],
        *,
        policy: Policy,
        breaker: Breaker,
        rate_limiter: RateLimiter | None = None,
    ) -> None:
        self._policy = policy
        self._breaker = breaker
        self._rate_limiter = rate_limiter
        self._queue = deque(
            _Task(Part(number, tuple(range(count)))) for number, count in enumerate(requests)
        )
        self._flying: _Task | None = None
        self._asking = False
        self._unconfirmed: dict[str, _Waiting] = {}
        self._deliveries = 0
        self._taken_ns = 0
        self._flowing_since_ns = 0
        self._deadline_ns: int | None = None
        self._ask_at_ns = 0
        self._given_up_ns: int | None = None
        self._held: list[tuple[_Task, Fault]] = []
        self._probes = 0
        self._overtaken: _Task | None = None

    @property
    def done(self) -> bool:
        """True if every record is delivered or refused."""
        return not (self._queue or self._flying or self._unconfirmed or self._held)

    def next_deadline_ns(self) -> int | None:
        """Return when to call `handle(Ticked())`; None while a response is due or all is done."""
        if self._flying or self._asking or self.done:
            return None
        held = (self._deadline_ns, self._breaker.next_deadline_ns())
        return max((it for it in held if it is not None), default=None)

    def note_delivered(self, now_ns: int) -> None:
        """Others have delivered requests of the same batch: the destination takes some."""
        self._took_some(now_ns)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take an event, the first one `Ticked`; at most the last effect is `Send` or `Ask`."""
        match event:
            case Ticked():
                effects: list[Effect] = []
            case Answered(result):
                assert self._flying is not None, "nothing was sent"
                task, self._flying = self._flying, None
                effects = self._answered(task, result, now_ns)
                effects += self._settle_held(now_ns)
            case Confirmed(tokens):
                assert self._asking, "nothing was asked"
                self._asking = False
                effects = self._confirmed(tokens, now_ns)
            case _:
                assert_never(event)
        return effects + self._go_on(now_ns)

    def _go_on(self, now_ns: int) -> list[Effect]:
        is_early = self._deadline_ns is not None and now_ns < self._deadline_ns
        if self._flying or self._asking or self.done or is_early:
            return []
        asks = bool(self._unconfirmed) and now_ns >= self._ask_at_ns
        sends = bool(self._queue) and len(self._unconfirmed) < self._policy.max_unconfirmed
        if sends and not asks and self._is_paced(now_ns):
            return []
        if not self._breaker.admits(now_ns):
            return []
        self._deadline_ns = None
        if asks:
            self._ask_at_ns = now_ns + int(self._policy.confirm_every_s * _NANOSECONDS)
            self._asking = True
            return [Ask(tuple(self._unconfirmed))]
        if sends:
            self._flying = self._queue.popleft()
            self._flying.attempt += 1
            return [Send(self._flying.part, self._flying.attempt)]
        self._deadline_ns = self._ask_at_ns
        return []

    def _is_paced(self, now_ns: int) -> bool:
        """Return whether the rate limit makes the next request wait; meanwhile `Ask` may go."""
        pause_ns = 0 if self._rate_limiter is None else self._rate_limiter.wait_ns(now_ns)
        if not pause_ns:
            return False
        until_ns = now_ns + pause_ns
        self._deadline_ns = min(until_ns, self._ask_at_ns) if self._unconfirmed else until_ns
        return True

    def _answered(self, task: _Task, result: DeliveryResult, now_ns: int) -> list[Effect]:
        match result:
            case Success():
                return [self._delivered(task.part, now_ns)]
            case Accepted(token):
                self._took_some(now_ns)
                if not self._unconfirmed:
                    self._ask_at_ns = now_ns + int(self._policy.confirm_every_s * _NANOSECONDS)
                if earlier := self._unconfirmed.pop(token, None):
                    self._queue.append(earlier.task)  # the destination counts from 0 again
                until_ns = now_ns + int(self._policy.confirm_s * _NANOSECONDS)
                self._unconfirmed[token] = _Waiting(task, until_ns)
                return []
            case PartialFailure():
                return self._partly_failed(task, result, now_ns)
            case TooLarge(fault) | Rejected(fault):
                return self._halve(task, fault, now_ns, isinstance(result, TooLarge))
            case Retryable(reason, after_s) | Paused(reason, after_s):
                self._queue.appendleft(task)
                tell = (
                    self._breaker.failed if isinstance(result, Retryable) else self._breaker.refused
                )
                tell(reason, after_s, now_ns)
                return [Retrying(self._breaker.circuit)]
            case Failed():
                return self._failed(task, result, now_ns)
            case _:
                assert_never(result)

    def _took_some(self, now_ns: int) -> None:
        if _is_past(self._taken_ns, self._policy.evidence_gap_s, now_ns):
            self._flowing_since_ns = now_ns
        self._deliveries += 1
        self._taken_ns = now_ns
        self._overtaken = None
        self._breaker.refusals = 0
        self._breaker.succeeded(now_ns)

    def _delivered(self, part: Part, now_ns: int) -> Effect:
        self._took_some(now_ns)
        return Delivered(part)

    def _partly_failed(self, task: _Task, result: PartialFailure, now_ns: int) -> list[Effect]:
        indexes, effects, before = task.part.records, list[Effect](), self._deliveries
        apart = {index for index, _ in (*result.refused, *result.failed)} | set(result.again)
        if taken := tuple(record for index, record in enumerate(indexes) if index not in apart):
            effects.append(self._delivered(Part(task.part.request, taken), now_ns))
        elif result.refused:
            self._found_fault(now_ns)
        if result.failed:
            self._blame(task, before, now_ns)
        poison = self._confirmed_poison(task, result, now_ns)
        for index, fault in result.refused:
            effects += self._refuse(task.cut((indexes[index],)), fault)
        for index, fault in poison:
            alone = Part(task.part.request, (indexes[index],))
            effects.append(Refused(alone, fault, task.attempt))
        later = [index for index, _ in result.failed[len(poison) :]]
        if later:
            failed = task.cut(tuple(indexes[index] for index in later))
            failed.failures = task.failures
            if self._policy.keeps_order:
                self._queue_failed(failed, now_ns)
            else:
                self._queue.append(failed)
        if result.again:
            again = tuple(indexes[index] for index in sorted(result.again))
            self._queue.appendleft(_Task(Part(task.part.request, again), task.attempt))
        if later or (result.again and result.reason):
            effects.append(self._wait(result.reason, result.after_s, now_ns))
        return effects

    def _confirmed_poison(
        self, task: _Task, result: PartialFailure, now_ns: int
    ) -> tuple[tuple[int, Fault], ...]:
        """Return the records that are confirmed poison: all that failed alone, one, or none."""
        if not result.failed or self._is_confirmed(task, task.failures, now_ns):
            return result.failed
        if self._is_alone_too_long(task, now_ns):
            self._given_up_ns = now_ns
            return result.failed[:1]
        return ()

    def _halve(self, task: _Task, fault: Fault, now_ns: int, is_too_large: bool) -> list[Effect]:
        self._found_fault(now_ns)
        if len(task.part.records) == 1:
            if is_too_large:
                return [Refused(task.part, fault, task.attempt)]
            return self._refuse(task, fault)
        first, second = _halves(task)
        self._queue.appendleft(second)
        self._queue.appendleft(first)
        return []

    def _found_fault(self, now_ns: int) -> None:
        """The destination is well, and says what is wrong with records; unless it does with all."""
        if self._breaker.circuit.state != "rejected":
            self._breaker.succeeded(now_ns)

    def _refuse(self, task: _Task, fault: Fault) -> list[Effect]:
        """Give a lone record up, or hold it until it is known whether others are taken."""
        if fault.about_record or self._deliveries or not self._policy.rejected_after:
            return [Refused(task.part, fault, task.attempt)]
        self._held.append((task, fault))
        return []

    def _settle_held(self, now_ns: int) -> list[Effect]:
        """Deliver, refuse or keep the records that are held."""
        if not self._held:
            return []
        refusals = self._breaker.refusals + len(self._held)
        others = bool(self._queue or self._unconfirmed)
        differ = len({fault.code for _, fault in self._held}) > 1
        if self._breaker.circuit.state == "rejected" and not self._deliveries:
            return self._reject(now_ns)
        if self._deliveries or differ or not (others or refusals >= self._policy.rejected_after):
            held, self._held = self._held, []
            if not self._deliveries:
                self._breaker.refusals = refusals
            return [Refused(task.part, fault, task.attempt) for task, fault in held]
        if refusals >= self._policy.rejected_after:
            most = _PROBES_IN_ORDER if self._policy.keeps_order else _PROBES
            if self._probes >= most or not self._queue:
                return self._reject(now_ns)
            self._probes += 1
            self._probe()
        return []

    def _reject(self, now_ns: int) -> list[Effect]:
        """Every record is refused for one reason: all stay, and go again after a pause."""
        reason = self._held[0][1].reason
        by_request: dict[int, _Task] = {}
        for task, _ in self._held:
            known = by_request.get(task.part.request)
            records = (*known.part.records, *task.part.records) if known else task.part.records
            whole = tuple(sorted(records))
            by_request[task.part.request] = replace(task, part=replace(task.part, records=whole))
        self._queue.extendleft(reversed(by_request.values()))
        self._held, self._probes = [], 0
        self._breaker.rejected(reason, now_ns)
        return [Retrying(self._breaker.circuit)]

    def _probe(self) -> None:
        """Have a record tried next by itself: the next one, or one elsewhere, each time another."""
        if self._policy.keeps_order:
            whole = self._queue.popleft()
            tried, *rest = whole.part.records
            if rest:
                self._queue.appendleft(whole.cut(tuple(rest)))
        else:
            at = -1 if self._probes == 1 else len(self._queue) * (self._probes - 1) // _PROBES
            whole = self._queue[at]
            *rest, tried = whole.part.records
            del self._queue[at]
            if rest:
                self._queue.insert(len(self._queue) if at == -1 else at, whole.cut(tuple(rest)))
        self._queue.appendleft(whole.cut((tried,)))

    def _failed(self, task: _Task, result: Failed, now_ns: int) -> list[Effect]:
        self._blame(task, self._deliveries, now_ns)
        if len(task.part.records) == 1:
            may_go = self._is_suspected(task, now_ns) and (result.answered or task.evidence > 0)
            blindly = may_go and self._is_alone_too_long(task, now_ns)
            if blindly or self._is_confirmed(task, task.evidence, now_ns):
                self._given_up_ns = now_ns if blindly else self._given_up_ns
                return [Refused(task.part, result.fault, task.attempt)]
        self._queue_failed(task, now_ns)
        return [self._wait(result.fault.reason, result.after_s, now_ns)]

    def _is_suspected(self, task: _Task, now_ns: int) -> bool:
        return (
            self._has_recent_evidence(task, now_ns) or task.failures >= self._policy.suspect_after
        )

    def _queue_failed(self, task: _Task, now_ns: int) -> None:
        """Queue a request that failed, where its suspicion and those of others want it."""
        if self._overtaken not in (None, task):
            self._queue.appendleft(task)
            self._restore_order()
        elif not self._is_suspected(task, now_ns):
            self._queue.appendleft(task)
        elif self._policy.keeps_order:
            self._isolate(task)
        else:
            self._queue.extend(_halves(task) if len(task.part.records) > 1 else (task,))

    def _isolate(self, task: _Task) -> None:
        """Queue a suspected request where order is kept: only a lone record is overtaken."""
        if len(task.part.records) > 1:
            first, second = _halves(task)
            first.failures = task.failures
            self._queue.extendleft((second, first))
            return
        suspects = takewhile(lambda it: it.evidence and len(it.part.records) == 1, self._queue)
        self._queue.insert(sum(1 for _ in suspects) + 1, task)
        self._overtaken = None if task.evidence else task

    def _restore_order(self) -> None:
        """What overtook a lone record failed, too, as in an outage: that one is first again."""
        overtaken, self._overtaken = self._overtaken, None
        if overtaken is not None and overtaken in self._queue:  # it may be held meanwhile
            self._queue.remove(overtaken)
            overtaken.failures = 0
            self._queue.appendleft(overtaken)

    def _blame(self, task: _Task, before: int, now_ns: int) -> None:
        """It failed; `before` this answer there had been so many deliveries."""
        task.failures += 1
        if task.seen is None:
            task.seen, task.failing_since_ns = before, now_ns
        if self._deliveries > task.seen:
            if not task.evidence or task.evident_ns < self._flowing_since_ns:
                task.evidence, task.evident_since_ns = 0, self._taken_ns
            task.evidence, task.evident_ns = task.evidence + 1, self._taken_ns
        task.seen = self._deliveries

    def _has_recent_evidence(self, task: _Task, now_ns: int) -> bool:
        """Return whether there is recent evidence against the task's records."""
        lasts_s = self._policy.confirmed_after_s + 3 * self._policy.evidence_gap_s
        return task.evidence > 0 and not _is_past(task.evident_ns, lasts_s, now_ns)

    def _is_confirmed(self, task: _Task, times: int, now_ns: int) -> bool:
        lasted = _is_past(task.evident_since_ns, self._policy.confirmed_after_s, now_ns)
        return times >= EVIDENCE and lasted and self._has_recent_evidence(task, now_ns)

    def _is_alone_too_long(self, task: _Task, now_ns: int) -> bool:
        since_ns = max(task.failing_since_ns, self._given_up_ns or 0)
        return _is_past(since_ns, self._policy.poison_after_s, now_ns)

    def _confirmed(self, tokens: Collection[str], now_ns: int) -> list[Effect]:
        found = [token for token in self._unconfirmed if token in tokens]
        # No evidence that requests are taken now: it was the asking that worked.
        effects: list[Effect] = [
            Delivered(self._unconfirmed.pop(token).task.part) for token in found
        ]
        late = [token for token, held in self._unconfirmed.items() if held.until_ns <= now_ns]
        for token in reversed(late):
            self._queue.appendleft(self._unconfirmed.pop(token).task)
        if late:
            effects.append(self._wait(f"requests not confirmed: {len(late)}", 0.0, now_ns))
        return effects

    def _wait(self, reason: str, asked_s: float, now_ns: int) -> Effect:
        self._breaker.failed(reason, asked_s, now_ns)
        return Retrying(self._breaker.circuit)


def _halves(task: _Task) -> tuple[_Task, _Task]:
    records = task.part.records
    middle = len(records) // 2
    return task.cut(records[:middle]), task.cut(records[middle:])
