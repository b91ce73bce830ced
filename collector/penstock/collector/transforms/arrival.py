"""What comes to the graph at one time, and what became of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.collector.core.batch import Batch
from penstock.collector.transforms.event import Ending
from penstock.specs.fast_gate import Accepted
from penstock.specs.gate import attach, attach_all, check_together


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
        pause_ns: How long the source must wait before it gives more.
    """

    batches: dict[tuple[str, int], Batch] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    ended: Counter[Ending] = field(default_factory=Counter)
    copies: int = 0
    scrubbed: int = 0
    pause_ns: int = 0


def judged_together(arrival: Arrival) -> tuple[Sequence[bytes], Sequence[Accepted]]:
    """Lines with what was hoisted out of them, and the verdicts on all.

    There is none where one of them must be judged by itself.
    """
    lines, resource, observed_ns = arrival.lines, arrival.resource, arrival.observed_ns
    if arrival.verdicts:
        known = [one for one in arrival.verdicts if one is not None]
        if len(known) == len(lines):
            return lines, known
        whole = [
            line if verdict or not resource else attach(line, resource, observed_ns)
            for line, verdict in zip(lines, arrival.verdicts, strict=True)
        ]
        return whole, ()
    completed = attach_all(lines, resource, observed_ns) if resource else lines
    try:
        return completed, check_together(completed) or ()
    except Exception:  # noqa: BLE001 - judged each by itself, the one that did it is found and named
        return completed, ()
