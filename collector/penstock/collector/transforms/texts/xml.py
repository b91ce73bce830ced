"""XML: elements and attributes of a document become attributes of the record.

An element's name is the key of its text, within the names of those around it; an attribute's name
has ``@`` before it, and the text of an element that has more than text stands under ``#text``. An
element that is repeated becomes a list. The root's name is left out.

A document with a DTD is refused, because its entities may grow without bound or name files.
"""

from typing import Any, Final, Literal, Self

from pydantic import Field
from typing_extensions import override

from penstock.collector.transforms.texts.field_parser import Parsing, ParsingSettings, require_extra
from penstock.collector.transforms.transform import TransformContext
from penstock.specs.limits import ATTRIBUTES_MAX, RECORD_BYTES_MAX

_ELEMENTS_MAX: Final = 16 * ATTRIBUTES_MAX
"""Elements of one document; a record has room for far less."""


class XmlSettings(ParsingSettings):
    """A document in XML becomes attributes."""

    type: Literal["xml"]
    max_depth: int = Field(default=16, ge=1, le=64, description="elements within each other")
    namespaces: bool = Field(
        default=False, description="names keep their namespace, as in `{urn:a}name`"
    )


class Xml(Parsing):
    """Reads a field's text as XML."""

    settings = XmlSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        require_extra("xml", "defusedxml", context)
        reader = XmlReader(settings.max_depth, keeps_namespaces=settings.namespaces)
        return cls(lambda text, _: reader.read(text), settings, name="XML that is allowed")


class _TooMuchError(Exception):
    """A document has more elements, or deeper ones, than is allowed."""


class XmlReader:
    """Reads documents.

    Args:
        max_depth: Elements within each other.
        keeps_namespaces: Names keep their namespace.
    """

    def __init__(self, max_depth: int, *, keeps_namespaces: bool) -> None:
        from xml.etree.ElementTree import ParseError

        from defusedxml.common import DefusedXmlException
        from defusedxml.ElementTree import fromstring

        self._parse = fromstring
        self._errors = (ParseError, DefusedXmlException, _TooMuchError, ValueError)
        self._max_depth = max_depth
        self._keeps_namespaces = keeps_namespaces

    def read(self, text: str) -> dict[str, Any] | None:
        """The parts of a document; None where the text is none, or more than is allowed."""
        if not text.lstrip().startswith("<") or len(text) > RECORD_BYTES_MAX:
            return None
        try:
            root = self._parse(text, forbid_dtd=True)
            if sum(1 for _ in root.iter()) > _ELEMENTS_MAX:
                return None
            found = self._value_of(root, 1)
        except self._errors:
            return None
        return found if isinstance(found, dict) else {self._name_of(root.tag): found}

    def _name_of(self, tag: str) -> str:
        return tag if self._keeps_namespaces else tag.rpartition("}")[2]

    def _value_of(self, element: Any, depth: int) -> Any:
        if depth > self._max_depth:
            raise _TooMuchError
        found: dict[str, Any] = {
            f"@{self._name_of(key)}": value for key, value in element.attrib.items()
        }
        for child in element:
            _add(found, self._name_of(child.tag), self._value_of(child, depth + 1))
        texts = (element.text, *(child.tail for child in element))
        text = " ".join(part for one in texts if one and (part := one.strip()))
        if not found:
            return text
        if text:
            found["#text"] = text
        return found


def _add(found: dict[str, Any], name: str, value: Any) -> None:
    """Add a child; a name that is repeated holds a list."""
    if name not in found:
        found[name] = value
    elif isinstance(found[name], list):
        found[name].append(value)
    else:
        found[name] = [found[name], value]
