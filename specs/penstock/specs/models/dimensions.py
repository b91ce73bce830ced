"""Dimensions of metrics: each multiplies the series that someone stores and pays for.

So a dimension says how many values it can have: by being a `Literal` or a boolean, or with a cap,
``route: Annotated[str, Dimension(max_cardinality=200)]``. What identifies one user, request or
trace is no dimension; on logs and events it is welcome.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from penstock.specs.errors import RefusedSpecError
from penstock.specs.limits import DIMENSION_CARDINALITY_MAX
from penstock.specs.redact.sensitivity import marker_of

_IDS: Final = frozenset({"id", "uuid", "guid", "ulid", "ids", "email", "address", "ip"})
"""The last word of a name that identifies one of very many."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """Caps the values of a metric's dimension.

    Raises:
        RefusedSpecError: The cap is not from 1 to 1,000.
    """

    max_cardinality: int

    def __post_init__(self) -> None:
        if not 0 < self.max_cardinality <= DIMENSION_CARDINALITY_MAX:
            raise RefusedSpecError(
                f"max_cardinality is from 1 to {DIMENSION_CARDINALITY_MAX}; what has more values"
                " belongs on an event or a log record"
            )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "x-max-cardinality": self.max_cardinality}


def refuse_dimension(
    place: str, name: str, found: FieldInfo, leaves: Sequence[Mapping[str, Any]]
) -> None:
    """Raise if a metric's own field is no dimension.

    Raises:
        RefusedSpecError: It has no bound, is an id, or is sensitive.
    """
    marker = marker_of(found)
    if marker is not None and marker.sensitivity not in ("public", "internal"):
        raise RefusedSpecError(f"{place} is {marker.sensitivity}; a dimension is stored for ever")
    if all(leaf["type"] in ("literal", "bool", "none") for leaf in leaves):
        return
    if name.rpartition("_")[2] in _IDS:
        raise RefusedSpecError(
            f"{place} is an id; put it on an event, a log record or an exemplar's trace"
        )
    if not any(isinstance(rule, Dimension) for rule in found.metadata):
        raise RefusedSpecError(
            f"{place} has no bound: make it a Literal, or mark it Dimension(max_cardinality=…)"
        )
