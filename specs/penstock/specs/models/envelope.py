"""The envelope: fields of every record, whatever its kind.

A record is one JSON object on one line of UTF-8 (NDJSON). Its first keys are `schema` and `kind`.
`resource` says who emitted it; on the way from an application to its collector it may be left out
of each line and stand once in the batch's header.

The definition of a spec class is checked:

- Its id is well formed and new; a field of its parent is not defined again.
- Its own fields are what an attribute can hold: text, numbers, booleans, `Literal` values, lists of
  these.
- A marker of sensitivity is not lost or weakened, and its action suits the field's type.
- A metric's own fields are dimensions: each has an enumeration or a declared cap, none is an id.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, Final, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from typing_extensions import override

from penstock.base import clock
from penstock.specs.errors import BrokenRuleError, RefusedSpecError, UnknownSpecError
from penstock.specs.limits import HASHED_CHARACTERS_MAX, SCHEMA_CHARACTERS_MAX, SCOPE_CHARACTERS_MAX
from penstock.specs.models.dimensions import refuse_dimension
from penstock.specs.models.resource import Resource
from penstock.specs.models.scalars import (
    SCHEMA_PATTERN,
    Attributes,
    Count,
    Kind,
    Nanoseconds,
    RecordId,
    SchemaId,
    SpanId,
    TraceId,
)
from penstock.specs.redact.sensitivity import Sensitive, marker_of

_SCHEMA: Final = re.compile(SCHEMA_PATTERN)
_MODELS: dict[str, dict[tuple[int, int], "type[Record]"]] = {}
_ON_REGISTER: list[Callable[[], None]] = []
_has_kinds = False
BASE_NAMES: Final = ("log", "span", "metric", "event", "audit")


@dataclass(frozen=True, slots=True)
class SchemaName:
    """A schema id taken apart: ``shop.order_placed/1.0``."""

    name: str
    major: int
    minor: int

    @classmethod
    def parse(cls, schema_id: str) -> Self:
        """Take a schema id apart.

        Raises:
            RefusedSpecError: It is not of the form ``name/MAJOR.MINOR``.
        """
        if len(schema_id) > SCHEMA_CHARACTERS_MAX or _SCHEMA.fullmatch(schema_id) is None:
            raise RefusedSpecError(
                f"{schema_id[:SCHEMA_CHARACTERS_MAX]!r} is no schema id: it looks like"
                " shop.order_placed/1.0, namespace.name/MAJOR.MINOR in lower case"
            )
        name, _, version = schema_id.partition("/")
        major, _, minor = version.partition(".")
        return cls(name, int(major), int(minor))


@dataclass(frozen=True, slots=True)
class Resolution:
    """The model that validates a record.

    Attributes:
        model: None when the name is known and its major version is not.
        exact: The record's very spec is known. Otherwise the model is that of the newest known
            minor version, or of the base kind for a name that is not known.
    """

    model: "type[Record] | None"
    exact: bool


def register(model: "type[Record]") -> None:
    """Make a spec known by its id.

    Raises:
        RefusedSpecError: Another class has that id.
    """
    schema = SchemaName.parse(model.spec)
    versions = _MODELS.setdefault(schema.name, {})
    known = versions.setdefault((schema.major, schema.minor), model)
    if (known.__module__, known.__qualname__) != (model.__module__, model.__qualname__):
        raise RefusedSpecError(f"{model.spec} is already {known.__module__}.{known.__qualname__}")
    versions[schema.major, schema.minor] = model
    for callback in _ON_REGISTER:
        callback()


def _load_kinds() -> None:
    """Load the five base specs, which an application that looks up no spec does not need."""
    global _has_kinds  # noqa: PLW0603 - once in a process
    if not _has_kinds:
        _has_kinds = True
        import_module("penstock.specs.models.kinds")


def on_register(callback: Callable[[], None]) -> None:
    """Call back whenever another spec becomes known: what was concluded before may be wrong."""
    _ON_REGISTER.append(callback)


def specs() -> dict[str, "type[Record]"]:
    """All known specs by id, sorted."""
    _load_kinds()
    found = {model.spec: model for versions in _MODELS.values() for model in versions.values()}
    return dict(sorted(found.items()))


def model_for(schema_id: str) -> "type[Record]":
    """The spec of exactly that id.

    Raises:
        UnknownSpecError: There is none.
    """
    known = specs()
    if schema_id not in known:
        raise UnknownSpecError(schema_id, ", ".join(known))
    return known[schema_id]


def base_model(kind: str) -> "type[Record]":
    """The newest version of a kind's base spec."""
    _load_kinds()
    versions = _MODELS[kind]
    return versions[max(versions)]


@lru_cache(maxsize=1024)
def resolve(schema_id: str, kind: str) -> Resolution:
    """Choose the model for a record's schema and kind.

    Raises:
        RefusedSpecError: The id is malformed.
        KeyError: The kind is not one of the five.
    """
    schema = SchemaName.parse(schema_id)
    base = base_model(kind)
    versions = _MODELS.get(schema.name)
    if versions is None:
        return Resolution(base, exact=False)
    if model := versions.get((schema.major, schema.minor)):
        return Resolution(model, exact=True)
    minors = [version for version in versions if version[0] == schema.major]
    return Resolution(versions[max(minors)] if minors else None, exact=False)


on_register(resolve.cache_clear)


def newest_minors(name: str) -> dict[int, int]:
    """Return the newest minor version of each known major version of a spec."""
    _load_kinds()
    return dict(sorted(_MODELS.get(name, {})))


Schema = Mapping[str, Any]
"""A node of pydantic's core schema."""

_WRAPPERS: Final = frozenset(
    {"nullable", "default", "function-after", "function-before", "function-wrap"}
)
_NAMED_BY: Final = {"event": "event_name", "audit": "event_name", "metric": "name"}
"""The field that says what a record of a specialised spec is: the spec's own name."""
_SCALARS: Final = frozenset({"str", "int", "float", "bool", "literal", "none"})


def specialise(cls: "type[Record]", spec: str) -> None:
    """Turn a subclass into a named spec.

    Raises:
        RefusedSpecError: It is not well formed; the message says what to do.
    """
    schema = SchemaName.parse(spec)
    cls.spec = spec
    fields = cls.__pydantic_fields__
    fields["schema_id"].default = spec
    if (parent := _spec_above(cls)) is not None:
        _refuse_redefined(cls, parent)
        namespace = schema.name.rpartition(".")[0] or schema.name
        own = [name for name in cls.model_fields if name not in parent.model_fields]
        cls.own_fields = parent.own_fields | {name: f"{namespace}.{name}" for name in own}
        if (name := _NAMED_BY.get(fields["kind"].default)) is not None:
            fields[name].default = schema.name
    cls.model_rebuild(force=True)
    if parent is not None:
        _refuse_odd_fields(cls)


def refuse_lost_markers(cls: "type[Record]") -> None:
    """A field is marked at least as strictly as the same field of every class above.

    Raises:
        RefusedSpecError: One is not.
    """
    for name, found in cls.model_fields.items():
        marker = marker_of(found)
        for base in cls.__mro__[1:]:
            above = getattr(base, "__pydantic_fields__", {}).get(name)
            lost = None if above is None else marker_of(above)
            if lost is not None and (marker is None or not marker.covers(lost)):
                raise RefusedSpecError(
                    f"{cls.__qualname__}: {name} is {lost.sensitivity} in {base.__qualname__}; "
                    f"mark it Sensitive({lost.sensitivity!r}, {lost.action!r}) here, too"
                )


def refuse_undeclared(declared: Iterable[str], attributes: Iterable[str], kind: str) -> None:
    """Refuse undeclared fields in a spec's namespace; called where a record is made.

    What a later minor version declares there has then never meant anything else. A metric has no
    attributes but its dimensions.

    Raises:
        ValueError: There is another attribute.
    """
    spaces = {key.rpartition(".")[0] + "." for key in declared}
    for name in attributes:
        if kind == "metric":
            raise ValueError("a metric's attributes are its declared dimensions")
        if any(name.startswith(space) for space in spaces):
            raise ValueError("an attribute in the spec's namespace is not declared")


def model_fields_of(schema: Schema) -> Schema:
    """The fields of a model's core schema: name to `model-field`."""
    while schema["type"] != "model-fields":
        schema = schema["schema"]
    return cast("Schema", schema["fields"])


def _spec_above(cls: "type[Record]") -> "type[Record] | None":
    return next((base for base in cls.__mro__[1:] if "spec" in base.__dict__), None)


def _refuse_redefined(cls: "type[Record]", parent: "type[Record]") -> None:
    names = {
        name
        for base in cls.__mro__
        if base not in parent.__mro__
        for name in inspect.get_annotations(base)
    }
    if redefined := names & parent.model_fields.keys():
        raise RefusedSpecError(f"{cls.spec}: {', '.join(sorted(redefined))} is already defined")


def _refuse_odd_fields(cls: "type[Record]") -> None:
    schemas = model_fields_of(cls.__pydantic_core_schema__)
    for name in cls.own_fields:
        place = f"{cls.spec}: {name}"
        leaves = list(_leaves(schemas[name]["schema"]))
        for leaf in leaves:
            if leaf["type"] not in _SCALARS:
                raise RefusedSpecError(
                    f"{place} is of type {leaf['type']}; an own field is text, a number, a boolean,"
                    " Literal values or a list of these (times are integers, enums Literals)"
                )
        required = cls.model_fields[name].is_required()
        if required and any(leaf["type"] == "none" for leaf in leaves):
            raise RefusedSpecError(f"{place}: None is not written; give it None as default")
        marker = marker_of(cls.model_fields[name])
        if marker is not None:
            _refuse_action(place, marker, leaves, required=required)
        if cls.model_fields["kind"].default == "metric":
            refuse_dimension(place, name, cls.model_fields[name], leaves)


def _leaves(schema: Schema, *, in_list: bool = False) -> Iterator[Schema]:
    kind = schema["type"]
    if kind == "nullable":
        yield {"type": "none"}
    if kind in _WRAPPERS:
        yield from _leaves(schema["schema"], in_list=in_list)
    elif kind == "union":
        for choice in schema["choices"]:
            yield from _leaves(choice[0] if isinstance(choice, tuple) else choice, in_list=in_list)
    elif kind == "list" and not in_list and "items_schema" in schema:
        yield from _leaves(schema["items_schema"], in_list=True)
    else:
        yield schema


def _refuse_action(place: str, marker: Sensitive, leaves: list[Schema], *, required: bool) -> None:
    if marker.action == "drop" and required:
        raise RefusedSpecError(f"{place}: what is dropped must be optional, or redact it")
    if marker.action in ("keep", "drop"):
        return
    for leaf in leaves:
        room = leaf.get("max_length")
        fits = room is None or room >= HASHED_CHARACTERS_MAX
        if leaf["type"] != "none" and (leaf["type"] != "str" or "pattern" in leaf or not fits):
            raise RefusedSpecError(
                f"{place}: {marker.action} makes text of up to {HASHED_CHARACTERS_MAX} characters;"
                " the field's type must allow it, or keep or drop it"
            )


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
"""Configuration of every record model: unknown fields fail where records are made. The validator
tolerates them, because there they come from a newer minor version."""

AT_EDGE: Final = {"edge": True}
"""Validation context of records that come from elsewhere, perhaps with a newer minor version's
attributes in their spec's namespace. Where a record is made those must be declared."""

ZERO_TRACE: Final = "0" * 32
ZERO_SPAN: Final = "0" * 16

Rule = Callable[[Any], None]
"""A rule between fields: takes anything that has the fields, raises ValueError. The text of a
`BrokenRuleError` is shown to people; that of another is not."""


def trace_is_whole(record: Any) -> None:
    if record.span_id is not None and record.trace_id is None:
        raise BrokenRuleError("span_id needs trace_id")
    if record.trace_id == ZERO_TRACE:
        raise BrokenRuleError("trace_id is all zero")
    if record.span_id == ZERO_SPAN:
        raise BrokenRuleError("span_id is all zero")


class Context(BaseModel):
    """The person or account a thing happened for; bound once, then on every record."""

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
    a class may look like: `penstock.specs.models.envelope`.

    Where a record is made, `schema_id` is the class's and the time is now, unless given; on the
    wire both must be there (`penstock.specs.models.kinds.WIRE_REQUIRED`).
    """

    # A spec's class is built once, when its id and its defaults are known: see `specialise`.
    model_config = CONFIG | ConfigDict(defer_build=True)

    spec: ClassVar[str]
    """The schema id of this class."""
    own_fields: ClassVar[dict[str, str]] = {}
    """A specialised spec's own fields: field name to attribute key."""
    rules: ClassVar[tuple[Rule, ...]] = (trace_is_whole,)
    """Rules between fields; a subclass adds to its parent's."""

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
