"""A sink's requests, and a destination with good and bad hours; one seed, one life.

Nothing here sleeps or sends: the clock is virtual, time jumps to the machine's deadlines.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.router.delivery.breaker import Breaker
from penstock.router.delivery.core import (
    Answered,
    Delivered,
    Delivery,
    Event,
    Part,
    Policy,
    Refused,
    Send,
    Ticked,
)
from penstock.router.delivery.result import DeliveryResult, Failed, Fault, PartialFailure, Success
from penstock.router.sinks.http.settings import RequestRetry

SECOND_NS = 1_000_000_000
FAULT = Fault("502", "bad gateway")
BLIP_GAP_S = 70.0
"""An outage lets single requests through, so rarely at most."""

NEVER_S = 1e9
"""What is given up without evidence, one record an hour, is looked at elsewhere."""

Record = tuple[int, int]
Judge = Callable[[Part, int], DeliveryResult]


@dataclass(slots=True)
class Life:
    """What became of the records of one batch."""

    delivered: list[Record] = field(default_factory=list)
    refused: dict[Record, int] = field(default_factory=dict)
    sent: int = 0
    now_ns: int = 0


def live(
    dice: random.Random,
    sizes: list[int],
    classify_answer: Judge,
    patience: Policy | None = None,
    *,
    silence_s: float = 0.0,
) -> Life:
    """Deliver requests of these sizes until all are delivered or refused.

    A request that fails takes `silence_s` longer.
    """
    policy = patience or Policy(poison_after_s=NEVER_S)
    machine = Delivery(sizes, policy=policy, breaker=Breaker(RequestRetry().limits(), dice))
    stream_id = Life()
    event: Event = Ticked()
    while not machine.done:
        effects = machine.handle(event, stream_id.now_ns)
        event = Ticked()
        for effect in effects:
            match effect:
                case Send(part):
                    stream_id.sent += 1
                    stream_id.now_ns += dice.randrange(SECOND_NS // 100, SECOND_NS // 2)
                    verdict = classify_answer(part, stream_id.now_ns)
                    stream_id.now_ns += int(isinstance(verdict, Failed) * silence_s * SECOND_NS)
                    event = Answered(verdict)
                case Delivered(part):
                    stream_id.delivered += [(part.request, record) for record in part.records]
                case Refused(part):
                    stream_id.refused |= {
                        (part.request, it): stream_id.now_ns for it in part.records
                    }
                case _:
                    pass
        stream_id.now_ns = max(stream_id.now_ns, machine.next_deadline_ns() or 0)
        assert stream_id.now_ns < 100 * 3600 * SECOND_NS, "it never ends"
    return stream_id


def outage(seed: int, policy: Policy | None = None) -> Life:
    """Hours of 502 in which a request gets through now and then; no record is to blame."""
    dice = random.Random(seed)
    begin_ns = dice.randrange(2 * SECOND_NS)
    end_ns = begin_ns + dice.randrange(60, 4 * 3600) * SECOND_NS
    blips = [begin_ns + int(dice.uniform(1, 600) * SECOND_NS)]
    while blips[-1] < end_ns:
        gap_s = BLIP_GAP_S + dice.expovariate(1 / dice.choice([30, 300]))
        blips.append(blips[-1] + int(gap_s * SECOND_NS))

    def classify_answer(_: Part, now_ns: int) -> DeliveryResult:
        if not begin_ns <= now_ns < end_ns:
            return Success()
        if blips[0] <= now_ns:
            while blips[0] <= now_ns:
                del blips[0]
            return Success()
        return Failed(FAULT, answered=dice.random() < 0.5)

    sizes = [dice.choice([1, 1, 5, 100]) for _ in range(dice.randrange(1, 9))]
    return live(dice, sizes, classify_answer, policy)


def poison(seed: int, *, silence_s: float = 0.0) -> tuple[Life, set[Record]]:
    """A destination that is well, but for the records that break it: more of them if silently."""
    dice = random.Random(seed)
    sizes = [dice.randrange(16, 200) for _ in range(dice.randrange(2, 6))]
    records = [(request, it) for request, size in enumerate(sizes) for it in range(size)]
    bad = set(dice.sample(records, dice.randrange(1, 3)))
    if silence_s:
        sizes = [1000] * 20
        bad = {(dice.randrange(20), dice.randrange(1000)) for _ in range(dice.randrange(1, 16))}

    def classify_answer(part: Part, _: int) -> DeliveryResult:
        hit = any((part.request, record) in bad for record in part.records)
        return Failed(FAULT, answered=dice.random() < 0.5) if hit else Success()

    patience = Policy(evidence_gap_s=max(60.0, 4 * silence_s), poison_after_s=NEVER_S)
    return live(dice, sizes, classify_answer, patience, silence_s=silence_s), bad


def shard(seed: int, policy: Policy | None = None) -> Life:
    """One shard of the destination is away for a minute and a half: its records fail one by one."""
    dice = random.Random(seed)
    end_ns = dice.randrange(1, 90) * SECOND_NS

    def classify_answer(part: Part, now_ns: int) -> DeliveryResult:
        if now_ns >= end_ns:
            return Success()
        bad = [place for place, record in enumerate(part.records) if record % 5 == seed % 5]
        failed = tuple((place, FAULT) for place in bad)
        return PartialFailure(failed=failed, reason="500 of some") if failed else Success()

    return live(
        dice, [dice.randrange(1, 100) for _ in range(dice.randrange(1, 6))], classify_answer, policy
    )
