"""What comes to the graph at one time, and what became of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.collector.core.batch import Batch
from penstock.collector.decode.line_rules import NO_TIME, OnError
from penstock.collector.transforms.event import Ending
from penstock.specs.validate.fast import Accepted
from penstock.specs.validate.validator import attach, attach_and_check, check_together


@dataclass(frozen=True, slots=True)
class Arrival:
    """Record lines of one source, as `penstock.collector.pipeline.Chunk` has them."""

    source: str
    start: int
    sequences: Sequence[int]
    lines: Sequence[bytes]
    resource: bytes
    observed_ns: int
    verdicts: Sequence[Accepted | None] = ()
    ended: Mapping[int, OnError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """A line for quarantine, as it came."""

    sequence: int
    reason: str
    line: bytes


@dataclass(slots=True)
class Outcome:
    """What became of an arrival's records and of the copies that were made of them.

    Attributes:
        batches: By subject, and which of a record's copies for that subject it is.
        ended: How many went no further, and why.
        copies: Records besides those that arrived.
        scrubbed: Records that had something sensitive taken out.
        found: What the detectors of sensitive values found, by their names; `without_key`:
            pseudonyms that were redacted because there is no hash key.
        pause_ns: How long the source must wait before it gives more.
    """

    batches: dict[tuple[str, int], Batch] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    ended: Counter[Ending] = field(default_factory=Counter)
    copies: int = 0
    scrubbed: int = 0
    found: Counter[str] = field(default_factory=Counter)
    pause_ns: int = 0


def without_ended(arrival: Arrival, outcome: Outcome) -> Arrival:
    """The records that go on; the outcome says of the others why they do not."""
    kept: list[int] = []
    for place, sequence in enumerate(arrival.sequences):
        match arrival.ended.get(sequence, "pass"):
            case "pass":
                kept.append(place)
            case "filter":
                outcome.ended[Ending.FILTERED] += 1
            case "quarantine":
                outcome.refused.append(Refused(sequence, NO_TIME, arrival.lines[place]))
    return replace(
        arrival,
        sequences=[arrival.sequences[place] for place in kept],
        lines=[arrival.lines[place] for place in kept],
        verdicts=[arrival.verdicts[place] for place in kept] if arrival.verdicts else (),
    )


def judged_together(arrival: Arrival) -> tuple[Sequence[bytes], Sequence[Accepted | None]]:
    """Lines with what was hoisted out of them, and the verdicts on them.

    There is none on a line that must be judged by itself.
    """
    lines, known = arrival.lines, arrival.verdicts or [None] * len(arrival.lines)
    if all(known):
        return lines, known
    missing = [line for line, verdict in zip(lines, known, strict=True) if verdict is None]
    whole, verdicts = _completed(missing, arrival)
    if len(missing) == len(lines):
        return whole, verdicts
    others = zip(whole, verdicts, strict=True)
    found = [
        next(others) if verdict is None else (line, verdict)
        for line, verdict in zip(lines, known, strict=True)
    ]
    return [line for line, _ in found], [verdict for _, verdict in found]


def _completed(
    lines: Sequence[bytes], arrival: Arrival
) -> tuple[Sequence[bytes], Sequence[Accepted | None]]:
    resource, observed_ns = arrival.resource, arrival.observed_ns
    try:
        if resource:
            whole, verdicts = attach_and_check(lines, resource, observed_ns)
        else:
            whole, verdicts = lines, check_together(lines)
    except Exception:  # noqa: BLE001 - judged each by itself, the one that did it is found and named
        whole = [attach(line, resource, observed_ns) for line in lines] if resource else lines
        verdicts = None
    return whole, verdicts or [None] * len(whole)
