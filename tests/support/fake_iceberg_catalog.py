"""A fake of Iceberg's REST catalog, written from its specification; behind it is a catalog of SQL.

It knows what an append needs: configuration, namespaces, tables that are loaded, staged, committed.
Requests are read with the reference library's own models, and its requirements decide about 409.
"""

import json
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
)
from pyiceberg.table import CommitTableRequest
from typing_extensions import override

from tests.support.fault_door import Answered, Asked, Backend

TOKEN: Final = "right"


class FakeIcebergCatalog(Backend):
    """One catalog, for clients that have the token."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._staged: dict[str, Any] = {}

    @override
    def handle(self, asked: Asked) -> Answered:
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return _error(401, "NotAuthorizedException", "not with this token")
        words = [unquote(it) for it in urlsplit(asked.path).path.split("/")[2:]]
        answered = self._read(words) if asked.method in ("GET", "HEAD") else None
        if asked.method == "POST":
            answered = self._changed(words, asked.body)
        missing = f"{asked.method} {asked.path} is not for a sink"
        return answered or _error(400, "BadRequestException", missing)

    def _read(self, words: list[str]) -> Answered | None:
        match words:
            case ["config"]:
                return _said({"defaults": {}, "overrides": {}})
            case ["namespaces", name]:
                found = self.catalog.namespace_exists(name)
                return _said({"namespace": [name]}) if found else _error(404, "NoSuchNamespace")
            case ["namespaces", name, "tables", table]:
                return self._load(f"{name}.{table}")
            case _:
                return None

    def _changed(self, words: list[str], body: bytes) -> Answered | None:
        match words:
            case ["namespaces"]:
                return self._make_namespace(json.loads(body)["namespace"])
            case ["namespaces", name, "tables"]:
                return self._stage(name, json.loads(body))
            case ["namespaces", name, "tables", table]:
                return self._commit(f"{name}.{table}", body)
            case _:
                return None

    def _make_namespace(self, name: list[str]) -> Answered:
        try:
            self.catalog.create_namespace(tuple(name))
        except NamespaceAlreadyExistsError as error:
            return _error(409, "AlreadyExistsException", str(error))
        return _said({"namespace": name, "properties": {}})

    def _stage(self, namespace: str, given: dict[str, Any]) -> Answered:
        optional = dict.fromkeys(("location", "partition-spec", "write-order"))
        request = CreateTableRequest.model_validate(optional | given)
        assert request.stage_create
        name = f"{namespace}.{request.name}"
        if self.catalog.table_exists(name):
            return _error(409, "AlreadyExistsException", name)
        staged = self.catalog.create_table_transaction(name, schema=request.table_schema)
        table = self._staged[name] = staged._table  # noqa: SLF001 - pyiceberg shows it nowhere else
        return _table(table)

    def _load(self, name: str) -> Answered:
        try:
            return _table(self.catalog.load_table(name))
        except NoSuchTableError as error:
            return _error(404, "NoSuchTableException", str(error))

    def _commit(self, name: str, body: bytes) -> Answered:
        request = CommitTableRequest.model_validate_json(body)
        try:
            if self.catalog.table_exists(name):
                table = self.catalog.load_table(name)
            else:
                table = self._staged[name]
            done = self.catalog.commit_table(table, request.requirements, request.updates)
        except CommitFailedException as error:
            return _error(409, "CommitFailedException", str(error))
        return _said(json.loads(done.model_dump_json(by_alias=True)))


def _table(table: Any) -> Answered:
    metadata = json.loads(table.metadata.model_dump_json(by_alias=True))
    return _said({"metadata-location": table.metadata_location, "metadata": metadata, "config": {}})


def _said(document: Any) -> Answered:
    return Answered(200, json.dumps(document).encode(), {"Content-Type": "application/json"})


def _error(status: int, kind: str, message: str = "") -> Answered:
    body = {"error": {"message": message, "type": kind, "code": status}}
    return Answered(status, json.dumps(body).encode(), {"Content-Type": "application/json"})
