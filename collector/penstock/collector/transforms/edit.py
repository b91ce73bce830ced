"""Rename, set and remove fields; redact some more than the specs ask for."""

import re
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.regex import compile_pattern
from penstock.collector.transforms.event import PASS, Event, Transform, TransformContext, Verdict
from penstock.collector.transforms.expression import Evaluate, compile_expression
from penstock.collector.transforms.paths import (
    Fields,
    Selection,
    assign,
    getter,
    parse_path,
    parse_selection,
    without,
)
from penstock.collector.transforms.settings import (
    Expression,
    Name,
    Pattern,
    Place,
    Places,
    TransformSettings,
)

Path = tuple[str, ...]
_NESTED: Final = ("links", "events", "exemplars")
"""Lists of objects with attributes of their own."""
_ANCHOR: Final = re.compile(r"\^|\$|\\[AzZ]")


class EditSettings(TransformSettings):
    """Fields are renamed, then set, then removed."""

    type: Literal["edit"]
    rename: dict[Place, Place] = Field(default={})
    set: dict[Place, Expression] = Field(default={})
    remove: list[Places] = Field(default=[])

    @model_validator(mode="after")
    def _does_something(self) -> "EditSettings":
        if not (self.rename or self.set or self.remove):
            msg = "set `rename`, `set` or `remove`"
            raise ValueError(msg)
        return self


class RedactSettings(TransformSettings):
    """More is taken out than `sensitive` does, which treats every record at the output anyway."""

    type: Literal["redact"]
    fields: list[Places] = Field(default=[])
    action: Literal["replace", "remove"] = "replace"
    patterns: dict[Name, Pattern] = Field(default={})

    @model_validator(mode="after")
    def _does_something(self) -> "RedactSettings":
        if not (self.fields or self.patterns):
            msg = "set `fields` or `patterns`"
            raise ValueError(msg)
        return self


class Edit(Transform):
    """Renames, then sets, then removes.

    Args:
        rename: From place to place; what is not there is left alone.
        assignments: Place and what computes its value; all see the record as it was after renaming.
            Null removes the place.
        remove: What is taken out.
    """

    outputs = (PASS,)

    settings = EditSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(
            [(parse_path(old), parse_path(new)) for old, new in settings.rename.items()],
            [
                (parse_path(path), compile_expression(text).evaluate)
                for path, text in settings.set.items()
            ],
            [parse_selection(path) for path in settings.remove],
        )

    def __init__(
        self,
        rename: list[tuple[Path, Path]],
        assignments: list[tuple[Path, Evaluate]],
        remove: list[Selection],
    ) -> None:
        self._rename = [(getter(old), old, new) for old, new in rename]
        self._assignments = assignments
        self._remove = remove

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        fields = event.fields
        for read, old, new in self._rename:
            value = read(fields)
            if value is not None:
                fields = assign(without(fields, old), new, value)
        seen = fields
        for path, evaluate in self._assignments:
            fields = _put(fields, path, evaluate(seen))
        for selection in self._remove:
            for path in selection.places(fields):
                fields = without(fields, path)
        event.fields = fields
        return PASS


class Redact(Transform):
    """Replaces fields, or parts of texts that match patterns, by ``[redacted:NAME]``.

    Patterns are looked for in the body and in attributes, those of a span's events and links and of
    exemplars as well; of an attribute that is a list, in each text of it.
    """

    outputs = (PASS,)

    settings = RedactSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        patterns = [(key, compile_pattern(text)) for key, text in settings.patterns.items()]
        places = [parse_selection(path) for path in settings.fields]
        return cls(places, settings.action, patterns, context.name)

    def __init__(
        self,
        fields: list[Selection],
        action: Literal["replace", "remove"],
        patterns: list[tuple[str, Any]],
        name: str,
    ) -> None:
        self._fields = fields
        self._action = action
        self._patterns = [(f"[redacted:{label}]", pattern) for label, pattern in patterns]
        self._label = f"[redacted:{name}]"
        self._any = _alternatives([pattern.pattern for _, pattern in patterns])

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        fields = event.fields
        for selection in self._fields:
            for path in selection.places(fields):
                gone = self._action == "remove"
                fields = without(fields, path) if gone else assign(fields, path, self._label)
        if self._patterns:
            fields = self._search(fields)
        event.fields = fields
        return PASS

    def _search(self, fields: Fields) -> Fields:
        body, attributes = fields.get("body"), fields.get("attributes")
        nested = [name for name in _NESTED if fields.get(name)]
        if self._any is not None and not nested:
            values = [*(attributes or {}).values(), body]
            texts = [value for value in values if value.__class__ is str]
            for value in values:
                if value.__class__ is list:
                    texts += [item for item in value if item.__class__ is str]
            if self._any.search("\0".join(texts)) is None:
                return fields
        if body.__class__ is str and (text := self._cleaned(body)) != body:
            fields = {**fields, "body": text}
        fields = self._search_attributes(fields)
        for name in nested:
            members = [self._search_attributes(member) for member in fields[name]]
            if members != fields[name]:
                fields = {**fields, name: members}
        return fields

    def _search_attributes(self, holder: Fields) -> Fields:
        attributes: Fields = holder.get("attributes") or {}
        changed = {
            key: cleaned
            for key, value in attributes.items()
            if (cleaned := self._cleaned_value(value)) != value
        }
        return {**holder, "attributes": {**attributes, **changed}} if changed else holder

    def _cleaned_value(self, value: Any) -> Any:
        if value.__class__ is str:
            return self._cleaned(value)
        if value.__class__ is list:
            return [self._cleaned(item) if item.__class__ is str else item for item in value]
        return value

    def _cleaned(self, text: Any) -> Any:
        for label, pattern in self._patterns:
            if pattern.search(text) is not None:
                text = pattern.sub(label, text)
        return text


def _alternatives(patterns: list[str]) -> Any | None:
    """One pattern that is found in joined texts if any of these is found in any of them.

    Calling RE2 costs more than searching a line, so one call for all texts of a record is worth it.
    None where there is no such pattern: one that asks for the beginning or end of its text is not
    found where texts are joined.
    """
    if not patterns or any(_ANCHOR.search(text.replace("[^", "[")) for text in patterns):
        return None
    try:
        return compile_pattern("|".join(f"(?:{text})" for text in patterns))
    except ValueError:  # longer than one may be, or groups of one name
        return None


def _put(fields: Fields, path: Path, value: Any) -> Fields:
    return without(fields, path) if value is None else assign(fields, path, value)
