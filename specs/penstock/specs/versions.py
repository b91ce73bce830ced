"""Which model a schema id means, and what to do with one that is not known here."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, Self

from penstock.specs.errors import RefusedSpecError, UnknownSpecError
from penstock.specs.limits import SCHEMA_CHARACTERS_MAX
from penstock.specs.scalars import SCHEMA_PATTERN

if TYPE_CHECKING:
    from penstock.specs.envelope import Record

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
            raise RefusedSpecError("a schema id is namespace.name/MAJOR.MINOR in lower case")
        name, _, version = schema_id.partition("/")
        major, _, minor = version.partition(".")
        return cls(name, int(major), int(minor))


@dataclass(frozen=True, slots=True)
class Resolution:
    """The model that judges a record.

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
    """Whoever asks for specs knows the five kinds; an application that asks for none loads none."""
    global _has_kinds  # noqa: PLW0603 - once in a process
    if not _has_kinds:
        _has_kinds = True
        import_module("penstock.specs.kinds")


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
    """For each known major version of a spec its newest minor."""
    _load_kinds()
    return dict(sorted(_MODELS.get(name, {})))
