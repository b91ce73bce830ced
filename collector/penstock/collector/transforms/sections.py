"""The sections of the configuration that describe transforms, one model a type.

docs/transforms.md describes every key; `penstock collector schema` prints them as JSON Schema.
"""

from typing import Annotated, Any, Literal, get_args

import orjson
from pydantic import AfterValidator, Field, model_validator

from penstock.collector.regex import compile_pattern
from penstock.collector.sources.sections import Section, TimestampOptions
from penstock.collector.transforms.expression import compile_condition, compile_expression
from penstock.collector.transforms.paths import parse_path, parse_selection
from penstock.collector.transforms.subjects import SubjectTemplate
from penstock.service import FilePath
from penstock.specs.limits import NAME_CHARACTERS_MAX


def _condition(text: str) -> str:
    compile_condition(text)
    return text


def _expression(text: str) -> str:
    compile_expression(text)
    return text


def _pattern(text: str) -> str:
    compile_pattern(text)
    return text


def _path(text: str) -> str:
    parse_path(text)
    return text


def _place(text: str) -> str:
    parse_path(text, writable=True)
    return text


def _places(text: str) -> str:
    parse_selection(text)
    return text


def _subject(text: str) -> str:
    SubjectTemplate(text)
    return text


NAME_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Condition = Annotated[str, AfterValidator(_condition)]
Expression = Annotated[str, AfterValidator(_expression)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Readable = Annotated[str, AfterValidator(_path)]
Place = Annotated[str, AfterValidator(_place)]
Places = Annotated[str, AfterValidator(_places)]
Subject = Annotated[str, AfterValidator(_subject)]


class TransformSection(Section):
    """What every transform has: whose records it takes, sources or outputs of transforms."""

    inputs: list[str] = Field(min_length=1, max_length=256)


class LiftSection(Section):
    """Keys whose values become fields of the record."""

    body: str | None = None
    severity: str | None = None
    time: str | None = None
    trace_id: str | None = None
    span_id: str | None = None


class ParseSection(TransformSection):
    """A text of the record becomes attributes."""

    type: Literal["parse"]
    format: Literal["json", "logfmt", "key_value", "regex", "csv", "clf", "syslog"]
    field: Readable = "body"
    prefix: str = Field(default="", max_length=64)
    pattern: Pattern | None = None
    columns: list[Annotated[str, Field(min_length=1)]] = Field(default=[])
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    pair_separator: str = Field(default=" ", min_length=1, max_length=16)
    value_separator: str = Field(default="=", min_length=1, max_length=16)
    types: dict[str, Literal["int", "double", "string", "bool"]] = Field(default={})
    lift: LiftSection = LiftSection()
    on_failure: Literal["pass", "filter", "quarantine"] = "pass"

    @model_validator(mode="after")
    def _has_what_its_format_needs(self) -> "ParseSection":
        if (self.format == "regex") != (self.pattern is not None):
            msg = "`pattern` is for the format regex, which needs one"
            raise ValueError(msg)
        if (self.format == "csv") != bool(self.columns):
            msg = "`columns` is for the format csv, which needs them"
            raise ValueError(msg)
        if self.pattern is not None and not compile_pattern(self.pattern).groupindex:
            msg = "pattern: names no group, as in (?P<status>[0-9]+)"
            raise ValueError(msg)
        return self


class TimestampSection(TransformSection, TimestampOptions):
    """A text of the record says when it happened."""

    type: Literal["timestamp"]
    field: Readable = "body"
    on_error: Literal["pass", "filter", "quarantine"] = Field(
        default="pass", description="what becomes of a record whose time cannot be read"
    )


class EditSection(TransformSection):
    """Fields are renamed, then set, then removed."""

    type: Literal["edit"]
    rename: dict[Place, Place] = Field(default={})
    set: dict[Place, Expression] = Field(default={})
    remove: list[Places] = Field(default=[])

    @model_validator(mode="after")
    def _does_something(self) -> "EditSection":
        if not (self.rename or self.set or self.remove):
            msg = "set `rename`, `set` or `remove`"
            raise ValueError(msg)
        return self


class FilterSection(TransformSection):
    """Records go on for which a condition holds."""

    type: Literal["filter"]
    where: Condition


class RouteBranch(Section):
    """One output of `route`."""

    where: Condition
    subject: Subject | None = None


class RouteSection(TransformSection):
    """Records part: each leaves by the first output whose condition holds, or by `unmatched`."""

    type: Literal["route"]
    routes: dict[Name, RouteBranch] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _names_are_free(self) -> "RouteSection":
        if "unmatched" in self.routes:
            msg = "`unmatched` is where records go for which no condition holds; name it otherwise"
            raise ValueError(msg)
        return self


class RedactSection(TransformSection):
    """More is taken out than `sensitive` does, which treats every record at the output anyway."""

    type: Literal["redact"]
    fields: list[Places] = Field(default=[])
    action: Literal["replace", "remove"] = "replace"
    patterns: dict[Name, Pattern] = Field(default={})

    @model_validator(mode="after")
    def _does_something(self) -> "RedactSection":
        if not (self.fields or self.patterns):
            msg = "set `fields` or `patterns`"
            raise ValueError(msg)
        return self


class SampleSection(TransformSection):
    """A share of the records is kept, by trace, and says how many it stands for."""

    type: Literal["sample"]
    ratio: float = Field(ge=1e-6, le=1)
    seed: str = Field(default="", max_length=32, pattern=r"^[\x20-\x7e]*$")
    keep_errors: bool = True
    keep: Condition | None = None


class ThrottleSection(TransformSection):
    """No more than so many records a second, of each source and key."""

    type: Literal["throttle"]
    rate: float = Field(ge=0.01, le=1e9)
    burst: int | None = Field(default=None, ge=1)
    key: Expression | None = None
    max_keys: int = Field(default=10_000, ge=1, le=1_000_000)
    when_exceeded: Literal["drop", "block"] = "drop"


class DedupeSection(TransformSection):
    """Records whose key was seen within the window are dropped."""

    type: Literal["dedupe"]
    key: Expression | None = None
    window_s: float = Field(default=60.0, gt=0, le=86_400)
    max_keys: int = Field(default=100_000, ge=1, le=10_000_000)


class CountSection(TransformSection):
    """Records are counted or measured, and only the metric goes on."""

    type: Literal["logs_to_metrics"]
    name: str = Field(min_length=1, max_length=NAME_CHARACTERS_MAX)
    unit: str = Field(default="1", min_length=1, max_length=63)
    metric: Literal["counter", "histogram"] = "counter"
    value: Expression | None = None
    dimensions: dict[Annotated[str, Field(min_length=1, max_length=128)], Expression] = Field(
        default={}, max_length=16
    )
    max_series: int = Field(default=1000, ge=1, le=100_000)
    interval_s: float = Field(default=10.0, ge=0.1, le=3600)

    @model_validator(mode="after")
    def _measures_something(self) -> "CountSection":
        if self.metric == "histogram" and self.value is None:
            msg = "a histogram needs a `value`"
            raise ValueError(msg)
        return self


class TableSection(Section):
    """Rows of a file, looked up by a key; read when the collector starts."""

    file: FilePath
    key: Expression
    column: str = Field(min_length=1)
    prefix: str = Field(default="", max_length=64)


class EnrichSection(TransformSection):
    """Facts are added that the record does not have."""

    type: Literal["enrich"]
    host: bool = False
    container: bool = False
    tables: list[TableSection] = Field(default=[])

    @model_validator(mode="after")
    def _does_something(self) -> "EnrichSection":
        if not (self.host or self.container or self.tables):
            msg = "set `host`, `container` or `tables`"
            raise ValueError(msg)
        return self


TransformConfig = Annotated[
    ParseSection
    | EditSection
    | FilterSection
    | RouteSection
    | RedactSection
    | SampleSection
    | ThrottleSection
    | DedupeSection
    | CountSection
    | EnrichSection
    | TimestampSection,
    Field(discriminator="type"),
]
TRANSFORM_TYPES: tuple[type[TransformSection], ...] = get_args(get_args(TransformConfig)[0])


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
    fields: Annotated[dict[Readable, Any], AfterValidator(_json)] = Field(default={})
    absent: list[Readable] = Field(default=[])


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
