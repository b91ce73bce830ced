"""URL: the parts of a URL become attributes, named as OpenTelemetry names them.

Names and passwords in a URL are left out: they belong into no log.
"""

from typing import Any, Final, Literal, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import Field
from typing_extensions import override

from penstock.collector.transforms.texts.field_parser import FieldSettings, Parsing
from penstock.collector.transforms.transform import ReadablePath, TransformContext

_PARAMETERS_MAX: Final = 64
"""Parameters of one query; of more none is taken apart."""


class UrlSettings(FieldSettings):
    """The parts of a URL become attributes."""

    type: Literal["url"]
    field: ReadablePath = "attributes.url.full"
    parameters: bool = Field(
        default=False, description="each parameter of the query is an attribute, too"
    )


class Url(Parsing):
    """Reads a URL, whole or without scheme and host."""

    settings = UrlSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        takes_parameters = settings.parameters
        return cls(
            lambda text, _: read_url(text, parameters=takes_parameters), settings, name="a URL"
        )


def read_url(text: str, *, parameters: bool = False) -> dict[str, Any] | None:
    """The parts of a URL; None where the text is none.

    A text without a scheme is one where it begins with a slash: the target of a request.
    """
    text = text.strip()
    if not text or any(character.isspace() for character in text):
        return None
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not (parts.scheme and (host or parts.path)) and not text.startswith("/"):
        return None
    found: dict[str, Any] = {
        "url.scheme": parts.scheme,
        "url.domain": host,
        "url.port": port,
        "url.path": parts.path,
        "url.query": parts.query,
        "url.fragment": parts.fragment,
    }
    found = {key: value for key, value in found.items() if value}
    return found | (_parameters(parts) if parameters else {})


def _parameters(parts: SplitResult) -> dict[str, Any]:
    """The query's parameters; of one that is repeated the last."""
    try:
        given = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=_PARAMETERS_MAX)
    except ValueError:
        return {}
    return {f"url.query.{name}": value for name, value in given if name}
