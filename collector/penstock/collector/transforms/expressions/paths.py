"""Places in records: what expressions read and transforms write, with their types.

A place is a field of the record (``body``, ``severity_number``), or a key of one of its flat
groups: everything after ``attributes.``, ``resource.`` or ``context.`` is one key, dots included,
as in ``attributes.http.response.status_code``. Names that dots cannot join stand in brackets:
``attributes["user agent"]``.

Where several places may be meant (`Selection`), ``*`` outside brackets stands for any characters,
dots among them. Elsewhere such a name is refused: no record would have it.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from penstock.specs.models.kinds import BASE_MODELS

Fields = dict[str, Any]
"""A record's JSON object. It and what lies in it is never changed, but replaced: copies share it.
"""

GROUPS: Final = ("attributes", "resource", "context")
FIXED: Final = ("schema", "kind")
"""Say what the record is; no transform changes them."""

_PATH: Final = re.compile(r'^([a-z_]+)(?:\.([^\s\[\]"]+)|\["([^"\\]+)"\])?$')
_TYPES: Final = {
    "string": "string", "integer": "int", "number": "number", "boolean": "bool",
    "array": "list", "object": "map",
}  # fmt: skip


class PathError(ValueError):
    """No record has such a place."""


@cache
def field_types() -> Mapping[str, str]:
    """Every field that some kind of record has, and its type: that of expressions, or ``dyn``."""
    found: dict[str, str] = {}
    for model in BASE_MODELS.values():
        for name, facts in model.model_json_schema(by_alias=True)["properties"].items():
            variants = [v for v in facts.get("anyOf", [facts]) if v.get("type") != "null"]
            kinds = {_TYPES.get(v.get("type", ""), "map" if "$ref" in v else "dyn")
                     for v in variants}  # fmt: skip
            kind = kinds.pop() if len(kinds) == 1 else "dyn"
            found[name] = kind if found.get(name, kind) == kind else "dyn"
    return found


def check_path(path: tuple[str, ...]) -> str:
    """The type of a place.

    Raises:
        PathError: There is none of that name.
    """
    types = field_types()
    name = path[0]
    if name not in types:
        near = difflib.get_close_matches(name, [*types], 1)
        hint = f"; did you mean {near[0]}?" if near else f"; fields are {', '.join(sorted(types))}"
        raise PathError(f"records have no field {name!r}{hint}")
    if len(path) == 1:
        return types[name]
    if name not in GROUPS:
        raise PathError(f"{name} has nothing inside that can be named; {', '.join(GROUPS)} have")
    return "dyn"


def parse_path(text: str, *, writable: bool = False) -> tuple[str, ...]:
    """A place as configurations name it: the field, and the key in it.

    Raises:
        PathError: The text names none, or, when `writable`, one that cannot be set.
    """
    match = _PATH.match(text)
    if match is None:
        raise PathError(f"{text!r} names no field; fields look like body, attributes.user.tier")
    if match[2] and "*" in match[2]:
        raise PathError(
            f"{text} may be several fields; name one, without *; a key that has a * stands in"
            f' brackets: {match[1]}["{match[2]}"]'
        )
    key = match[2] or match[3]
    path = (match[1],) if key is None else (match[1], key)
    check_path(path)
    if writable and (path[0] in FIXED or path == ("resource",)):
        raise PathError(f"{text} says what the record is, and cannot be changed")
    return path


@dataclass(frozen=True, slots=True)
class Selection:
    """The places that a name means: one, or all keys of a group that fit a pattern.

    Attributes:
        path: The place; of a pattern its group alone.
        pattern: Pattern of keys of the group; None: it is one place.
    """

    path: tuple[str, ...]
    pattern: re.Pattern[str] | None = None

    def places(self, fields: Fields) -> list[tuple[str, ...]]:
        """Return the selected places in which a record has a value."""
        if self.pattern is None:
            return [self.path] if getter(self.path)(fields) is not None else []
        group = fields.get(self.path[0])
        if group.__class__ is not dict:
            return []
        fits = self.pattern.fullmatch
        return [
            (*self.path, key) for key, value in group.items() if value is not None and fits(key)
        ]


def parse_selection(text: str) -> Selection:
    """One place as `parse_path`, writable, or several: ``attributes.*``, ``resource.host.*``.

    Raises:
        PathError: No record has such places, or they cannot be set.
    """
    match = _PATH.match(text)
    if match is None or not match[2] or "*" not in match[2]:
        return Selection(parse_path(text, writable=True))
    check_path((match[1], match[2]))
    pattern = ".*".join(map(re.escape, re.split(r"\*+", match[2])))
    return Selection((match[1],), re.compile(pattern, re.DOTALL))


def getter(path: tuple[str, ...]) -> Callable[[Fields], Any]:
    """Return a function that reads the place; it returns None where there is nothing."""
    name = path[0]
    if len(path) == 1:
        return lambda fields: fields.get(name)
    key = ".".join(path[1:])

    def read(fields: Fields) -> Any:
        group = fields.get(name)
        return group.get(key) if group.__class__ is dict else None

    return read


def assign(fields: Fields, path: tuple[str, ...], value: Any) -> Fields:
    """A copy of the fields with a value in the place."""
    if len(path) == 1:
        return {**fields, path[0]: value}
    return {**fields, path[0]: {**(fields.get(path[0]) or {}), path[1]: value}}


def without(fields: Fields, path: tuple[str, ...]) -> Fields:
    """A copy of the fields without the place; the fields themselves when there is nothing."""
    name = path[0]
    if len(path) == 1:
        return {k: v for k, v in fields.items() if k != name} if name in fields else fields
    group = fields.get(name)
    if not group or path[1] not in group:
        return fields
    return {**fields, name: {k: v for k, v in group.items() if k != path[1]}}
