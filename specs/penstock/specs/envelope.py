"""What every record carries, whatever its kind.

A record is one JSON object on one line of UTF-8 (NDJSON). Its first keys are `schema` and `kind`.
`resource` says who emitted it; on the way from an application to its collector it may be left out
of each line and stand once in the batch's header.
"""

import inspect
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import override

from penstock.specs import clock
from penstock.specs.errors import RefusedSpecError
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
from penstock.specs.versions import SchemaName, register

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

ZERO_TRACE = "0" * 32
ZERO_SPAN = "0" * 16


class Context(BaseModel):
    """On whose behalf something happened; bound once, then on every record."""

    model_config = CONFIG

    user_id: Annotated[str | None, Field(alias="user.id", max_length=128)] = None
    account_id: Annotated[str | None, Field(alias="account.id", max_length=128)] = None
    account_license: Annotated[str | None, Field(alias="account.license", max_length=64)] = None
    request_id: Annotated[str | None, Field(alias="request.id", max_length=64)] = None
    request_parent_id: Annotated[str | None, Field(alias="request.parent_id", max_length=64)] = None
    session_id: Annotated[str | None, Field(alias="session.id", max_length=64)] = None
    client_address: Annotated[str | None, Field(alias="client.address", max_length=64)] = None
    user_agent_original: Annotated[
        str | None, Field(alias="user_agent.original", max_length=512)
    ] = None
    user_email: Annotated[str | None, Field(alias="user.email", max_length=254)] = None
    user_name: Annotated[str | None, Field(alias="user.name", max_length=128)] = None


class Record(BaseModel):
    """The fields of every kind.

    A subclass with `spec="namespace.name/MAJOR.MINOR"` is a specialised spec: its own fields travel
    as attributes named ``namespace.field``, so that the columns of its kind never change.

    Where a record is made, `schema_id` is the class's and the time is now, unless given; on the
    wire both must be there (`penstock.specs.kinds.WIRE_REQUIRED`).
    """

    model_config = CONFIG

    spec: ClassVar[str]
    """The schema id of this class."""
    own_fields: ClassVar[dict[str, str]] = {}
    """A specialised spec's own fields: field name to attribute key."""

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
        if spec is not None:
            _specialise(cls, spec)

    @model_validator(mode="after")
    def _trace_is_whole(self) -> Self:
        if self.span_id is not None and self.trace_id is None:
            raise ValueError("span_id needs trace_id")
        if self.trace_id == ZERO_TRACE:
            raise ValueError("trace_id is all zero")
        if self.span_id == ZERO_SPAN:
            raise ValueError("span_id is all zero")
        return self


def _specialise(cls: type[Record], spec: str) -> None:
    """Turn a subclass into a named spec and register it.

    Raises:
        RefusedSpecError: The name is no schema id, is taken, or a field changes an inherited one.
    """
    cls.spec = spec
    schema = SchemaName.parse(spec)
    parent = next(base for base in cls.__mro__[1:] if issubclass(base, Record))
    fields = cls.__pydantic_fields__
    fields["schema_id"].default = spec
    if parent is not Record:
        if redefined := set(parent.model_fields) & set(inspect.get_annotations(cls)):
            raise RefusedSpecError(f"{spec}: {', '.join(sorted(redefined))} is already defined")
        namespace = schema.name.rpartition(".")[0] or schema.name
        own = [name for name in cls.model_fields if name not in parent.model_fields]
        cls.own_fields = parent.own_fields | {name: f"{namespace}.{name}" for name in own}
        if "event_name" in fields:
            fields["event_name"].default = schema.name
    cls.model_rebuild(force=True)
    register(cls)
