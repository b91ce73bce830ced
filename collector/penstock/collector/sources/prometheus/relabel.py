"""Relabelling, as Prometheus has it: rules change the labels of a target or sample, or drop it.

A rule joins the values of `source_labels` with `separator`, and its `regex` must fit all of the
result. What then happens is its action:

    replace            `target_label` gets the replacement; an empty one removes it
    keep, drop         what does not fit, or does, goes no further
    keepequal, dropequal   likewise, by whether the result is the value of `target_label`
    hashmod            `target_label` gets the hash of the result modulo `modulus`
    labelmap           a label whose name fits is copied to the name that the replacement makes
    labeldrop, labelkeep   labels whose names fit, or do not, are removed
    lowercase, uppercase   `target_label` gets the result in that case
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from penstock.collector.regex import compile_pattern
from penstock.collector.sources.settings import Section

Labels = dict[str, str]
Action = Literal[
    "replace", "keep", "drop", "keepequal", "dropequal", "hashmod", "labelmap", "labeldrop",
    "labelkeep", "lowercase", "uppercase",
]  # fmt: skip
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE: Final = re.compile(r"\$(?:\$|(\d+)|([A-Za-z_]\w*)|\{(\w+)\})")
_NEEDS_TARGET: Final = frozenset(
    {"replace", "hashmod", "lowercase", "uppercase", "keepequal", "dropequal"}
)


class RelabelRule(Section):
    """One rule."""

    source_labels: list[str] = Field(default=[], max_length=64)
    separator: str = ";"
    regex: str = Field(default="(.*)", description="RE2; it must fit all of the joined values")
    target_label: str | None = None
    replacement: str = Field(default="$1", description="`$1` is the first group; `$$` a dollar")
    modulus: int | None = Field(default=None, ge=1)
    action: Action = "replace"

    @field_validator("regex")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        compile_pattern(value)
        return value

    @model_validator(mode="after")
    def _has_what_its_action_needs(self) -> Self:
        if self.action in _NEEDS_TARGET and not self.target_label:
            msg = f"`target_label` is missing, which {self.action} needs"
            raise ValueError(msg)
        if (self.action == "hashmod") != (self.modulus is not None):
            msg = "`modulus` is for hashmod, which needs it"
            raise ValueError(msg)
        return self


Rule = Callable[[Labels], Labels | None]
"""Labels to labels, which may be the same; None: they go no further."""


def compile_rules(rules: Sequence[RelabelRule]) -> Rule:
    """One function of several rules, in their order."""
    compiled = [_compiled(rule) for rule in rules]

    def apply(labels: Labels) -> Labels | None:
        found: Labels | None = labels
        for rule in compiled:
            if found is None:
                return None
            found = rule(found)
        return found

    return apply


def _compiled(rule: RelabelRule) -> Rule:
    fits = compile_pattern(rule.regex).fullmatch
    make = _ACTIONS[rule.action]
    return make(rule, fits)


def _joined(rule: RelabelRule, labels: Mapping[str, str]) -> str:
    return rule.separator.join(labels.get(name, "") for name in rule.source_labels)


def _expanded(text: str, found: Any) -> str:
    """A replacement with the groups of a match; a group that there is not is empty."""

    def group(reference: re.Match[str]) -> str:
        number, *names = reference.groups()
        name = next(filter(None, names), None)
        key = number if number is not None else name
        if key is None:
            return "$"
        try:
            value = found.group(int(key) if key.isdecimal() else key)
        except (IndexError, KeyError, ValueError):
            return ""
        return value or ""

    return _REFERENCE.sub(group, text)


def _with(labels: Labels, name: str, value: str) -> Labels:
    """Labels with another value; an empty one is no label."""
    rest = {key: one for key, one in labels.items() if key != name}
    return {**rest, name: value} if value else rest


Fits = Callable[[str], Any]


def _replace(rule: RelabelRule, fits: Fits) -> Rule:
    def apply(labels: Labels) -> Labels:
        found = fits(_joined(rule, labels))
        if found is None:
            return labels
        name = _expanded(str(rule.target_label), found)
        if not _LABEL.fullmatch(name):
            return labels
        return _with(labels, name, _expanded(rule.replacement, found))

    return apply


def _keep(rule: RelabelRule, fits: Fits) -> Rule:
    return lambda labels: labels if fits(_joined(rule, labels)) else None


def _drop(rule: RelabelRule, fits: Fits) -> Rule:
    return lambda labels: None if fits(_joined(rule, labels)) else labels


def _equal(*, keeps: bool) -> Callable[[RelabelRule, Fits], Rule]:
    def make(rule: RelabelRule, _: Fits) -> Rule:
        def apply(labels: Labels) -> Labels | None:
            is_equal = _joined(rule, labels) == labels.get(str(rule.target_label), "")
            return labels if is_equal is keeps else None

        return apply

    return make


def _hash(rule: RelabelRule, _: Fits) -> Rule:
    modulus = rule.modulus or 1

    def apply(labels: Labels) -> Labels:
        digest = hashlib.md5(_joined(rule, labels).encode(), usedforsecurity=False).digest()
        value = int.from_bytes(digest[8:]) % modulus
        return _with(labels, str(rule.target_label), str(value))

    return apply


def _map(rule: RelabelRule, fits: Fits) -> Rule:
    def apply(labels: Labels) -> Labels:
        made = dict(labels)
        for name, value in labels.items():
            if (found := fits(name)) is not None:
                made[_expanded(rule.replacement, found)] = value
        return made

    return apply


def _names(*, keeps: bool) -> Callable[[RelabelRule, Fits], Rule]:
    def make(_: RelabelRule, fits: Fits) -> Rule:
        return lambda labels: {
            name: value for name, value in labels.items() if (fits(name) is not None) is keeps
        }

    return make


def _case(change: Callable[[str], str]) -> Callable[[RelabelRule, Fits], Rule]:
    def make(rule: RelabelRule, _: Fits) -> Rule:
        return lambda labels: _with(labels, str(rule.target_label), change(_joined(rule, labels)))

    return make


_ACTIONS: Final[Mapping[str, Callable[[RelabelRule, Fits], Rule]]] = {
    "drop": _drop,
    "dropequal": _equal(keeps=False),
    "hashmod": _hash,
    "keep": _keep,
    "keepequal": _equal(keeps=True),
    "labeldrop": _names(keeps=False),
    "labelkeep": _names(keeps=True),
    "labelmap": _map,
    "lowercase": _case(str.lower),
    "replace": _replace,
    "uppercase": _case(str.upper),
}
