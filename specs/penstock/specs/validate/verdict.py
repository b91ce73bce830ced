"""The validator's verdict on a line."""

from dataclasses import dataclass
from typing import NamedTuple


class Accepted(NamedTuple):
    """The line is a record; pass its bytes on.

    Attributes:
        service: The resource's ``service.name``.
        severity_number: 1 to 24; what is not a log record counts as INFO (9), a span that failed
            as ERROR (17).
        unknown_fields: Fields that the spec does not have and that were tolerated.
        exact: The record was validated by its very spec, not by a newer minor's predecessor or by
            the base of its kind.
        names: Names of its attributes.
    """

    kind: str
    schema: str
    service: str
    time_unix_nano: int
    severity_number: int
    unknown_fields: int
    exact: bool
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """The line is not a record.

    Attributes:
        reason: One of a small fixed set, fit for a counter's label.
        detail: The field and the rule it breaks; no values.
    """

    reason: str
    detail: str = ""
