"""Filter and route: records go on or part by conditions."""

from dataclasses import dataclass

from typing_extensions import override

from penstock.collector.transforms.event import PASS, Ending, Event, Transform, Verdict
from penstock.collector.transforms.expression import Evaluate
from penstock.collector.transforms.subjects import SubjectTemplate

UNMATCHED = "unmatched"
"""The output of `route` for records that no condition holds for."""


class Filter(Transform):
    """Lets pass what the condition holds for."""

    outputs = (PASS,)

    def __init__(self, condition: Evaluate) -> None:
        self._condition = condition

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        return PASS if self._condition(event.fields) else Ending.FILTERED


@dataclass(frozen=True, slots=True)
class Branch:
    """One named output of `route`."""

    name: str
    condition: Evaluate
    subject: SubjectTemplate | None


class Route(Transform):
    """Sends each record to the first output whose condition holds, else to `UNMATCHED`."""

    def __init__(self, branches: list[Branch]) -> None:
        self._branches = branches
        self.outputs = (*(branch.name for branch in branches), UNMATCHED)

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        for branch in self._branches:
            if branch.condition(event.fields):
                if branch.subject is not None:
                    event.subject = branch.subject
                return branch.name
        return UNMATCHED
