"""The scrubber: removes sensitive values from records, by markers of fields and by detectors.

It runs where a record is emitted and at the collector. A plan is compiled once for each spec. A
record without anything to do comes back as the same object.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from pydantic import BaseModel
from pydantic_core import from_json

from penstock.specs.errors import RefusedSpecError
from penstock.specs.limits import NAME_CHARACTERS_MAX, STRING_CHARACTERS_MAX
from penstock.specs.models.codec import encode_json
from penstock.specs.models.envelope import Context, Record, base_model, on_register, resolve
from penstock.specs.models.scalars import Kind
from penstock.specs.redact.detectors import (
    ALL,
    DetectorName,
    Detectors,
    is_harmless,
    is_name_of_id,
    sensitivity_of_name,
    snake_case,
    suspect_names,
)
from penstock.specs.redact.sensitivity import (
    Action,
    HashKey,
    Sensitive,
    is_hashed,
    marker_of,
    redacted,
    truncated,
)
from penstock.specs.validate.verdict import Accepted, distinct

if TYPE_CHECKING:
    from penstock.specs.redact.line_search import LineSearch  # not in the base install

_LOGGER: Final = logging.getLogger("penstock.specs")

Path = tuple[str, ...]
"""Keys from the record's root to a value on the wire."""

_TEXTS: Final = {
    "body": STRING_CHARACTERS_MAX,
    "status_message": STRING_CHARACTERS_MAX,
    "reason": STRING_CHARACTERS_MAX,
    "name": NAME_CHARACTERS_MAX,
    "subject": NAME_CHARACTERS_MAX,
}
"""Free text at the root of records, and how many characters it may have."""
_SHAPE: Final = attrgetter("kind", "schema", "names")
"""Few of many verdicts differ in these fields."""
_NESTED: Final = ("links", "events", "exemplars")
"""Lists of objects with their own attributes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The declarations of a spec.

    Attributes:
        steps: Marker by key, without those that are kept, for each group of fields that the record
            holds (``context``, ``attributes``, ``actor``, …; empty for the root).
        declared: Attributes that the spec has; the detectors leave them alone.
        keys: Those that `steps` has, and those of what has its own attributes, as in a line.
    """

    steps: dict[str, dict[str, Sensitive]]
    declared: frozenset[str]
    keys: tuple[bytes, ...]


class Scrubber:
    """Applies the actions to records in their wire form.

    Args:
        key: Key of pseudonyms.
        keyless: Treatment of a value to hash when there is no `key`: ``redact`` it, ``keep`` it, or
            ``defer``: keep what the context says for the collector to hash, which knows its fields,
            and redact a spec's own, which the collector may not know.
        values: Whether undeclared attributes and free text are searched for sensitive values, too;
            undeclared attributes are always classified by their names.
        actions: Other actions than the specs' for some fields: path with dots to action, as in
            ``{"context.user.email": "hash"}``; also for any attribute, ``attributes.KEY``.
        detectors: Detectors besides what the specs declare.

    Attributes:
        found: Number of findings by detector. A reader may clear it.
        keyless: Values that were redacted because there is no key, by their fields' names.
    """

    def __init__(
        self,
        key: HashKey | None = None,
        *,
        keyless: Literal["keep", "redact", "defer"] = "redact",
        values: bool = True,
        actions: Mapping[str, Action] | None = None,
        detectors: Detectors = ALL,
    ) -> None:
        self._key = key
        self._keyless = keyless
        self._values = values and bool(detectors.pattern)
        self._actions = tuple(sorted((actions or {}).items()))
        self._detectors = detectors
        self._judges_names = detectors.judges_names
        self._counts_only = detectors.mode == "count"
        self._searched = detectors if self._values else None
        self.found: Counter[DetectorName] = Counter()
        self.keyless: Counter[str] = Counter()

    @property
    def key(self) -> HashKey | None:
        return self._key

    @property
    def searches_values(self) -> bool:
        """True if undeclared attributes and free text are searched, too."""
        return self._values

    def scrub_line(self, line: bytes) -> bytes:
        """A valid line, scrubbed; the very bytes when there was nothing to do."""
        fields = from_json(line)
        scrubbed = self.scrub(fields)
        return line if scrubbed is fields else encode_json(scrubbed)

    def is_clean(self, line: bytes, accepted: Accepted, search: "LineSearch") -> bool:
        """Return whether a line certainly needs no change; where it may, `scrub` decides.

        Args:
            line: The line, with its resource or without: that is not searched.
            accepted: The validator's verdict.
            search: The search over this line and those around it.
        """
        if self._suspects(accepted.names):
            return False
        plan = _plan_of(accepted.schema, accepted.kind, self._actions)
        return not search.shows(line, plan.keys, self._searched)

    def suspects(self, accepted: Sequence[Accepted], search: "LineSearch") -> list[int]:
        """Places of those of many lines that `is_clean` is not true of.

        Args:
            accepted: The validator's verdicts on them, perhaps one for all of a shape.
            search: The search over the lines, with their resources or without.
        """
        shapes = {*map(_SHAPE, distinct(accepted))}
        names = {found for found in {one for _, _, one in shapes} if self._suspects(found)}
        plans = {_plan_of(schema, kind, self._actions).keys for kind, schema, _ in shapes}
        places = {place for keys in plans for place in search.places(keys, self._searched)}
        if names:
            places.update(place for place, one in enumerate(accepted) if one.names in names)
        return sorted(places)

    def scrub(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A record's JSON object, scrubbed; the object itself is not changed.

        Attributes and fields of the context that are dropped are counted in
        ``dropped_attributes_count``.
        """
        plan = _plan_of(str(fields.get("schema")), str(fields.get("kind")), self._actions)
        changes: dict[str, Any] = {}
        dropped = 0
        for group, markers in plan.steps.items():
            found = fields.get(group) if group else fields
            if isinstance(found, dict) and not markers.keys().isdisjoint(found):
                kept = self._apply(found, markers, fields.get("time_unix_nano"), group)
                dropped += len(found) - len(kept)
                if kept is not found:
                    changes |= {group: kept} if group else _difference(found, kept)
        attributes = changes.get("attributes", fields.get("attributes"))
        if attributes:
            treated = self._treat(attributes, plan.declared, fields.get("time_unix_nano"))
            if treated is not attributes:
                dropped += len(attributes) - len(treated)
                attributes = changes["attributes"] = treated
            cleaned = self._detect(attributes, plan.declared)
            if cleaned is not attributes and not self._counts_only:
                changes["attributes"] = cleaned
        if self._values and (texts := self._search(fields, changes)) and not self._counts_only:
            changes |= texts
        if dropped:
            changes["dropped_attributes_count"] = (
                fields.get("dropped_attributes_count") or 0
            ) + dropped
        if not changes:
            return fields
        merged = {**fields, **changes}
        return {name: value for name, value in merged.items() if value is not _GONE}

    def scrub_names(
        self, attributes: Mapping[str, Any], time_unix_nano: int = 0
    ) -> Mapping[str, Any]:
        """Attributes that no spec declares, classified by their names alone.

        What `scrub` does to a log record's attributes when it was made with ``values=False``. The
        object itself comes back only when no name says anything, whatever the values.
        """
        if not self._suspects(tuple(attributes)):
            return attributes
        treated = self._treat(dict(attributes), frozenset(), time_unix_nano)
        cleaned = self._detect(treated, frozenset())
        return {**(treated if self._counts_only else cleaned)}

    def _suspects(self, names: tuple[str, ...]) -> frozenset[str]:
        """Return those attribute names that suggest a sensitive value."""
        found = _named_as_in_context(names, self._actions, self._judges_names).keys()
        return (
            frozenset((*found, *suspect_names(names))) if self._judges_names else frozenset(found)
        )

    def _treat(
        self, attributes: dict[str, Any], declared: frozenset[str], time: Any
    ) -> dict[str, Any]:
        """Attributes of which those that are named as the context's fields are treated as these."""
        markers = _named_as_in_context(tuple(attributes), self._actions, self._judges_names)
        markers = {name: marker for name, marker in markers.items() if name not in declared}
        return self._apply(attributes, markers, time, "context") if markers else attributes

    def _apply(
        self, found: dict[str, Any], markers: Mapping[str, Sensitive], time: Any, group: str
    ) -> dict[str, Any]:
        kept, time_ns = dict(found), time if isinstance(time, int) else 0
        keeps = self._keyless == "keep" or (self._keyless == "defer" and group != "attributes")
        for name in markers.keys() & found.keys():
            if found[name] is None and markers[name].action != "drop":
                continue
            value = self._acted(found[name], markers[name], time_ns, name, keeps=keeps)
            if value is _GONE:
                del kept[name]
            else:
                kept[name] = value
        return found if kept == found else kept

    def _acted(self, value: Any, marker: Sensitive, time_ns: int, name: str, *, keeps: bool) -> Any:
        if marker.action == "drop":
            return _GONE
        if isinstance(value, list):
            return [self._acted(item, marker, time_ns, name, keeps=keeps) for item in value]
        text = value if isinstance(value, str) else str(value)
        if marker.action == "truncate":
            return truncated(text)
        mark = redacted(marker.sensitivity)
        if marker.action == "hash" and text != mark:
            return self._hashed(text, mark, time_ns, name, keeps=keeps)
        return mark

    def _hashed(self, text: str, mark: str, time_ns: int, name: str, *, keeps: bool) -> str:
        if self._key is not None:
            return text if is_hashed(text) else self._key.hashed(text, time_ns)
        if keeps or is_hashed(text):
            return text
        self.keyless[name] += 1
        if self._keyless == "defer" and self.keyless[name] == 1:
            _LOGGER.warning(
                "%s is a pseudonym and goes out as %s: there is no hash key. Set PENSTOCK_HASH_KEY"
                " to the key that the collector has", name, mark,
            )  # fmt: skip
        return mark

    def _detect(self, attributes: dict[str, Any], declared: frozenset[str]) -> dict[str, Any]:
        """Undeclared attributes, classified by name and value."""
        suspects = self._suspects(tuple(attributes))
        if not (suspects or self._values):
            return attributes
        changes = {}
        for name in attributes if self._values else suspects:
            value = attributes[name]
            if name in declared or f"attributes.{name}" in self._detectors.except_fields:
                continue
            cleaned = self._cleaned(name, value)
            if cleaned is not value:
                changes[name] = cleaned
        return {**attributes, **changes} if changes else attributes

    def _cleaned(self, name: str, value: Any) -> Any:
        """A value of that name, with what is in it; the very value when there is nothing to do."""
        kind = value.__class__
        if value is None or kind is bool:
            return value
        if self._detectors.judges_names and (sensitivity := sensitivity_of_name(name)):
            if is_harmless(name, value) or self._detectors.keeps(str(value)):
                return value
            self.found["names"] += 1
            return redacted(sensitivity)
        if kind is str:
            if not self._values or (value.isdecimal() and is_name_of_id(name)):
                return value
            return self._detectors.redact(value, self._note)
        cleaned: Any = value
        if kind is list:
            cleaned = [self._cleaned("", item) for item in value]
        elif kind is dict:
            cleaned = {key: self._cleaned(key, member) for key, member in value.items()}
        return value if cleaned == value else cleaned

    def _note(self, detector: DetectorName) -> None:
        self.found[detector] += 1

    def _search(self, fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
        """Free text, and the attributes of what lies inside a record."""
        found: dict[str, Any] = {}
        for name, characters_max in _TEXTS.items():
            value = changes.get(name, fields.get(name))
            if isinstance(value, str) and name not in self._detectors.except_fields:
                text = self._detectors.redact(value, self._note, characters_max)
                if text is not value:
                    found[name] = text
        for name in _NESTED:
            members = fields.get(name)
            if isinstance(members, list):
                cleaned = [self._member(member) for member in members]
                if cleaned != members:
                    found[name] = cleaned
        return found

    def _member(self, member: Any) -> Any:
        attributes = member.get("attributes") if isinstance(member, dict) else None
        if not attributes:
            return member
        treated = self._treat(attributes, frozenset(), member.get("time_unix_nano"))
        cleaned = self._detect(treated, frozenset())
        kept = treated if self._counts_only else cleaned
        return member if kept is attributes else {**member, "attributes": kept}


def check_actions(paths: Iterable[str]) -> None:
    """Refuse paths of a `Scrubber`'s actions that no record has a value in.

    Raises:
        RefusedSpecError: One is neither an attribute nor a field that a kind of record marks.
    """
    for path in paths:
        group, _, key = path.partition(".")
        if "*" in path:
            raise RefusedSpecError(f"{path}: an action is for one field; name it without *")
        if path not in _marked_paths() and not (group == "attributes" and key):
            raise RefusedSpecError(
                f"{path}: no action applies to it; name attributes.KEY or one of"
                f" {', '.join(_marked_paths())}"
            )


@cache
def _marked_paths() -> tuple[str, ...]:
    found = {".".join(path) for kind in get_args(Kind) for path, _ in _declared(base_model(kind))}
    return tuple(sorted(found))


@lru_cache(maxsize=4096)
def _named_as_in_context(
    names: tuple[str, ...],
    actions: tuple[tuple[str, Action], ...],
    judges_names: bool,
) -> Mapping[str, Sensitive]:
    """Attributes that are named as a field of the context (`user.id`, `userId`, `session_id`).

    Others as well that the operator has chosen an action for.
    """
    found: dict[str, Sensitive] = {}
    chosen = dict(actions)
    for name in names:
        wanted = chosen.get(f"attributes.{name}", "keep")
        if wanted != "keep":
            known = _context_markers().get(snake_case(name), ("", None))[1]
            sensitivity = known.sensitivity if known else sensitivity_of_name(name)
            found[name] = Sensitive(sensitivity or "pii", wanted)
            continue
        field, marker = _context_markers().get(snake_case(name), ("", None))
        if marker is None or (judges_names and sensitivity_of_name(name)):
            continue
        usual = chosen.get(f"context.{field}", marker.action)
        action = chosen.get(f"attributes.{name}", usual)
        if action != "keep":
            found[name] = Sensitive(marker.sensitivity, action)
    return found


@cache
def _context_markers() -> dict[str, tuple[str, Sensitive]]:
    """The context's fields that are marked, by their names in snake case."""
    fields = (
        (found.alias or name, marker_of(found)) for name, found in Context.model_fields.items()
    )
    return {
        snake_case(name): (name, marker)
        for name, marker in fields
        if marker is not None and marker.action != "keep"
    }


@lru_cache(maxsize=1024)
def _plan_of(schema_id: str, kind: str, actions: tuple[tuple[str, Action], ...]) -> Plan:
    """Return the actions on a spec's records, the operator's included."""
    try:
        model = resolve(schema_id, kind).model or base_model(kind)
    except (RefusedSpecError, KeyError):
        return Plan({}, frozenset(), ())
    steps: dict[str, dict[str, Sensitive]] = {}
    for path, marker in _declared(model):
        action = dict(actions).get(".".join(path), marker.action)
        if action != "keep":
            group = path[0] if len(path) == 2 else ""
            steps.setdefault(group, {})[path[-1]] = Sensitive(marker.sensitivity, action)
    for own in model.own_fields.values():  # those that the spec does not mark
        chosen = dict(actions).get(f"attributes.{own}", "keep")
        if chosen != "keep" and own not in steps.get("attributes", {}):
            steps.setdefault("attributes", {})[own] = Sensitive("pii", chosen)
    names = [*_NESTED, *(name for markers in steps.values() for name in markers)]
    keys = tuple(b'"%b"' % name.encode() for name in names)
    return Plan(steps, frozenset(model.own_fields.values()), keys)


on_register(_plan_of.cache_clear)


class _Gone:
    """Marks a field that was dropped."""


_GONE: Final = _Gone()


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the root fields that have another value, or none."""
    return {
        name: after.get(name, _GONE)
        for name, value in before.items()
        if after.get(name, _GONE) is not value
    }


def _declared(model: type[Record]) -> Iterator[tuple[Path, Sensitive]]:
    """Every marker of a spec, with where its field lies on the wire."""
    for name, field in model.model_fields.items():
        marker = marker_of(field)
        if marker is not None:
            own = model.own_fields.get(name)
            yield (("attributes", own) if own else (field.alias or name,)), marker
        nested = Context if name == "context" else field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            for inner, found in nested.model_fields.items():
                if (mark := marker_of(found)) is not None:
                    yield (field.alias or name, found.alias or inner), mark
