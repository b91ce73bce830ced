"""Questions for records that a collector dropped or refused: what they name, and what matches."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

MATCHES_MAX: Final = 1000
"""Records in one answer to a question by HTTP."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """A choice of records; an empty field takes all.

    Attributes:
        source: Name of the source that received them.
        step: Name of the transform that dropped them.
        reason: Prefix of the reason.
        text: Text that the record's kept text holds; case counts.
        from_ns: Unix time in nanoseconds; earlier drops and refusals are left out.
        limit: Most records, the newest; 0: all.
    """

    source: str = ""
    step: str = ""
    reason: str = ""
    service: str = ""
    trace_id: str = ""
    record_id: str = ""
    text: str = ""
    from_ns: int = 0
    limit: int = 0

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> Self:
        """Return the query that a request names; other keys of the request are not looked at.

        Raises:
            ValueError: A value has the wrong type.
        """
        found: dict[str, Any] = {}
        for field in fields(cls):
            default: Any = field.default
            value = request.get(field.name, default)
            if type(value) is not type(default) or (default == 0 and value < 0):
                kind = "a text" if default == "" else "a number from 0"
                raise ValueError(f"{field.name} must be {kind}")
            found[field.name] = value
        return cls(**found)

    def as_request(self) -> dict[str, Any]:
        """Return the keys of a request that asks this."""
        return {name: value for name, value in asdict(self).items() if value}

    def takes(self, facts: Mapping[str, Any]) -> bool:
        """Return whether a record matches.

        Args:
            facts: The record with the keys that `penstock.collector.drops.journal` describes; its
                text may stand under `raw`, too.
        """
        return (
            facts["time_unix_nano"] >= self.from_ns
            and self.source in ("", facts["source"])
            and self.step in ("", facts.get("step"))
            and facts["reason"].startswith(self.reason)
            and self.service in ("", facts["service"])
            and self.trace_id in ("", facts["trace_id"])
            and self.record_id in ("", facts["record_id"])
            and self.text in facts.get("raw", facts.get("text", ""))
        )
