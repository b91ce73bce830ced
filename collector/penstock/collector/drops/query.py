"""Questions for records that a collector dropped or refused: what they name, and what matches."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

MATCHES_MAX: Final = 1000
"""Records in one answer to a question by HTTP."""

IDS_MAX: Final = 2000
"""Ids in one question; it is one line at the admin socket."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """A choice of records; an empty field takes all.

    Attributes:
        source: Name of the source that received them.
        step: Name of the transform that dropped them.
        reason: Prefix of the reason.
        trace_ids: Together with `record_ids` a choice of ids: a record that has one of either.
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
    trace_ids: frozenset[str] = frozenset()
    record_ids: frozenset[str] = frozenset()
    text: str = ""
    from_ns: int = 0
    limit: int = 0

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> Self:
        """Return the query that a request names; other keys of the request are not looked at.

        Raises:
            ValueError: A value has the wrong type, or there are too many ids.
        """
        found: dict[str, Any] = {}
        for field in fields(cls):
            default: Any = field.default
            value = request.get(field.name, default)
            if isinstance(default, frozenset):
                found[field.name] = _ids(field.name, value)
                continue
            if type(value) is not type(default) or (default == 0 and value < 0):
                kind = "a text" if default == "" else "a number from 0"
                raise ValueError(f"{field.name} must be {kind}")
            found[field.name] = value
        return cls(**found)

    def as_request(self) -> dict[str, Any]:
        """Return the keys of a request that asks this."""
        return {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in asdict(self).items()
            if value
        }

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
            and self._has_an_id(facts)
            and self.text in facts.get("raw", facts.get("text", ""))
        )

    def _has_an_id(self, facts: Mapping[str, Any]) -> bool:
        if not self.trace_ids and not self.record_ids:
            return True
        return facts["trace_id"] in self.trace_ids or facts["record_id"] in self.record_ids


def _ids(name: str, value: object) -> frozenset[str]:
    """Return the ids of a request.

    Raises:
        ValueError: They are no list of texts, or too many.
    """
    if not isinstance(value, list | frozenset) or any(
        type(one) is not str or not one for one in value
    ):
        raise ValueError(f"{name} must be a list of texts")
    if len(value) > IDS_MAX:
        raise ValueError(f"{name} has {len(value)} ids; {IDS_MAX} are allowed")
    return frozenset(value)
