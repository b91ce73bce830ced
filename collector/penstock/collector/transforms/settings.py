"""What the settings of transforms have in common, the output, and the configuration's own tests.

The settings of each transform stand in its module; docs/collector/transforms has a page for each.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, Field, model_validator

from penstock.collector.regex import compile_pattern
from penstock.collector.sources.settings import Section
from penstock.collector.transforms.expression import compile_condition, compile_expression
from penstock.collector.transforms.paths import parse_path, parse_selection
from penstock.collector.transforms.subjects import SubjectTemplate


def _checked_by(check: Callable[[str], object]) -> AfterValidator:
    """A text that `check` takes without a ValueError."""

    def keep(text: str) -> str:
        check(text)
        return text

    return AfterValidator(keep)


NAME_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Condition = Annotated[str, _checked_by(compile_condition)]
Expression = Annotated[str, _checked_by(compile_expression)]
Pattern = Annotated[str, _checked_by(compile_pattern)]
ReadablePath = Annotated[str, _checked_by(parse_path)]
WritablePath = Annotated[str, _checked_by(partial(parse_path, writable=True))]
WritablePaths = Annotated[str, _checked_by(parse_selection)]
Subject = Annotated[str, _checked_by(SubjectTemplate)]


class TransformSettings(Section):
    """The settings of one transform; a subclass narrows `type` to its one name.

    Attributes:
        inputs: Whose records it takes: names of sources, or outputs of transforms.
    """

    type: str
    inputs: list[str] = Field(min_length=1, max_length=256)


class OutputSection(Section):
    """What is published, and on which subjects."""

    inputs: list[str] | None = Field(default=None, min_length=1, max_length=1024)
    subject: Subject | None = None


def _json(value: Any) -> Any:
    try:
        orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except orjson.JSONEncodeError as error:
        msg = f"records are JSON, which has no such value ({error}): write it as a text"
        raise ValueError(msg) from None
    return value


class ExpectedRecord(Section):
    """A record that leaves the graph: its subject and some of its fields."""

    subject: str | None = None
    fields: Annotated[dict[ReadablePath, Any], AfterValidator(_json)] = Field(default={})
    absent: list[ReadablePath] = Field(default=[])


class Expected(Section):
    """What becomes of one record; `delivered` has an entry for each copy."""

    delivered: ExpectedRecord | list[ExpectedRecord] | None = None
    quarantined: str | None = None
    ended: (
        Literal["filtered", "sampled", "throttled", "deduplicated", "aggregated"]
        | list[Literal["filtered", "sampled", "throttled", "deduplicated", "aggregated"]]
        | None
    ) = None

    @model_validator(mode="after")
    def _expects_something(self) -> "Expected":
        if self.delivered is None and self.quarantined is None and self.ended is None:
            msg = "say what is expected: `delivered`, `quarantined` or `ended`"
            raise ValueError(msg)
        return self


class Step(Section):
    """One record, or one line as its source reads it, and what is expected of it.

    Attributes:
        record: Fields over those of a plain log record, or the text of a record as it arrives.
        line: What the source reads: a line of a file, of standard input or of a program, with what
            a container's runtime writes around it where the source's `format` says so, or a
            message of syslog. An event of several lines holds their newlines.
        after_s: How much later than the one before it comes.
    """

    record: Annotated[dict[str, Any] | str | None, AfterValidator(_json)] = None
    line: str | None = None
    after_s: float = Field(default=0, ge=0)
    expect: Expected

    @model_validator(mode="after")
    def _has_one_input(self) -> "Step":
        if (self.record is None) == (self.line is None):
            msg = "set either `record` or `line`"
            raise ValueError(msg)
        return self


class TestCase(Section):
    """Records that come from one source, one after the other, through a new graph."""

    name: str = Field(min_length=1)
    source: str
    steps: list[Step] = Field(min_length=1)
    created: list[ExpectedRecord] | None = None
