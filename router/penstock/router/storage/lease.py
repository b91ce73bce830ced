"""A lease that a store grants to one process: the one that made the newest term, while it beats.

    terms/00000007                who has the term; made only where there is none of that number
    terms/00000007.000000000012   its twelfth beat: its holder says that it is there
    terms/00000007.released       its holder went

Beats are separate names, of which the highest number counts: one that is applied long after it
was given up must not look like the one that was seen before.

A lease is held for a while from the moment that its last beat was *asked* for, provided that a look
*after* the beat found no newer term. A process that wants it makes the next term once nothing has
changed for as long as the holder's lease lasts, between the end of one look and the beginning of
another. Then one more look shows whether the holder beat before the new term was there. If it did,
it may hold the lease once more for as long, and is waited for. So never do two hold it, however
long a request takes, whether it is applied though it failed, and however slowly a process runs.
What the store must be: a name is made by one of many, and a look sees all that was answered before
it was asked.
What clocks must do: run equally fast, also while a machine is suspended; they need not agree on the
time.

After M. Burrows, "The Chubby lock service", and C. Gray, D. Cheriton, "Leases" (1989).
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Look:
    """Find a term, its holder and its beat; answered by `Sighting`."""

    term: int = 0
    """Number of the term; 0: the newest one's."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Make a term of this number for this holder; answered by whether there was none."""

    term: int
    holder: str
    length_ns: int


@dataclass(frozen=True, slots=True)
class Beat:
    """Make the term's beat of this number; the answer means nothing."""

    term: int
    number: int


@dataclass(frozen=True, slots=True)
class Release:
    """Note that the term's holder went; the answer means nothing."""

    term: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Let some of a lease's time pass; the answer means nothing."""


Step = Look | Claim | Beat | Release | Wait


@dataclass(frozen=True, slots=True)
class Sighting:
    """The lease as one look at the store found it.

    Attributes:
        term: The newest term; 0: there has been none.
        holder: The process that made it.
        beat: The number of its last beat.
        released: Whether the holder gave the lease up.
        length_ns: Nanoseconds that the holder takes one beat to hold; 0: unknown.
    """

    term: int = 0
    holder: str = ""
    beat: int = 0
    released: bool = False
    length_ns: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a step.

    Attributes:
        found: The value that the step's own description names.
        asked_ns: Time when the step began, by a clock that runs on while the machine is suspended.
        answered_ns: Time when its result was known, by the same clock.
    """

    found: Sighting | bool | None
    asked_ns: int
    answered_ns: int


Steps = Generator[Step, Answer, "Lease"]
"""Steps to be taken one by one, each with its answer; in the end the lease."""


@dataclass(slots=True)
class Lease:
    """A lease that was taken.

    Attributes:
        term: Its number; larger than that of every lease before.
        length_ns: Nanoseconds that it is held from a beat on.
        since_ns: Time when the last beat that counts was requested.
        lost: Somebody else has made a term since.
        beats: Number of requested beats.
    """

    term: int
    length_ns: int
    since_ns: int
    lost: bool = False
    beats: int = 0

    def is_held(self, now_ns: int) -> bool:
        """Return whether no other process can hold the lease."""
        return not self.lost and now_ns - self.since_ns < self.length_ns


def take(holder: str, length_ns: int, rules: "Rules | None" = None) -> Steps:
    """Take the lease as soon as that can be.

    A step that fails, be it done or not, ends it; the next attempt begins again.

    Args:
        holder: A name that no other process has now; one that had it before is not waited for.
        length_ns: Nanoseconds that a lease is held. A longer one of another holder is waited for as
            long.
        rules: Other ones, for simulations that show what each is good for.
    """
    rules = rules or Rules()
    while True:
        found = yield from given_up(holder, length_ns, rules)
        claim = yield Claim(found.term + 1, holder, length_ns)
        if not claim.found:
            continue
        lease = Lease(found.term + 1, length_ns, claim.asked_ns)
        if _sighting((yield Look())).term > lease.term:  # it is an old one, tidied away long ago
            continue
        if not rules.is_free(found, holder) and _sighting((yield Look(found.term))) != found:
            yield from rules.outlast(claim.answered_ns, max(length_ns, found.length_ns))
        yield from renew(lease)  # with a first beat: before it, nobody knows whether we got so far
        if not lease.lost:
            return lease


def given_up(holder: str, length_ns: int, rules: "Rules") -> Generator[Step, Answer, Sighting]:
    """The newest term, once its holder let go, or was silent for as long as it can have held it."""
    seen: Sighting | None = None
    seen_ns = 0
    while True:
        answer = yield Look()
        found = _sighting(answer)
        if found != seen:
            seen, seen_ns = found, answer.answered_ns
        silent_ns = answer.asked_ns - seen_ns
        if rules.is_free(found, holder) or silent_ns >= max(length_ns, found.length_ns):
            return found
        yield Wait()


def outlast(claimed_ns: int, length_ns: int) -> Generator[Step, Answer, None]:
    """Wait until who beat just before our term was there cannot have the lease any more."""
    now_ns = claimed_ns
    while now_ns - claimed_ns < length_ns:
        now_ns = (yield Wait()).answered_ns


def renew(lease: Lease) -> Steps:
    """Beat, and see whether the lease is still ours; a step that fails changes nothing."""
    lease.beats += 1
    beat = yield Beat(lease.term, lease.beats)
    if _sighting((yield Look())).term > lease.term:
        lease.lost = True
    else:
        lease.since_ns = beat.asked_ns
    return lease


def release(lease: Lease) -> Steps:
    """Let the next process not wait; nothing may be done under the lease any more."""
    lease.lost = True
    yield Release(lease.term)
    return lease


def is_free(found: Sighting, holder: str) -> bool:
    """Return whether a holder may take the lease at once, without waiting for it to run out."""
    held_before = found.holder == holder and found.beat > 0
    return found.term == 0 or found.released or held_before


@dataclass(frozen=True, slots=True)
class Rules:
    """Whom `take` waits for, and how long."""

    is_free: Callable[[Sighting, str], bool] = is_free
    outlast: Callable[[int, int], Generator[Step, Answer, None]] = outlast


def _sighting(answer: Answer) -> Sighting:
    assert isinstance(answer.found, Sighting)
    return answer.found
