"""Edit: fields are renamed, set and removed."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.transforms.expressions.expression import Evaluate, compile_expression
from penstock.collector.transforms.expressions.paths import (
    Fields,
    Selection,
    assign,
    getter,
    parse_path,
    parse_selection,
    without,
)
from penstock.collector.transforms.transform import (
    PASS,
    Event,
    Expression,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
    WritablePath,
    WritablePaths,
)

Path = tuple[str, ...]


class EditSettings(TransformSettings):
    """Fields are renamed, then set, then removed."""

    type: Literal["edit"]
    rename: dict[WritablePath, WritablePath] = Field(default={})
    set: dict[WritablePath, Expression] = Field(default={})
    remove: list[WritablePaths] = Field(default=[])

    @model_validator(mode="after")
    def _does_something(self) -> "EditSettings":
        if not (self.rename or self.set or self.remove):
            msg = "set `rename`, `set` or `remove`"
            raise ValueError(msg)
        return self


def _put(fields: Fields, path: Path, value: Any) -> Fields:
    return without(fields, path) if value is None else assign(fields, path, value)


class Edit(Transform):
    """Renames, then sets, then removes.

    Args:
        rename: New place by old place; a missing one is left alone.
        assignments: Place and what computes its value; all see the record as it was after renaming.
            Null removes the place.
        remove: Places to remove.
    """

    settings = EditSettings
    outputs = (PASS,)

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
