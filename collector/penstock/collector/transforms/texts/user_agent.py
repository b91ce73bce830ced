"""User agent: what a browser or program says of itself becomes attributes.

The rules are those of the project uap-core, in the package `ua-parser`; RE2 finds the rule that
fits, so that hundreds of rules take the time of one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal, Self

from typing_extensions import override

from penstock.collector.transforms.texts.field_parser import FieldSettings, Parsing, require_extra
from penstock.collector.transforms.transform import (
    ReadablePath,
    TransformContext,
)

_CHARACTERS_MAX: Final = 1024
"""Characters of a text that are looked at; browsers send less than 300."""
_CACHED_MAX: Final = 2000
"""Texts whose result is cached."""


class UserAgentSettings(FieldSettings):
    """What a browser or program says of itself becomes attributes."""

    type: Literal["user_agent"]
    field: ReadablePath = "attributes.user_agent.original"


class UserAgent(Parsing):
    """Reads the text of the header `User-Agent`."""

    settings = UserAgentSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        require_extra("useragent", "ua_parser", context)
        parse = _parser()
        return cls(lambda text, _: read_user_agent(text, parse), settings, name="a user agent")


def read_user_agent(text: str, parse: Callable[[str], Any]) -> dict[str, Any] | None:
    """The program, system and device that a text names; None where it names none that is known."""
    result = parse(text[:_CHARACTERS_MAX])
    found: dict[str, Any] = {}
    if (agent := result.user_agent) is not None:
        found["user_agent.name"] = agent.family
        found["user_agent.version"] = _version(agent)
    if (system := result.os) is not None:
        found["user_agent.os.name"] = system.family
        found["user_agent.os.version"] = _version(system)
    if (device := result.device) is not None:
        found["user_agent.device.name"] = device.family
        found["user_agent.device.manufacturer"] = device.brand
        found["user_agent.device.model"] = device.model
    return {key: value for key, value in found.items() if value} or None


def _version(part: Any) -> str:
    numbers = (part.major, part.minor, part.patch, part.patch_minor)
    return ".".join(number for number in numbers if number)


@cache
def _parser() -> Callable[[str], Any]:
    """The parser; its rules are compiled once, in a fifth of a second."""
    from ua_parser import CachingResolver, Parser, load_builtins
    from ua_parser.caching import Lru
    from ua_parser.re2 import Resolver

    made = Parser(CachingResolver(Resolver(load_builtins()), Lru(_CACHED_MAX)))
    parse: Callable[[str], Any] = made.parse
    return parse
