"""A fake of the bulk API of Elasticsearch and OpenSearch, written from their reference.

"Bulk API" and "Data streams": pairs of lines that end in a newline, an outcome for each document,
409 for an `_id` that is there, 400 for a value that does not fit its field's mapping, which the
first document that has the field decides ("Dynamic field mapping").
"""

import gzip
import json
import threading
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
        self._mappings: dict[str, dict[str, type]] = {}
        self._lock = threading.Lock()

    @override
    def handle(self, asked: Asked) -> Answered:
        with self._lock:
            if asked.headers.get("authorization") != f"ApiKey {API_KEY}":
                return _error(401, "security_exception", "missing authentication credentials")
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
        mapping = self._mappings.setdefault(name, {})
        for field, value in document.items():
            known = mapping.setdefault(field, type(value))
            if not _fits(known, value):
                reason = f"failed to parse field [{field}] of type [{known.__name__}]"
                return _refusal(400, "document_parsing_exception", reason)
        held[identity] = document
        return {"_index": name, "_id": identity, "result": "created", "status": 201}


def _fits(known: type, value: Any) -> bool:
    """Whether a field of a type takes a value; a text takes all but objects ("coerce")."""
    if known in (dict, list) or isinstance(value, dict | list):
        return isinstance(value, known)
    if known not in (int, float):
        return known is str or isinstance(value, known)
    try:
        float(value)
    except ValueError:
        return False
    return True


def _refusal(status: int, kind: str, reason: str) -> dict[str, Any]:
    return {"status": status, "error": {"type": kind, "reason": reason}}


def _error(status: int, kind: str, reason: str) -> Answered:
    said = {"error": {"type": kind, "reason": reason}, "status": status}
    return Answered(status, json.dumps(said).encode())
