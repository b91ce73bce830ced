"""Elasticsearch's document APIs, and what its senders ask for before they begin.

    POST /_bulk, /INDEX/_bulk              documents; an outcome for each
    POST /INDEX/_doc, PUT /INDEX/_doc/ID   one document; also `_create`
    GET  /, /_license, /_xpack, /_cluster/health
    GET, HEAD, PUT, POST, DELETE           templates, policies, pipelines, aliases, data streams,
                                           indices

What Beats, Logstash and Fluent Bit set up is acknowledged and not kept, and whatever they look for
is there: a log has no mappings. Every answer has the header by which clients know Elasticsearch. An
item's status is 201 when its record is durable in the spool.
"""

import secrets
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from typing_extensions import override

from penstock.base.http.server import Request, Response
from penstock.collector.decode.lines import read_object
from penstock.collector.decode.senders.elasticsearch import BulkItem, bulk_lines, document_line
from penstock.collector.decode.senders.record_maker import RecordMaker
from penstock.collector.sources.network.http_receiver import Handle, Refusal, json_response
from penstock.collector.sources.network.http_source import (
    AuthenticatedHttpSource,
    AuthenticatedSettings,
    count_query,
)
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import SpoolWriter
from penstock.service import HostPort
from penstock.service.config_types import Form

Json = dict[str, Any]
_PRODUCT: Final = {"x-elastic-product": "Elasticsearch"}
"""Without this header the official clients refuse an answer."""
_KINDS: Final = {
    400: "illegal_argument_exception",
    401: "security_exception",
    404: "resource_not_found_exception",
    405: "illegal_argument_exception",
    413: "content_too_long_exception",
    415: "media_type_header_exception",
    429: "es_rejected_execution_exception",
    503: "unavailable_shards_exception",
}
"""Types of errors by their status."""
_LICENSE: Final = {"status": "active", "uid": "penstock", "type": "basic", "mode": "basic"}
_RESOURCES: Final = (
    "_alias",
    "_component_template",
    "_data_stream",
    "_ilm",
    "_index_template",
    "_ingest",
    "_template",
)
"""Resources that senders set up: policies, templates, pipelines."""
_READS: Final = ("GET", "HEAD")
_CHANGES: Final = ("PUT", "POST", "DELETE")


class ElasticsearchSettings(AuthenticatedSettings):
    """Documents as senders to Elasticsearch index them; acknowledged."""

    type: Literal["elasticsearch"]
    listen: HostPort = "127.0.0.1:9200"
    service: str = Field(
        default="from_index",
        min_length=1,
        description="of documents without `service.name`; `from_index`: their index",
    )
    version: Annotated[
        str, Form(r"^\d{1,3}\.\d{1,3}\.\d{1,3}$", "three numbers joined by dots, as 9.0.0")
    ] = Field(
        default="9.0.0",
        description="shown to senders, some of which refuse one older than their own",
    )


class ElasticsearchSource(AuthenticatedHttpSource[ElasticsearchSettings]):
    """Listens for requests, and answers each when its records are durable."""

    settings = ElasticsearchSettings

    def __init__(
        self,
        section: ElasticsearchSettings,
        resource: Mapping[str, Any],
        *,
        spool_writer: SpoolWriter,
    ) -> None:
        super().__init__(section, resource, spool_writer=spool_writer)
        self._uuid = secrets.token_urlsafe(16)
        self._facts: Mapping[tuple[str, ...], Json] = {
            (): self._info(),
            ("_license",): {"license": _LICENSE},
            ("_xpack",): {
                "license": _LICENSE,
                "features": {"ilm": {"available": True, "enabled": True}},
            },
            ("_cluster", "health"): {
                "cluster_name": "penstock",
                "status": "green",
                "timed_out": False,
            },
        }

    @override
    def find(self, request: Request) -> Handle:
        method = request.method
        parts = tuple(part for part in request.path.split("/") if part)
        if method in _READS and parts in self._facts:
            return partial(self._say, 200, self._facts[parts])
        if method in ("POST", "PUT"):
            if parts[-1:] == ("_bulk",) and len(parts) <= 2:
                return partial(self._take_bulk, parts[0] if parts[1:] else "")
            if len(parts) in (2, 3) and parts[1] in ("_doc", "_create"):
                return partial(self._take_document, *parts)
        is_resource = parts[:1] and parts[0] in _RESOURCES
        if is_resource or (len(parts) == 1 and not parts[0].startswith("_")):
            if method in _READS:
                return partial(self._say, 200, _found(parts))
            if method in _CHANGES:
                return self._acknowledge
        raise Refusal(400, f"no handler found for uri [{request.path}] and method [{method}]")

    @override
    def refuse(self, request: Request, refusal: Refusal) -> Response:
        status = refusal.status
        error = {"type": _KINDS.get(status, "exception"), "reason": refusal.message}
        return json_response(
            status, {"error": {"root_cause": [error], **error}, "status": status}, _PRODUCT
        )

    # What requests ask for.

    async def _take_bulk(
        self, index: str, request: Request, body: bytes, charge: Charge
    ) -> Response:
        clock = self.spool_writer.clock
        begun_ns = clock.unix_ns()
        records, items = RecordMaker(self.resource, begun_ns), list[BulkItem]()
        count_query(request, records.notes)
        lines = bulk_lines(
            body,
            index,
            self.section.service,
            records,
            items,
            max_items=self.spool_writer.limits.max_request_records,
        )
        kept = await self.keep(lines, charge, records.notes)
        self.spool_writer.note("items_refused", sum(item.error is not None for item in items))
        said = [_outcome(item, kept.rejected) for item in items]
        answer = {
            "took": (clock.unix_ns() - begun_ns) // 1_000_000,
            "errors": any("error" in outcome for one in said for outcome in one.values()),
            "items": said,
        }
        return json_response(200, answer, _PRODUCT)

    async def _take_document(self, *given: Any) -> Response:
        index, action, *identity = given[:-3]
        body, charge = given[-2:]
        name = "create" if action == "_create" else "index"
        item = BulkItem(name, index, identity[0] if identity else secrets.token_urlsafe(15))
        records = RecordMaker(self.resource, self.spool_writer.clock.unix_ns())
        fields, is_repaired = read_object(body)
        if fields is None:
            raise self.receiver.malformed("failed to parse: a document is a JSON object")
        records.notes["lines_repaired"] += is_repaired
        records.notes["document_ids_dropped"] += bool(identity)
        count_query(given[-3], records.notes)
        item.record = 0
        line = document_line(fields, item, self.section.service, records)
        kept = await self.keep(iter([line]), charge, records.notes)
        if kept.rejected:
            raise Refusal(400, kept.rejected[0])
        (outcome,) = _outcome(item, {}).values()
        return json_response(201, outcome, _PRODUCT)

    async def _acknowledge(self, _: Request, __: bytes, ___: Charge) -> Response:
        self.spool_writer.note("setups_ignored")
        return json_response(200, {"acknowledged": True, "shards_acknowledged": True}, _PRODUCT)

    async def _say(self, status: int, value: Json, _: Request, __: bytes, ___: Charge) -> Response:
        return json_response(status, value, _PRODUCT)

    def _info(self) -> Json:
        return {
            "name": self.name,
            "cluster_name": "penstock",
            "cluster_uuid": self._uuid,
            "version": {
                "number": self.section.version,
                "build_flavor": "default",
                "build_type": "tar",
                "build_hash": "unknown",
                "build_date": "2025-01-01T00:00:00.000Z",
                "build_snapshot": False,
                "lucene_version": "10.0.0",
                "minimum_wire_compatibility_version": "7.17.0",
                "minimum_index_compatibility_version": "7.0.0",
            },
            "tagline": "You Know, for Search",
        }


def _found(parts: tuple[str, ...]) -> Json:
    """Return an empty resource to a sender that checks for it before it makes it."""
    kind, name = parts[0], parts[-1]
    if kind == "_index_template":
        return {"index_templates": [{"name": name, "index_template": {"index_patterns": []}}]}
    if kind == "_component_template":
        return {"component_templates": [{"name": name, "component_template": {"template": {}}}]}
    if kind == "_data_stream":
        return {"data_streams": [{"name": name, "status": "GREEN", "indices": []}]}
    if kind == "_ilm":
        return {name: {"version": 1, "policy": {"phases": {}}}}
    return {name: {"aliases": {name: {}}} if kind == "_alias" else {}}


def _outcome(item: BulkItem, rejected: Mapping[int, str]) -> Json:
    """One item of a bulk answer."""
    about: Json = {"_index": item.index, "_id": item.identity}
    error = item.error
    if item.record is not None and item.record in rejected:
        error = ("document_parsing_exception", f"in quarantine: {rejected[item.record]}")
    if error is not None:
        return {
            item.action: {**about, "status": 400, "error": {"type": error[0], "reason": error[1]}}
        }
    return {item.action: {**about, "_version": 1, "result": "created", "status": 201}}
