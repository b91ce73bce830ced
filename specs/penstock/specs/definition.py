"""What a spec class may look like; checked when it is defined, so that its author hears of it.

- Its id is well formed and new; a field of its parent is not defined again.
- Its own fields are what an attribute can hold: text, numbers, booleans, `Literal` values, lists of
  these.
- A marker of sensitivity is not lost or weakened, and its action suits the field's type.
- A metric's own fields are dimensions: each has an enumeration or a declared cap, none is an id.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.specs.dimensions import refuse_dimension
from penstock.specs.errors import RefusedSpecError
from penstock.specs.limits import HASHED_CHARACTERS_MAX
from penstock.specs.sensitive import Sensitive, marker_of
from penstock.specs.versions import SchemaName

if TYPE_CHECKING:
    from penstock.specs.envelope import Record

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
    """Where a record is made: a spec's namespace holds its declared fields only.

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
