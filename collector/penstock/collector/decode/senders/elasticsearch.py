"""Decoder of Elasticsearch's bulk API to log records.

From the reference, "Bulk API": pairs of lines, an action with its metadata and a document; a
newline ends the last. ``index`` and ``create`` make a record each. ``update`` and ``delete`` change
documents that are there, which a log has not: they are refused, each for itself.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from penstock.collector.decode.lines import read_object
from penstock.collector.decode.senders.record_maker import About, RecordMaker
from penstock.collector.decode.shapes import Made
from penstock.collector.errors import RemoteProtocolError

Json = dict[str, Any]
_TAKEN: Final = ("index", "create")
_REFUSED: Final = ("update", "delete")
_PLACED: Final = frozenset({"_index", "_type"})
"""Metadata of an action that its record has, or that say nothing: all documents are of one type."""
_FROM_INDEX: Final = "from_index"


@dataclass(slots=True)
class BulkItem:
    """The outcome of one action.

    Attributes:
        action: Its name.
        index: The index that it names.
        identity: The document's id: the sender's, or one that is made.
        record: Index of its record in the request; None where it has none.
        error: Why it is none: a type of Elasticsearch's, and the reason.
    """

    action: str
    index: str
    identity: str
    record: int | None = None
    error: tuple[str, str] | None = None

    def refuse(self, kind: str, reason: str) -> None:
        self.record, self.error = None, (kind, reason)


def bulk_lines(
    body: bytes,
    index: str,
    service: str,
    records: RecordMaker,
    items: list[BulkItem],
    *,
    max_items: int,
) -> Iterator[Made]:
    """The records of a bulk request.

    Args:
        body: The request.
        index: The index of actions that name none.
        service: The service of documents that name none, or `from_index`.
        records: Makes them.
        items: Takes the outcome of each action.
        max_items: A request of more is refused whole.

    Raises:
        RemoteProtocolError: It is no bulk request.
    """
    if not body:
        raise RemoteProtocolError("request body is required")
    if not body.endswith(b"\n"):
        raise RemoteProtocolError("The bulk request must be terminated by a newline [\\n]")
    lines, made = iter(enumerate(body[:-1].split(b"\n"), 1)), 0
    for number, line in lines:
        if not line.strip():
            continue
        if len(items) >= max_items:
            raise RemoteProtocolError(f"more than {max_items} actions: send less at once")
        item = _action(line, number, index, records)
        items.append(item)
        document = b"" if item.action == "delete" else next(lines, (0, b""))[1]
        if item.action in _REFUSED:
            item.refuse("illegal_argument_exception", f"{item.action}: a log is appended to only")
            continue
        fields = _document(document, item, records)
        if fields is not None:
            item.record, made = made, made + 1
            yield document_line(fields, item, service, records)


def document_line(fields: Json, item: BulkItem, service: str, records: RecordMaker) -> Made:
    """The record of one document, whose fields are used up."""
    default = item.index or "elasticsearch" if service == _FROM_INDEX else service
    resource = records.resource_of(
        _take_name(fields, "service") or default, _take_name(fields, "host")
    )
    attributes = {"elasticsearch.index": item.index} if item.index else {}
    return records.event(fields, resource, About(attributes))


def _action(line: bytes, number: int, index: str, records: RecordMaker) -> BulkItem:
    """An action and its metadata, of which a record has the index alone; the rest is counted.

    Raises:
        RemoteProtocolError: The line is none.
    """
    found, _ = read_object(line)
    name, about = next(iter(found.items())) if found and len(found) == 1 else ("", None)
    if name not in (*_TAKEN, *_REFUSED) or not isinstance(about, dict):
        wanted = "[create], [delete], [index] or [update]"
        raise RemoteProtocolError(f"Malformed action/metadata line [{number}], expected {wanted}")
    if name in _TAKEN and about.keys() - _PLACED:
        records.notes["document_ids_dropped"] += "_id" in about
        records.notes["action_options_dropped"] += len(about.keys() - _PLACED - {"_id"})
    identity = about.get("_id") or secrets.token_urlsafe(_ID_BYTES)
    return BulkItem(name, str(about.get("_index") or index), str(identity))


_ID_BYTES: Final = 15
"""Bytes of an id that is made; Elasticsearch's own have as many."""


def _document(line: bytes, item: BulkItem, records: RecordMaker) -> Json | None:
    fields, is_repaired = read_object(line)
    if fields is None:
        item.refuse("document_parsing_exception", "failed to parse: a document is a JSON object")
    elif is_repaired:
        records.notes["lines_repaired"] += 1
    return fields


def _take_name(fields: Json, what: str) -> str:
    """Take the name of the service or the host out of a document, where ECS has it; else empty."""
    dotted = f"{what}.name"
    if isinstance(fields.get(dotted), str):
        return str(fields.pop(dotted))
    inner = fields.get(what)
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        return ""
    fields[what] = {key: value for key, value in inner.items() if key != "name"}
    if not fields[what]:
        del fields[what]
    return str(inner["name"])
