"""What every record carries, whatever its kind.

A record is one JSON object on one line of UTF-8 (NDJSON). Its first keys are `schema` and `kind`.
`resource` says who emitted it; on the way from an application to its collector it may be left out
of each line and stand once in the batch's header.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from typing_extensions import override

from penstock.specs import clock
from penstock.specs.definition import refuse_lost_markers, refuse_undeclared, specialise
from penstock.specs.errors import BrokenRuleError
from penstock.specs.limits import SCOPE_CHARACTERS_MAX
from penstock.specs.resource import Resource
from penstock.specs.scalars import (
    Attributes,
    Count,
    Kind,
    Nanoseconds,
    RecordId,
    SchemaId,
    SpanId,
    TraceId,
)
from penstock.specs.sensitive import Sensitive
from penstock.specs.versions import register

CONFIG = ConfigDict(
    frozen=True,
    strict=True,
    extra="forbid",
    allow_inf_nan=False,
    hide_input_in_errors=True,
    serialize_by_alias=True,
    validate_by_alias=True,
    validate_by_name=True,
)
"""For every model of a record: typos fail where records are made. The gate tolerates unknown
fields by itself, because there they come from a newer minor version."""

AT_EDGE: Final = {"edge": True}
"""Validation context of records that come from elsewhere, perhaps with a newer minor version's
attributes in their spec's namespace. Where a record is made those must be declared."""

ZERO_TRACE: Final = "0" * 32
ZERO_SPAN: Final = "0" * 16

Rule = Callable[[Any], None]
"""A rule between fields: takes anything that has the fields, raises ValueError. The text of a
`BrokenRuleError` is shown to people; that of another is not."""


def trace_is_whole(record: Any) -> None:
    """The ids of a trace."""
    if record.span_id is not None and record.trace_id is None:
        raise BrokenRuleError("span_id needs trace_id")
    if record.trace_id == ZERO_TRACE:
        raise BrokenRuleError("trace_id is all zero")
    if record.span_id == ZERO_SPAN:
        raise BrokenRuleError("span_id is all zero")


class Context(BaseModel):
    """On whose behalf something happened; bound once, then on every record."""

    model_config = CONFIG

    user_id: Annotated[
        str | None, Field(alias="user.id", max_length=128), Sensitive("pseudonym")
    ] = None
    account_id: Annotated[
        str | None, Field(alias="account.id", max_length=128), Sensitive("internal")
    ] = None
    account_license: Annotated[
        str | None, Field(alias="account.license", max_length=64), Sensitive("internal")
    ] = None
    request_id: Annotated[str | None, Field(alias="request.id", max_length=64)] = None
    request_parent_id: Annotated[str | None, Field(alias="request.parent_id", max_length=64)] = None
    session_id: Annotated[
        str | None, Field(alias="session.id", max_length=64), Sensitive("pseudonym")
    ] = None
    client_address: Annotated[
        str | None, Field(alias="client.address", max_length=64), Sensitive("pii", "truncate")
    ] = None
    user_agent_original: Annotated[
        str | None, Field(alias="user_agent.original", max_length=512), Sensitive("pii")
    ] = None
    user_email: Annotated[
        str | None, Field(alias="user.email", max_length=254), Sensitive("pii")
    ] = None
    user_name: Annotated[str | None, Field(alias="user.name", max_length=128), Sensitive("pii")] = (
        None
    )


class Record(BaseModel):
    """The fields of every kind.

    A subclass with `spec="namespace.name/MAJOR.MINOR"` is a specialised spec: its own fields travel
    as attributes named ``namespace.field``, so that the columns of its kind never change. What such
    a class may look like: `penstock.specs.definition`.

    Where a record is made, `schema_id` is the class's and the time is now, unless given; on the
    wire both must be there (`penstock.specs.kinds.WIRE_REQUIRED`).
    """

    model_config = CONFIG

    spec: ClassVar[str]
    """The schema id of this class."""
    own_fields: ClassVar[dict[str, str]] = {}
    """A specialised spec's own fields: field name to attribute key."""
    rules: ClassVar[tuple[Rule, ...]] = (trace_is_whole,)
    """What must hold between fields; a subclass adds to its parent's."""

    schema_id: Annotated[SchemaId, Field(alias="schema")] = ""
    kind: Kind
    time_unix_nano: Nanoseconds = Field(default_factory=clock.unix_ns)
    observed_time_unix_nano: Nanoseconds | None = None
    record_id: RecordId | None = None
    trace_id: TraceId | None = None
    span_id: SpanId | None = None
    trace_flags: Annotated[int | None, Field(ge=0, le=255)] = None
    scope: Annotated[str | None, Field(max_length=SCOPE_CHARACTERS_MAX)] = None
    sample_weight: Annotated[float | None, Field(ge=1)] = None
    context: Context | None = None
    resource: Resource | None = None
    attributes: Attributes | None = None
    dropped_attributes_count: Count | None = None

    @override
    def __init_subclass__(cls, *, spec: str | None = None, **kwargs: Any) -> None:
        """Accept the class keyword; `__pydantic_init_subclass__` does the work."""
        super().__init_subclass__(**kwargs)

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, *, spec: str | None = None, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        refuse_lost_markers(cls)
        if spec is not None:
            specialise(cls, spec)
            register(cls)

    @model_validator(mode="after")
    def _obeys_its_rules(self, info: ValidationInfo) -> Self:
        for rule in self.rules:
            rule(self)
        if self.own_fields and self.attributes and info.context is not AT_EDGE:
            refuse_undeclared(self.own_fields.values(), self.attributes, self.kind)
        return self
