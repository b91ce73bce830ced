"""Which agent a configuration is of, and the draft that it becomes."""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import yaml

from penstock.collector.importing.draft import Draft
from penstock.collector.importing.fluent_bit import import_fluent_bit, read_classic, sections_of
from penstock.collector.importing.otel_collector import import_otel_collector
from penstock.collector.importing.promtail import import_promtail
from penstock.collector.importing.vector import import_vector

Tool = Literal["fluent-bit", "vector", "otel", "promtail"]
TOOLS: Final[tuple[Tool, ...]] = get_args(Tool)
_CLASSIC: Final = re.compile(
    r"^\s*\[\s*(?:SERVICE|INPUT|FILTER|OUTPUT|PARSER)\s*\]", re.MULTILINE | re.IGNORECASE
)
_VARIABLE: Final = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}")


class UnknownConfigurationError(ValueError):
    """A text is no configuration that can be imported; the message says why."""


def import_text(text: str, *, suffix: str = "", tool: Tool | None = None) -> Draft:
    """Rewrite a configuration.

    Args:
        text: The file.
        suffix: Its name's ending, which tells TOML from YAML.
        tool: Agent that it is of; None: what the text looks like.

    Raises:
        UnknownConfigurationError: It is none, or not of that agent.
    """
    if tool in {None, "fluent-bit"} and _CLASSIC.search(text):
        try:
            return import_fluent_bit(read_classic(text))
        except ValueError as error:
            raise UnknownConfigurationError(str(error)) from None
    document = _read(_VARIABLE.sub(r"${\1\2}", text), suffix)
    found = tool or _tool_of(document)
    try:
        match found:
            case "fluent-bit":
                return import_fluent_bit(sections_of(document))
            case "vector":
                return import_vector(document)
            case "otel":
                return import_otel_collector(document)
            case "promtail":
                return import_promtail(document)
    except (AttributeError, KeyError, TypeError) as error:
        raise UnknownConfigurationError(f"is no configuration of {found}: {error}") from error


def _tool_of(document: Mapping[str, Any]) -> Tool:
    keys = document.keys()
    if keys >= {"receivers", "service"}:
        return "otel"
    if "scrape_configs" in keys:
        return "promtail"
    if "pipeline" in keys:
        return "fluent-bit"
    if "sources" in keys and keys & {"sinks", "transforms"}:
        return "vector"
    raise UnknownConfigurationError(
        f"looks like no configuration of {', '.join(TOOLS)}; name the agent with --from"
    )


def _read(text: str, suffix: str) -> dict[str, Any]:
    try:
        if suffix == ".toml":
            found: Any = tomllib.loads(text)
        elif suffix == ".json":
            found = json.loads(text)
        else:
            found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnknownConfigurationError(f"cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UnknownConfigurationError("is no mapping")
    return found
