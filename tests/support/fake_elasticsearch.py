"""A fake of the bulk API of Elasticsearch and OpenSearch, written from their reference.

"Bulk API" and "Data streams": pairs of lines that end in a newline, an outcome for each document,
409 for an `_id` that is there, 400 for a value that does not fit its field's mapping, which the
first document that has the field decides ("Dynamic field mapping"). A dotted name is a path of
objects; one that leads into a field of another type is refused, and so is an integer that a long
does not hold. `PUT _index_template/NAME` ("Create or update index template"): `flattened` and
`flat_object` take any object, `enabled: false` anything, `ignore_malformed` what is no number.
"""

import gzip
import json
import threading
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from typing_extensions import override

from tests.support.fault_door import Answered, Asked, Backend

API_KEY: Final = "a2V5OnNlY3JldA=="


class FakeElasticsearch(Backend):
    """One cluster; indices make themselves.

    Attributes:
        full_for: So many documents are answered with 429 before there is room again.
        broken_id: A document with this `_id` is answered with 500 each time.
        indices: Documents by index and `_id`.
    """

    def __init__(self) -> None:
        self.full_for = 0
        self.broken_id = ""
        self.indices: dict[str, dict[str, dict[str, Any]]] = {}
        self._mappings: dict[str, dict[str, Any]] = {}
        self._templates: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    @override
    def handle(self, asked: Asked) -> Answered:
        with self._lock:
            if asked.headers.get("authorization") != f"ApiKey {API_KEY}":
                return _error(401, "security_exception", "missing authentication credentials")
            if asked.method == "PUT" and asked.path.startswith("/_index_template/"):
                self._templates[asked.path] = json.loads(asked.body)
                return Answered(200, b'{"acknowledged":true}')
            if asked.path.partition("?")[0] != "/_bulk":
                return _error(405, "illegal_argument", "incorrect HTTP method for uri")
            if asked.headers.get("content-type") != "application/x-ndjson":
                return _error(406, "media_type_header_exception", "Content-Type is not supported")
            body = asked.body
            if asked.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if not body.endswith(b"\n"):
                reason = "The bulk request must be terminated by a newline [\\n]"
                return _error(400, "illegal_argument_exception", reason)
            lines = body[:-1].split(b"\n")
            items = [
                {"create": self._create(json.loads(action)["create"], json.loads(document))}
                for action, document in zip(lines[::2], lines[1::2], strict=True)
            ]
            errors = any("error" in item["create"] for item in items)
            return Answered(200, json.dumps({"errors": errors, "items": items}).encode())

    def _matching(self, index: str) -> list[dict[str, Any]]:
        return [
            it
            for it in self._templates.values()
            if any(fnmatchcase(index, pattern) for pattern in it["index_patterns"])
        ]

    def _mapped(self, index: str) -> dict[str, Any]:
        """What templates say of a new index: types by path."""
        found: dict[str, Any] = {}
        for it in self._matching(index):
            found |= dict(_fields(it["template"]["mappings"]["properties"]))
        return found

    def _unfit(self, name: str, document: dict[str, Any]) -> dict[str, Any] | None:
        """Why an index does not take a document; its new fields are mapped."""
        mapping = self._mappings.setdefault(name, self._mapped(name))
        ignores = any(
            it["template"]["settings"].get("index.mapping.ignore_malformed")
            for it in self._matching(name)
        )
        for path, value in _leaves(document, mapping):
            known = mapping.setdefault(path, type(value).__name__)
            parts = path.split(".")
            above = [".".join(parts[:end]) for end in range(1, len(parts))]
            below = any(other.startswith(f"{path}.") for other in mapping)
            if below or any(it in mapping for it in above):
                reason = f"mapping for [{path}] conflicts with an object or a field of that name"
                return _refusal(400, "illegal_argument_exception", reason)
            if not _fits(known, value) and not (ignores and known in _NUMERIC):
                reason = f"failed to parse field [{path}] of type [{known}]"
                return _refusal(400, "document_parsing_exception", reason)
        return None

    def _create(self, about: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
        name, identity = about["_index"], about["_id"]
        held = self.indices.setdefault(name, {})
        if self.full_for > 0:
            self.full_for -= 1
            return _refusal(429, "es_rejected_execution_exception", "queue capacity 1")
        if identity == self.broken_id:
            return _refusal(500, "null_pointer_exception", "")
        if identity in held:
            return _refusal(409, "version_conflict_engine_exception", "document already exists")
        if "@timestamp" not in document:
            reason = "data stream timestamp field [@timestamp] is missing"
            return _refusal(400, "document_parsing_exception", reason)
        if (refusal := self._unfit(name, document)) is not None:
            return refusal
        held[identity] = document
        return {"_index": name, "_id": identity, "result": "created", "status": 201}


_NUMERIC: Final = ("int", "long", "float", "double")
_ANY_OBJECT: Final = ("flattened", "flat_object")


def _leaves(value: Any, mapping: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a document by their paths; a field that holds objects has them whole."""
    if not isinstance(value, dict) or mapping.get(path) in (*_ANY_OBJECT, "disabled"):
        yield path, value
        return
    for name, member in value.items():
        yield from _leaves(member, mapping, f"{path}.{name}" if path else name)


def _fields(properties: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a template by their paths, with their types."""
    for name, about in properties.items():
        where = f"{path}{name}"
        if "properties" in about:
            yield from _fields(about["properties"], f"{where}.")
        else:
            yield where, "disabled" if about.get("enabled") is False else about["type"]


def _fits(known: str, value: Any) -> bool:
    """Whether a field of a type takes a value; a text takes all but objects ("coerce")."""
    if known == "disabled" or isinstance(value, dict):
        return known in (*_ANY_OBJECT, "dict", "disabled")
    if isinstance(value, list):
        return known == "list" or all(_fits(known, it) for it in value)
    if known in (*_ANY_OBJECT, "dict"):
        return False
    if known not in _NUMERIC:
        return known in ("str", "text", "keyword", "date", "list") or type(value).__name__ == known
    try:
        return known in ("float", "double") or -(2.0**63) <= float(value) < 2.0**63
    except ValueError:
        return False


def _refusal(status: int, kind: str, reason: str) -> dict[str, Any]:
    return {"status": status, "error": {"type": kind, "reason": reason}}


def _error(status: int, kind: str, reason: str) -> Answered:
    said = {"error": {"type": kind, "reason": reason}, "status": status}
    return Answered(status, json.dumps(said).encode())
