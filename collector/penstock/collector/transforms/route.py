"""Route: records part by conditions; each leaves by the first output whose condition holds."""

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.sources.settings import Name, Section
from penstock.collector.transforms.expressions.expression import Evaluate, compile_condition
from penstock.collector.transforms.expressions.subject_template import SubjectTemplate
from penstock.collector.transforms.transform import (
    Condition,
    Event,
    Subject,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
)

UNMATCHED = "unmatched"
"""The output of `route` for records that no condition holds for."""


class RouteBranch(Section):
    """One output of `route`."""

    where: Condition
    subject: Subject | None = None


class RouteSettings(TransformSettings):
    """Records part: each leaves by the first output whose condition holds, or by `unmatched`."""

    type: Literal["route"]
    routes: dict[Name, RouteBranch] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _names_are_free(self) -> "RouteSettings":
        if UNMATCHED in self.routes:
            msg = "`unmatched` is where records go for which no condition holds; name it otherwise"
            raise ValueError(msg)
        return self


@dataclass(frozen=True, slots=True)
class Branch:
    """One named output of `route`."""

    name: str
    condition: Evaluate
    subject: SubjectTemplate | None


def _branch(name: str, settings: RouteBranch) -> Branch:
    subject = None if settings.subject is None else SubjectTemplate(settings.subject)
    return Branch(name, compile_condition(settings.where).evaluate, subject)


class Route(Transform):
    """Sends each record to the first output whose condition holds, else to `UNMATCHED`."""

    settings = RouteSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls([_branch(name, branch) for name, branch in settings.routes.items()])

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
