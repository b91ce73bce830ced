"""Upcasts from one major version to the next: functions on records in their wire form.

    @upcast("shop.order_placed", 1)
    def _total_in_cents(record: dict[str, Any]) -> dict[str, Any]:
        attributes = dict(record["attributes"])
        attributes["shop.total_cents"] = round(attributes.pop("shop.total") * 100)
        return {**record, "attributes": attributes}

An upcaster gets and gives JSON objects, changes nothing in place, and leaves `schema` alone, which
is set for it. What is stored stays as it was; who reads it gets the newest version.
"""

from collections.abc import Callable
from typing import Any, Final

from penstock.specs.errors import RefusedRecordError, RefusedSpecError
from penstock.specs.models.envelope import SchemaName, newest_minors

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

_UPCASTERS: Final[dict[tuple[str, int], Upcaster]] = {}


def upcast(name: str, major: int) -> Callable[[Upcaster], Upcaster]:
    """Register the way from a spec's major version to the next one.

    Raises:
        RefusedSpecError: There is another one already.
    """

    def register(function: Upcaster) -> Upcaster:
        known = _UPCASTERS.setdefault((name, major), function)
        if (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
            raise RefusedSpecError(f"{name}/{major} has the upcaster {known.__qualname__} already")
        _UPCASTERS[name, major] = function
        return function

    return register


def has_upcaster(name: str, major: int) -> bool:
    return (name, major) in _UPCASTERS


def upcast_record(fields: dict[str, Any], major: int | None = None) -> dict[str, Any]:
    """A record as a later major version.

    Args:
        fields: Its JSON object.
        major: The version to bring it to; None is the nearest that is known here, its own first.

    Raises:
        RefusedSpecError: There is no way there, or its schema id is malformed.
        RefusedRecordError: An upcaster failed; the record is not what it expects.
    """
    schema = SchemaName.parse(str(fields.get("schema")))
    minors = newest_minors(schema.name)
    goals = [known for known in minors if known >= schema.major] if major is None else [major]
    if not goals:
        raise RefusedSpecError("a newer major version than any that is known here")
    record = fields
    for step in range(schema.major, min(goals)):
        upcaster = _UPCASTERS.get((schema.name, step))
        if upcaster is None:
            raise RefusedSpecError(f"{schema.name}/{step} has no upcaster")
        try:
            record = upcaster(record)
        except Exception as error:  # noqa: BLE001 - it is the application's, and the record is odd
            raise RefusedRecordError("invalid", f"upcast: {type(error).__name__}") from None
        record = {**record, "schema": f"{schema.name}/{step + 1}.{minors.get(step + 1, 0)}"}
    return record
