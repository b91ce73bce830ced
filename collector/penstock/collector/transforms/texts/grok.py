"""Grok: a text is read by named patterns, as ``%{IPORHOST:client.address} %{INT:status:int}``.

A pattern becomes one regular expression of RE2, which takes time in proportion to the text. So
there are no look-arounds, atomic groups or references back. The names below are those that grok
users know; their expressions are written for RE2.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.regex import compile_pattern, groups_finder
from penstock.collector.transforms.texts.field_parser import CONVERSIONS, Parsing, ParsingSettings
from penstock.collector.transforms.transform import TransformContext
from penstock.service.config_types import Form

_MONTHS: Final = "|".join(
    f"{name[:3]}(?:{name[3:]})?" if len(name) > 3 else name
    for name in (
        "January", "February", "March", "April", "May", "June", "July", "August", "September",
        "October", "November", "December",
    )
)  # fmt: skip


def _compressed(before: int) -> str:
    """An address of IPv6 with ``::`` behind so many groups; the longest tail is tried first."""
    begin = rf"\b(?:{_GROUP}:){{{before}}}:" if before else r"\B::"
    tails = []
    if before <= 5:
        tails.append(rf"(?:{_GROUP}:){{0,{5 - before}}}%{{IPV4}}")
    if before <= 6:
        tails.append(rf"{_GROUP}(?::{_GROUP}){{0,{6 - before}}}")
    return f"{begin}(?:{'|'.join(tails)})?" if tails else begin


_GROUP: Final = "[0-9A-Fa-f]{1,4}"
_IPV6: Final = "|".join(
    (
        rf"\b(?:{_GROUP}:){{6}}(?:%{{IPV4}}|{_GROUP}:{_GROUP})",
        *(_compressed(before) for before in range(7, -1, -1)),
    )
)
PATTERNS: Final[Mapping[str, str]] = {
    "WORD": r"\b\w+\b",
    "NOTSPACE": r"\S+",
    "SPACE": r"\s*",
    "DATA": r".*?",
    "GREEDYDATA": r".*",
    "QUOTEDSTRING": r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|`(?:[^`\\]|\\.)*`',
    "QS": r"%{QUOTEDSTRING}",
    "UUID": r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "INT": r"[+-]?[0-9]+",
    "POSINT": r"\b[1-9][0-9]*\b",
    "NONNEGINT": r"\b[0-9]+\b",
    "BASE10NUM": r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)",
    "NUMBER": r"%{BASE10NUM}",
    "BASE16NUM": r"[+-]?(?:0x)?[0-9A-Fa-f]+",
    "BASE16FLOAT": r"[+-]?(?:0x)?[0-9A-Fa-f]+(?:\.[0-9A-Fa-f]*)?",
    "BOOLEAN": r"(?i:true|false|yes|no|on|off)",
    "USERNAME": r"[a-zA-Z0-9._-]+",
    "USER": r"%{USERNAME}",
    "EMAILLOCALPART": r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}",
    "EMAILADDRESS": r"%{EMAILLOCALPART}@%{HOSTNAME}",
    "MAC": r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}|(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}",
    "IPV4": r"(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])",
    "IPV6": rf"(?:{_IPV6})(?:%[0-9A-Za-z]+)?",
    "IP": r"%{IPV6}|%{IPV4}",
    "HOSTNAME": r"\b[0-9A-Za-z][0-9A-Za-z_-]{0,62}(?:\.[0-9A-Za-z][0-9A-Za-z_-]{0,62})*\.?",
    "HOST": r"%{HOSTNAME}",
    "IPORHOST": r"%{IP}|%{HOSTNAME}",
    "HOSTPORT": r"%{IPORHOST}:%{POSINT}",
    "UNIXPATH": r"(?:/[\w_%!$@:.,+~-]*)+",
    "WINPATH": r"(?:[A-Za-z]+:|\\)(?:\\[^\\?*]*)+",
    "PATH": r"%{UNIXPATH}|%{WINPATH}",
    "TTY": r"/dev/(?:pts|tty[pq]?)(?:\w+)?/?[0-9]+",
    "URIPROTO": r"[A-Za-z](?:[A-Za-z0-9+.-]+)",
    "URIHOST": r"%{IPORHOST}(?::%{POSINT})?",
    "URIPATH": r"(?:/[A-Za-z0-9$.+!*'(){},~:;=@#%&_-]*)+",
    "URIQUERY": r"[A-Za-z0-9$.+!*'|(){},~@#%&/=:;_?\[\]<>-]*",
    "URIPARAM": r"\?%{URIQUERY}",
    "URIPATHPARAM": r"%{URIPATH}(?:%{URIPARAM})?",
    "URI": r"%{URIPROTO}://(?:%{USER}(?::[^@]*)?@)?(?:%{URIHOST})?(?:%{URIPATHPARAM})?",
    "MONTH": rf"\b(?:{_MONTHS})\b",
    "MONTHNUM": r"0?[1-9]|1[0-2]",
    "MONTHNUM2": r"0[1-9]|1[0-2]",
    "MONTHDAY": r"0[1-9]|[12][0-9]|3[01]|[1-9]",
    "DAY": r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?",
    "YEAR": r"[0-9]{4}|[0-9]{2}",
    "HOUR": r"2[0-3]|[01]?[0-9]",
    "MINUTE": r"[0-5][0-9]",
    "SECOND": r"(?:[0-5]?[0-9]|60)(?:[:.,][0-9]+)?",
    "TIME": r"%{HOUR}:%{MINUTE}(?::%{SECOND})?",
    "DATE_US": r"%{MONTHNUM}[/-]%{MONTHDAY}[/-]%{YEAR}",
    "DATE_EU": r"%{MONTHDAY}[./-]%{MONTHNUM}[./-]%{YEAR}",
    "DATE": r"%{DATE_US}|%{DATE_EU}",
    "DATESTAMP": r"%{DATE}[- ]%{TIME}",
    "TZ": r"[A-Z]{3,4}",
    "ISO8601_TIMEZONE": r"Z|[+-]%{HOUR}(?::?%{MINUTE})?",
    "TIMESTAMP_ISO8601": (
        r"%{YEAR}-%{MONTHNUM}-%{MONTHDAY}[T ]%{HOUR}:?%{MINUTE}(?::?%{SECOND})?"
        r"(?:%{ISO8601_TIMEZONE})?"
    ),
    "DATESTAMP_RFC822": r"%{DAY} %{MONTH} %{MONTHDAY} %{YEAR} %{TIME} %{TZ}",
    "DATESTAMP_RFC2822": r"%{DAY}, %{MONTHDAY} %{MONTH} %{YEAR} %{TIME} %{ISO8601_TIMEZONE}",
    "DATESTAMP_OTHER": r"%{DAY} %{MONTH} %{MONTHDAY} %{TIME} %{TZ} %{YEAR}",
    "HTTPDATE": r"%{MONTHDAY}/%{MONTH}/%{YEAR}:%{TIME} %{INT}",
    "SYSLOGTIMESTAMP": r"%{MONTH} +%{MONTHDAY} %{TIME}",
    "PROG": r"[!-Z\\^-~]+",
    "SYSLOGPROG": r"%{PROG:process.name}(?:\[%{POSINT:process.pid:int}\])?",
    "SYSLOGHOST": r"%{IPORHOST}",
    "SYSLOGBASE": (r"%{SYSLOGTIMESTAMP:timestamp} (?:%{SYSLOGHOST:host.name} )?%{SYSLOGPROG}:"),
    "LOGLEVEL": (
        r"(?i:alert|trace|debug|notice|info(?:rmation)?|warn(?:ing)?|err(?:or)?|crit(?:ical)?"
        r"|fatal|severe|emerg(?:ency)?)"
    ),
    "HTTPDUSER": r"%{EMAILADDRESS}|%{USER}",
    "COMMONAPACHELOG": (
        r"%{IPORHOST:client.address} (?:-|%{HTTPDUSER:client.identity})"
        r" (?:-|%{HTTPDUSER:user.name}) \[%{HTTPDATE:timestamp}\]"
        r' "(?:%{WORD:http.request.method} %{NOTSPACE:url.original}'
        r'(?: HTTP/%{NUMBER:network.protocol.version})?|%{DATA:http.request.line})"'
        r" (?:-|%{INT:http.response.status_code:int}) (?:-|%{INT:http.response.body.size:int})"
    ),
    "COMBINEDAPACHELOG": (
        r'%{COMMONAPACHELOG} "(?:-|%{DATA:http.request.header.referer})"'
        r' "(?:-|%{DATA:user_agent.original})"'
    ),
}
"""The patterns by name."""

_EXPANDED_CHARACTERS_MAX: Final = 64 * 1024
"""Characters of one expanded pattern."""
_DEPTH_MAX: Final = 16
"""Patterns within each other."""
_CALL: Final = re.compile(
    r"%\{([A-Za-z0-9_]{1,64})(?::([A-Za-z0-9_.@\[\]-]{1,128}))?(?::([a-z]{1,8}))?\}"
)
_NAMED: Final = re.compile(r"\(\?P?<([A-Za-z_][A-Za-z0-9_.-]{0,127})>")
_BRACKETS: Final = re.compile(r"\]\[|[\[\]]")
_TYPES: Final[Mapping[str, str]] = {
    "int": "int", "integer": "int", "long": "int", "float": "double", "double": "double",
    "string": "string", "bool": "bool", "boolean": "bool",
}  # fmt: skip

Convert = Callable[[Any], Any]
Definitions = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A pattern as one regular expression.

    Attributes:
        find: Gives the texts of all groups.
        keys: The attribute of each capturing group, in their order, and what converts its text.
    """

    find: Callable[[str], list[str | None] | None]
    keys: Sequence[tuple[str, Convert | None]]

    def read(self, text: str) -> dict[str, Any] | None:
        """The parts of a text; None where the pattern is not found in it."""
        found = self.find(text)
        if found is None:
            return None
        parts: dict[str, Any] = {}
        for (key, convert), value in zip(self.keys, found, strict=True):
            if value is None or key in parts:
                continue
            converted = None if convert is None else convert(value)
            parts[key] = value if converted is None else converted
        return parts


class _Expansion:
    """Expands one pattern; every capturing group gets a number, and its attribute is noted."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = {**PATTERNS, **definitions}
        self._size = 0
        self.keys: list[tuple[str, Convert | None]] = []

    def expand(self, pattern: str, depth: int = 0) -> str:
        """The pattern without calls of others.

        Raises:
            ValueError: It calls a pattern that there is not, itself, or becomes too long.
        """
        if depth > _DEPTH_MAX:
            msg = f"patterns call each other more than {_DEPTH_MAX} deep; does one call itself?"
            raise ValueError(msg)
        parts: list[str] = []
        at = 0
        for call in re.finditer(f"{_CALL.pattern}|{_NAMED.pattern}", pattern):
            parts.append(pattern[at : call.start()])
            at = call.end()
            name, field, kind, group = call.groups()
            parts.append(
                self._group(group, None) if group else self._call(name, field, kind, depth)
            )
        parts.append(pattern[at:])
        made = "".join(parts)
        self._size += len(made)
        if self._size > _EXPANDED_CHARACTERS_MAX:
            msg = f"the pattern becomes longer than {_EXPANDED_CHARACTERS_MAX} characters"
            raise ValueError(msg)
        return made

    def _call(self, name: str, field: str | None, kind: str | None, depth: int) -> str:
        if name not in self._definitions:
            msg = f"there is no pattern {name}; define it in `definitions`"
            raise ValueError(msg)
        if kind is not None and kind not in _TYPES:
            msg = f"%{{{name}:{field}:{kind}}}: types are {', '.join(_TYPES)}"
            raise ValueError(msg)
        if field is None:
            return f"(?:{self.expand(self._definitions[name], depth + 1)})"
        head = self._group(field, kind)
        return f"{head}{self.expand(self._definitions[name], depth + 1)})"

    def _group(self, field: str, kind: str | None) -> str:
        key = _BRACKETS.sub(lambda found: "." if found[0] == "][" else "", field)
        self.keys.append((key, None if kind is None else CONVERSIONS[_TYPES[kind]]))
        return f"(?P<g{len(self.keys)}>"


def compile_grok(pattern: str, definitions: Definitions) -> Compiled:
    """A pattern, ready to use.

    Raises:
        ValueError: It cannot be expanded, is no pattern of RE2, or names no field.
    """
    expansion = _Expansion(definitions)
    expanded = expansion.expand(pattern)
    if not expansion.keys:
        msg = "the pattern names no field, as in %{INT:status}"
        raise ValueError(msg)
    compiled = compile_pattern(expanded, max_characters=_EXPANDED_CHARACTERS_MAX)
    if compiled.groups != len(expansion.keys):
        msg = "the pattern has a group without a name; write it as (?:…)"
        raise ValueError(msg)
    find = groups_finder(expanded, range(1, compiled.groups + 1))
    return Compiled(find, expansion.keys)


class GrokSettings(ParsingSettings):
    """A text becomes attributes by named patterns."""

    type: Literal["grok"]
    patterns: list[Annotated[str, Field(min_length=1)]] = Field(
        min_length=1, max_length=64, description="the first that is found in the text counts"
    )
    definitions: dict[
        Annotated[str, Form(r"^[A-Za-z0-9_]{1,64}$", "1 to 64 characters of A-Z a-z 0-9 _")], str
    ] = Field(
        default={}, max_length=256, description="further patterns by name; they replace known ones"
    )

    @model_validator(mode="after")
    def _compile(self) -> Self:
        for pattern in self.patterns:
            compile_grok(pattern, self.definitions)
        return self


class Grok(Parsing):
    """Reads a field's text by the first of some patterns that is found in it."""

    settings = GrokSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        compiled = [compile_grok(one, settings.definitions) for one in settings.patterns]

        def read(text: str, _: int) -> dict[str, Any] | None:
            for one in compiled:
                if (found := one.read(text)) is not None:
                    return found
            return None

        return cls(read, settings, name="of any of the patterns")
