"""Errors of a configuration, in the words of the file it stands in.

pydantic names a place by the path it took through the models: with the chosen type of a source, or
the form of a value that it tried. Here the keys are those that somebody can find in the file.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Location = tuple[int | str, ...]

_WORDS: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be a text",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "path_type": "must be a path",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "union_tag_not_found": "`type` is missing",
}
_TAG: Final = re.compile(r"Input tag ('.*') found using '(\w+)' .* expected tags: (.*)", re.DOTALL)
_NONE_OF: Final = re.compile(r"there is no [a-z ]+ '(.*)', only (.*)")
_AT_ALL: Final = "correct the keys named"
_ALIKE_MIN: Final = 0.7
"""Least likeness, from 0 to 1, of a key or type that may be meant; below it none is named."""


def describe_errors(
    error: ValidationError, model: type[BaseModel], document: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """A line for each key that is wrong, and what to do about each."""
    found: dict[str, list[str]] = {}
    fixes: dict[str, None] = {}
    for detail in error.errors(include_input=False, include_url=False):
        key = ".".join(map(str, _keys(document, detail, model)))
        text, fix = _explained(detail, model, key)
        texts = found.setdefault(key, [])
        if text not in texts:
            texts.append(text)
        fixes[f"{key}: {fix}" if key else fix] = None
    lines = [line for key, texts in found.items() for line in _lines(key, texts)]
    return lines, list(fixes)


def naming_known_keys(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """A model's errors with the keys that it knows.

    For a model that is chosen by what a file says, so that the schema of what it is a part of does
    not show it.
    """
    details = [
        InitErrorDetails(
            type=PydanticCustomError(
                detail["type"],
                detail["msg"],
                {"known": _known_keys(model, detail["loc"][:-1])},
            ),
            loc=detail["loc"],
            input=detail["input"],
        )
        for detail in error.errors(include_url=False, include_context=False)
    ]
    return ValidationError.from_exception_data(error.title, details)


def _lines(key: str, texts: list[str]) -> Iterator[str]:
    if key:
        yield f"{key}: {', or '.join(texts)}"
    else:
        yield from texts


def _keys(
    document: Mapping[str, Any], detail: ErrorDetails, model: type[BaseModel]
) -> Iterator[int | str]:
    """The parts of a location that are keys and places in lists of the document, or could be."""
    *parents, last = detail["loc"] or ("",)
    node: Any = document
    for part in parents:
        if _holds(node, part):
            yield part
            node = node[part]
    if last == "":
        return
    is_silent = detail["type"] == "missing" or last in _known_keys(model, tuple(parents))
    if is_silent or _holds(node, last):
        yield last


def _holds(node: Any, part: int | str) -> bool:
    if isinstance(node, list):
        return isinstance(part, int) and part < len(node)
    return isinstance(node, dict) and part in node


def _explained(detail: ErrorDetails, model: type[BaseModel], key: str) -> tuple[str, str]:
    """Return the error and its fix."""
    kind, location = detail["type"], detail["loc"]
    if kind == "extra_forbidden":
        known = detail.get("ctx", {}).get("known") or _known_keys(model, location[:-1])
        return _unknown(str(location[-1]), known)
    text = _WORDS.get(kind) or _said(detail["msg"])
    if location[-1:] == ("[key]",) and text.startswith("must"):
        text = f"the key {text}"
    if none_of := _NONE_OF.fullmatch(text):
        text += _meant(none_of[1], none_of[2].split(", "))
    fix = "add the key" if kind == "missing" else "correct the value" if key else _AT_ALL
    return text, fix


def _unknown(name: str, known: list[str]) -> tuple[str, str]:
    text = "there is no such key" + _meant(name, known)
    listed = f"; known keys here: {', '.join(known)}" if known else ""
    return text, f"remove the key, or correct its spelling{listed}"


def _meant(name: str, known: list[str]) -> str:
    import difflib  # which only a wrong key or type needs

    near = difflib.get_close_matches(name, known, 1, _ALIKE_MIN)
    return f"; did you mean {near[0]}?" if near else ""


def _said(message: str) -> str:
    """Return pydantic's message, or that of a check of ours, as a sentence about the key."""
    tag = _TAG.fullmatch(message)
    if tag:
        return f"there is no {tag[2]} {tag[1]}, only {tag[3].replace(chr(39), '')}"
    message = message.removeprefix("Value error, ").replace(" after validation, not", ", not")
    return re.sub(r"^(?:Input|String|List|Dictionary|URL) should ", "must ", message)


def _known_keys(model: type[BaseModel], location: Location) -> list[str]:
    """The keys that may stand at `location`, found by walking the JSON schema."""
    schema = model.model_json_schema()
    node: dict[str, Any] = schema
    for part in location:
        node = _resolve(node, schema)
        child = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
        if child is None:  # a discriminated union puts its tag into the location
            child = next((v for v in _variants(node, schema) if _tagged(v, part)), node)
        node = child
    node = _resolve(node, schema)
    return sorted(
        {key for it in (node, *_variants(node, schema)) for key in it.get("properties", ())}
    )


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node


def _variants(node: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [_resolve(variant, schema) for variant in node.get("oneOf", node.get("anyOf", []))]


def _tagged(variant: dict[str, Any], tag: int | str) -> bool:
    return any(field.get("const") == tag for field in variant.get("properties", {}).values())
