"""Conditions of other agents as expressions of the collector, as far as they have the same meaning.

A translation that the collector's own expressions do not take is none: the caller then keeps the
condition in a comment.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.collector.decode.severity import severity
from penstock.collector.transforms.expressions.expression import compile_condition

_FIELDS: Final[Mapping[str, str]] = {
    "message": "body", "msg": "body", "log": "body", "host": "resource.host.name",
    "hostname": "resource.host.name", "timestamp": "time_unix_nano",
    "level": "severity_text", "severity": "severity_text",
}  # fmt: skip
"""Fields of other agents' events that the collector has in other places."""
_KEY: Final = re.compile(r"[^\s\[\]\"*]+\Z")


def place(key: str) -> str:
    """The place of a field of an event, which `a.b` or `["a"]["b"]` names."""
    name = re.sub(r"\]\[|[\[\]\"'$]", lambda found: "." if found[0] == "][" else "", key)
    name = name.strip(".")
    return _FIELDS.get(name) or attribute(name)


def attribute(name: str) -> str:
    """The place of an attribute of this name."""
    return f"attributes.{name}" if _KEY.match(name) else f'attributes["{name}"]'


def literal(value: Any) -> str:
    """A value as expressions write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


def checked(expression: str) -> str | None:
    """An expression that holds or not; None: it is none of the collector's."""
    try:
        compile_condition(expression)
    except ValueError:
        return None
    return expression


_LEVEL: Final = r"(?<![\w.])(string\(severity_text\)|severity_text)"
_QUOTED: Final = r"\"((?:[^\"\\]|\\.)*)\""
_LEVEL_COMPARED: Final = re.compile(rf"{_LEVEL}(\s*[!=]=\s*){_QUOTED}")
_LEVEL_SEARCHED: Final = re.compile(
    rf"{_LEVEL}\.(matches|contains|startsWith|endsWith)\({_QUOTED}\)"
)
_LEVEL_NAME: Final = re.compile(r"[A-Za-z]{3,}")


def with_levels(expression: str) -> str:
    """An expression that compares levels as records have them.

    The level `warning` of an event is the severity `WARN` of its record, whatever its case.
    """
    text = _LEVEL_COMPARED.sub(lambda it: f'{it[1]}{it[2]}"{_level(it[3])}"', expression)
    return _LEVEL_SEARCHED.sub(_level_searched, text)


def _level(name: str) -> str:
    found = severity(name)
    return name if found is None else found[1]


def _level_searched(found: re.Match[str]) -> str:
    where, method, text = found.groups()
    if method == "matches":
        named = _LEVEL_NAME.sub(lambda it: _level(it[0]), text)
        return f'{where}.matches("(?i){named}")'
    return f'{where}.{method}("{text.upper()}")'


_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')


def _outside_texts(text: str, change: Callable[[str], str]) -> str:
    """A text with what stands outside of quotes changed."""
    parts: list[str] = []
    at = 0
    for found in _STRING.finditer(text):
        parts += (change(text[at : found.start()]), found[0])
        at = found.end()
    return "".join((*parts, change(text[at:])))


_VRL_PATH: Final = re.compile(r"(?<![\w)\"\]])\.([A-Za-z_@][\w@-]*(?:\.[\w@-]+)*)")
_VRL_CALL: Final = re.compile(
    r"\b(contains|starts_with|ends_with)\(\s*([^(),]+?)\s*,\s*(\"(?:[^\"\\]|\\.)*\")\s*\)"
)
_VRL_METHODS: Final = {
    "contains": "contains", "starts_with": "startsWith", "ends_with": "endsWith",
}  # fmt: skip
_VRL_EXISTS: Final = re.compile(r"\bexists\(\s*([^()]+?)\s*\)")
_VRL_MATCH: Final = re.compile(r"\bmatch!?\(\s*([^(),]+?)\s*,\s*r'([^']*)'\s*\)")
_VRL_CAST: Final = re.compile(
    r"\b(?:string|int|float|to_string|to_int|to_float)!?\(\s*([^()]+?)\s*\)"
)


def from_vrl(condition: str) -> str | None:
    """A condition in Vector's language."""
    text = _VRL_CAST.sub(r"\1", condition.strip())
    text = _VRL_MATCH.sub(lambda it: f"{it[1]}.matches({literal(it[2])})", text)
    text = _VRL_CALL.sub(lambda it: f"{it[2]}.{_VRL_METHODS[it[1]]}({it[3]})", text)
    text = _VRL_EXISTS.sub(r"has(\1)", text)
    text = _outside_texts(text, lambda part: _VRL_PATH.sub(_vrl_place, part))
    return checked(with_levels(text))


def _vrl_place(found: re.Match[str]) -> str:
    name, _, method = found[1].rpartition(".")
    if method in ("matches", "contains", "startsWith", "endsWith"):
        return f"{place(name)}.{method}"
    return place(found[1])


_OTTL_NAMES: Final = {
    "body": "body", "severity_number": "severity_number", "severity_text": "severity_text",
    "name": "name", "kind": "span_kind", "status.code": "status_code",
    "trace_id": "trace_id", "span_id": "span_id", "instrumentation_scope.name": "scope",
}  # fmt: skip
_OTTL_KEYED: Final = re.compile(
    r"(?:log\.|span\.|resource\.|datapoint\.|metric\.)?(attributes|resource\.attributes)\[\"([^\"\]]+)\"\]"
)
_OTTL_MATCH: Final = re.compile(
    r"IsMatch\(\s*([^(),]+?|[^(),]*\[\"[^\"]+\"\])\s*,\s*(\"(?:[^\"\\]|\\.)*\")\s*\)"
)
_OTTL_SEVERITY: Final = re.compile(r"\bSEVERITY_NUMBER_([A-Z]+)([234]?)\b")
_OTTL_STATUS: Final = re.compile(r"\bSTATUS_CODE_([A-Z]+)\b")
_OTTL_WORDS: Final = (
    (re.compile(r"\band\b"), "&&"), (re.compile(r"\bor\b"), "||"), (re.compile(r"\bnot\b"), "!"),
    (re.compile(r"\bnil\b"), "null"),
)  # fmt: skip
_OTTL_PATH: Final = re.compile(r"(?<![\w.\"])(?:log\.|span\.)?([a-z_]+(?:\.[a-z_]+)?)(?![\w(\"])")
_SEVERITIES: Final = {"TRACE": 1, "DEBUG": 5, "INFO": 9, "WARN": 13, "ERROR": 17, "FATAL": 21}


def from_ottl(condition: str) -> str | None:
    """A condition in the language of OpenTelemetry's transformations."""
    text = _OTTL_MATCH.sub(r"\1.matches(\2)", condition.strip())
    text = _OTTL_KEYED.sub(_ottl_keyed, text)
    text = _outside_texts(text, _ottl_words)
    return checked(text)


def ottl_place(path: str) -> str | None:
    """A path as a place; None: it is none that the collector has."""
    keyed = _OTTL_KEYED.fullmatch(path.strip())
    if keyed is not None:
        return _ottl_keyed(keyed)
    return _OTTL_NAMES.get(path.strip().removeprefix("log.").removeprefix("span."))


def _ottl_keyed(found: re.Match[str]) -> str:
    is_resource = found[1].startswith("resource") or found[0].startswith("resource.")
    place_of = attribute(found[2])
    return place_of.replace("attributes", "resource", 1) if is_resource else place_of


def _ottl_words(part: str) -> str:
    part = _OTTL_SEVERITY.sub(lambda it: str(_SEVERITIES.get(it[1], 0) + int(it[2] or 1) - 1), part)
    part = _OTTL_STATUS.sub(r'"\1"', part)
    for word, sign in _OTTL_WORDS:
        part = word.sub(sign, part)
    return _OTTL_PATH.sub(lambda it: _OTTL_NAMES.get(it[1], it[0]), part)
