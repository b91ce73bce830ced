"""Sizes and durations in configurations, with the unit that a person would write.

A key's name says its unit: `bytes_max` is in bytes, `timeout_s` in seconds, `poll_ms` in
milliseconds. Its value may be a number of these, or a text with a unit: `1GiB`, `10s`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, model_validator

_SIZE_KEY: Final = re.compile(r"(^|_)bytes(_|$)")
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)")
_SIZES: Final[Mapping[str, int]] = {
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
}
_SECONDS: Final[Mapping[str, float]] = {
    "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400,
}  # fmt: skip


def _read(model: type[BaseModel], data: Any) -> Any:
    """What a section says, with the quantities of its own keys as numbers.

    Raises:
        ValueError: A unit is not one of the key's.
    """
    if not isinstance(data, dict):
        return data
    found = {}
    for key in model.model_fields.keys() & data.keys():
        value, units = data[key], _units_of(key)
        if isinstance(value, str) and units and (quantity := _QUANTITY.fullmatch(value)):
            number, unit = quantity.groups()
            if unit not in units:
                msg = f"{key}: {value!r} has no unit that is known: use one of {', '.join(units)}"
                raise ValueError(msg)
            amount = float(number) * units[unit]
            found[key] = int(amount) if amount == int(amount) else amount
    return {**data, **found} if found else data


def _units_of(key: str) -> Mapping[str, float]:
    """The units that a key's value may have, in those of its name; none of other keys."""
    if _SIZE_KEY.search(key):
        return _SIZES
    if key.endswith("_ms"):
        return {unit: seconds * 1000 for unit, seconds in _SECONDS.items()}
    if key.endswith("_s") and not key.endswith("_per_s"):
        return _SECONDS
    return {}


class Quantities(BaseModel):
    """A section whose sizes and durations may have units."""

    @model_validator(mode="before")
    @classmethod
    def _read_units(cls, data: Any) -> Any:
        return _read(cls, data)
