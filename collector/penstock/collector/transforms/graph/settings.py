"""The settings of the output, and of the tests that stand in a configuration."""

from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, Field, model_validator

from penstock.collector.sources.settings import Section
from penstock.collector.transforms.transform import ReadablePath, Subject


class OutputSection(Section):
    """Subjects that records are published on, and which are published."""

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
    """The expected result of one record; `delivered` has an entry for each copy."""

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
        line: Input of the source: a line of a file, of standard input or of a program, with what a
            container's runtime writes around it where the source's `format` says so, or a message
            of syslog. An event of several lines holds their newlines.
        after_s: Seconds between the one before it and this one.
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
