"""A catalogue of specs, built from samples of records.

A record names its spec and version in `schema`, as in `log/1.0`, and its producer in the resource's
`service.name`. Of each look at a stream the catalog is told how many records came since the look
before and some of them; it takes these for all. Everything is bounded, and what is beyond a bound
is counted with the last one, `other`.
"""

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SPECS_MAX: Final = 200
FIELDS_MAX: Final = 100
PRODUCERS_MAX: Final = 20
STREAMS_MAX: Final = 20
"""Bound for the fields and for the producers of one spec."""

NAME_CHARACTERS_MAX: Final = 128
WINDOW_S: Final = 60
OTHER: Final = "other"
NO_SPEC: Final = "no spec"
"""The spec of records that name none, or are no JSON objects."""

_COMMON: Final = frozenset({"schema", "kind"})
_NESTED: Final = ("attributes",)
"""Objects whose fields are listed one by one."""

_TYPES: Final = {str: "text", bool: "boolean", int: "integer", float: "number", dict: "object",
                 list: "list", type(None): "null"}  # fmt: skip


@dataclass(slots=True)
class Spec:
    """One version of one spec.

    Attributes:
        sampled: Records that were looked at.
        counts: Counts of each look of the last minute: (Unix time in seconds, records).
        fields: Records that have a field, by its name.
        types: Types of the fields, by field.
    """

    first_s: int
    last_s: int = 0
    sampled: int = 0
    counts: deque[tuple[int, float]] = field(default_factory=deque)
    fields: Counter[str] = field(default_factory=Counter)
    types: dict[str, set[str]] = field(default_factory=dict)
    producers: Counter[str] = field(default_factory=Counter)
    streams: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class SpecCatalog:
    """The specs that were seen since the console started."""

    _specs: dict[str, Spec] = field(default_factory=dict)

    def note(self, stream: str, values: Iterable[bytes | None], came: int, unix_s: int) -> None:
        """Take a look at a stream.

        Args:
            stream: Its name.
            values: Those of some of the records that came; None: a tombstone.
            came: Number of records since the last look.
            unix_s: Unix time of the look.
        """
        found = [document_of(value) for value in values if value is not None]
        seen: Counter[str] = Counter()
        for document in found:
            name = self._name(document)
            seen[name] += 1
            self._count(self._specs.setdefault(name, Spec(unix_s)), document, stream)
        for name, records in seen.items():
            spec = self._specs[name]
            spec.last_s = unix_s
            spec.counts.append((unix_s, came * records / len(found)))

    def describe(self, unix_s: int) -> list[dict[str, Any]]:
        """Return all specs by name, for the page."""
        return [self._described(name, spec, unix_s) for name, spec in sorted(self._specs.items())]

    def _name(self, document: Mapping[str, Any]) -> str:
        said = document.get("schema")
        name = said[:NAME_CHARACTERS_MAX] if isinstance(said, str) and said else NO_SPEC
        return name if name in self._specs or len(self._specs) < SPECS_MAX else OTHER

    @staticmethod
    def _count(spec: Spec, document: Mapping[str, Any], stream: str) -> None:
        spec.sampled += 1
        resource = document.get("resource")
        service = resource.get("service.name") if isinstance(resource, Mapping) else None
        producer = service[:NAME_CHARACTERS_MAX] if isinstance(service, str) else "not said"
        spec.producers[_within(spec.producers, producer, PRODUCERS_MAX)] += 1
        spec.streams[_within(spec.streams, stream, STREAMS_MAX)] += 1
        for name, value in _fields(document):
            known = _within(spec.fields, name, FIELDS_MAX)
            spec.fields[known] += 1
            spec.types.setdefault(known, set()).add(_TYPES.get(type(value), "text"))

    @staticmethod
    def _described(name: str, spec: Spec, unix_s: int) -> dict[str, Any]:
        while spec.counts and spec.counts[0][0] <= unix_s - WINDOW_S:
            spec.counts.popleft()
        kind, _, version = name.partition("/")
        return {
            "spec": kind,
            "version": version,
            "first_ms": spec.first_s * 1000,
            "last_ms": spec.last_s * 1000,
            "sampled": spec.sampled,
            "records_per_minute": sum(count for _, count in spec.counts),
            "producers": dict(spec.producers.most_common()),
            "streams": dict(spec.streams.most_common()),
            "fields": [
                {
                    "name": one,
                    "types": sorted(spec.types[one]),
                    "share": min(1.0, count / spec.sampled),
                }
                for one, count in spec.fields.most_common()
            ],
        }


def document_of(value: bytes) -> dict[str, Any]:
    """A record's JSON object; empty when it is none."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def violations(parts: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Records that collectors refused, by collector, source and reason, the most frequent first.

    Args:
        parts: Names of collectors, each with its `info.reconciliation`.
    """
    found: list[dict[str, Any]] = []
    for name, accounts in parts:
        for source, account in accounts.items():
            refused = account.get("refused") if isinstance(account, Mapping) else None
            for reason, count in (refused if isinstance(refused, Mapping) else {}).items():
                if isinstance(count, int) and count > 0:
                    found.append(
                        {"collector": name, "source": str(source), "reason": str(reason),
                         "records": count}
                    )  # fmt: skip
    return sorted(found, key=lambda one: -one["records"])[:SPECS_MAX]


def _fields(document: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in document.items():
        if name in _NESTED and isinstance(value, Mapping):
            yield from (
                (f"{name}.{key}"[:NAME_CHARACTERS_MAX], held) for key, held in value.items()
            )
        elif name not in _COMMON:
            yield name[:NAME_CHARACTERS_MAX], value


def _within(known: Counter[str], name: str, most: int) -> str:
    return name if name in known or len(known) < most else OTHER
