"""Message templates, as Serilog and .NET's loggers keep them beside an event's properties.

The rules are those of messagetemplates.org: a property's name stands in braces, perhaps behind the
operator ``@`` or ``$`` and before an alignment (``,8``) and a format (``:0.00``). Doubled braces
are braces. Text is rendered without quotes, anything but text as JSON.

A format means what .NET makes of it. Senders of CLEF put what they made of those that have one into
``@r``, in their order; where that is missing, the value is rendered without its format.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from penstock.specs.limits import STRING_CHARACTERS_MAX

_PART: Final = re.compile(
    r"\{\{|\}\}|\{[@$]?(?P<name>\w{1,255})(?:,(?P<width>-?\d{1,3}))?(?P<format>:[^{}]{0,255})?\}"
)


def render(template: str, properties: Mapping[str, Any], renderings: object = None) -> str:
    """The text of a template; it ends soon beyond what a record has room for.

    Args:
        template: Holes of unknown names, and what is no hole, stay as they are written.
        properties: By name.
        renderings: What the sender made of holes that have a format, in their order.
    """
    if "{" not in template and "}" not in template:
        return template
    ready = iter(renderings if isinstance(renderings, list) else ())
    made: list[str] = []
    size = at = 0
    for found in _PART.finditer(template):
        text = _part(found, properties, ready)
        made += (template[at : found.start()], text)
        size += len(made[-2]) + len(text)
        at = found.end()
        if size > STRING_CHARACTERS_MAX:
            return "".join(made)
    return "".join((*made, template[at:]))


def _part(found: re.Match[str], properties: Mapping[str, Any], ready: Iterator[Any]) -> str:
    name, width, form = found.group("name", "width", "format")
    if name is None:
        return found[0][0]
    rendered = next(ready, None) if form is not None else None
    if isinstance(rendered, str):
        return rendered
    if name not in properties:
        return found[0]
    value = properties[name]
    text = value if isinstance(value, str) else _json(value)
    aligned = int(width or 0)
    return text.ljust(-aligned) if aligned < 0 else text.rjust(aligned)


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (orjson.JSONEncodeError, RecursionError):  # an integer beyond 64 bits, or bytes
        return str(value)
