"""Redact: more is taken out than the specs and the section `sensitive` ask for."""

import re
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.regex import compile_pattern
from penstock.collector.sources.settings import Name
from penstock.collector.transforms.expressions.paths import (
    Fields,
    Selection,
    assign,
    parse_selection,
    without,
)
from penstock.collector.transforms.transform import (
    PASS,
    Event,
    Pattern,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
    WritablePaths,
)

_NESTED: Final = ("links", "events", "exemplars")
"""Lists of objects with their own attributes."""
_ANCHOR: Final = re.compile(r"\^|\$|\\[AzZ]")


class RedactSettings(TransformSettings):
    """More is taken out than `sensitive` does, which treats every record at the output anyway."""

    type: Literal["redact"]
    fields: list[WritablePaths] = Field(default=[])
    action: Literal["replace", "remove"] = "replace"
    patterns: dict[Name, Pattern] = Field(default={})

    @model_validator(mode="after")
    def _does_something(self) -> "RedactSettings":
        if not (self.fields or self.patterns):
            msg = "set `fields` or `patterns`"
            raise ValueError(msg)
        return self


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


class Redact(Transform):
    """Replaces fields, or parts of texts that match patterns, by ``[redacted:NAME]``.

    Patterns are looked for in the body and in attributes, those of a span's events and links and of
    exemplars as well; of an attribute that is a list, in each text of it.
    """

    settings = RedactSettings
    outputs = (PASS,)

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
