"""Caps on the values of a metric's dimensions, kept where the metric is emitted.

A process remembers as many different values of a dimension as its `Dimension` allows; what comes
later goes out under `OVERFLOW`. Of a value only its hash is kept, so that memory is bounded in
bytes, too: two values with one hash are a chance of one in 10**16, and cost one series.
"""

import logging
from collections import Counter
from functools import lru_cache
from itertools import count
from typing import Any, Final

from pydantic import ValidationError

from penstock.specs.models.codec import lift
from penstock.specs.models.dimensions import Dimension
from penstock.specs.models.envelope import AT_EDGE, Record

_LOGGER: Final = logging.getLogger("penstock.specs")
OVERFLOW: Final = "__other__"
"""In the place of values beyond the cap. A dimension that cannot hold it is left out, if it may."""


class Cardinality:
    """What a process has seen of its dimensions. Takes no lock: threads, forks and signals may.

    Attributes:
        folded: Values that went out as `OVERFLOW`, or not at all, by the dimension's attribute.
    """

    def __init__(self) -> None:
        self.folded: Final[Counter[str]] = Counter()
        self._seen: dict[tuple[str, str], _Seen] = {}

    def fold(self, model: type[Record], fields: dict[str, Any]) -> None:
        """Change, in a record's JSON object, what is beyond a cap; tells of each dimension once.

        Raises:
            ValueError: A dimension that has to be there, and cannot say `OVERFLOW`, is beyond it.
        """
        for key, cap in _caps(model):
            value = fields.get("attributes", {}).get(key)
            if value is None:
                continue
            seen = self._seen.get((model.spec, key))
            if seen is None:
                seen = self._seen.setdefault((model.spec, key), _Seen(cap))
            if not seen.takes(value):
                self.folded[key] += 1
                if self.folded[key] == 1:
                    _LOGGER.warning(
                        "%s: %s has more than %d values; the others go out as %s. Raise its cap,"
                        " or put what has so many on an event", model.spec, key, cap, OVERFLOW,
                    )  # fmt: skip
                seen.fold(model, fields, key)


class _Seen:
    """The values of one dimension."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._numbers: dict[int, int] = {}
        self._next = count()
        self._overflow: list[Any] = []

    def takes(self, value: Any) -> bool:
        """Whether a value is among the first so many.

        Threads that meet here get numbers of their own, hence never more than the cap in all.
        """
        mark = hash((type(value), tuple(value) if isinstance(value, list) else value))
        if mark in self._numbers:
            return True
        if len(self._numbers) >= self._cap:
            return False
        if self._numbers.setdefault(mark, next(self._next)) < self._cap:
            return True
        self._numbers.pop(mark, None)
        return False

    def fold(self, model: type[Record], fields: dict[str, Any], key: str) -> None:
        """Say the overflow in the value's place: the first that the spec accepts, found once."""
        candidates = self._overflow or [OVERFLOW, [OVERFLOW], None]
        for candidate in candidates:
            attributes = {**fields["attributes"], key: candidate}
            if candidate is None:
                del attributes[key]
            changed = {**fields, "attributes": attributes}
            if self._overflow or _is_right(model, changed):
                self._overflow = [candidate]
                fields["attributes"] = attributes
                return
        raise ValueError(f"{key} has more values than its cap, and cannot say so")


@lru_cache(maxsize=1024)
def _caps(model: type[Record]) -> tuple[tuple[str, int], ...]:
    """Attribute and cap of each dimension that has one."""
    return tuple(
        (key, rule.max_cardinality)
        for name, key in model.own_fields.items()
        for rule in model.model_fields[name].metadata
        if isinstance(rule, Dimension)
    )


def _is_right(model: type[Record], fields: dict[str, Any]) -> bool:
    try:
        model.model_validate(lift(model, fields), context=AT_EDGE)
    except ValidationError:
        return False
    return True
