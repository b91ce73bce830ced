"""Sinks that append to a table of a lake, with moto as the store behind a fault door."""

from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from typing_extensions import override

from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.registry import sink_kind
from penstock.router.sinks.table_format import LakeSink
from tests.support.fault_door import Asked, FaultDoor
from tests.support.moto_server import BUCKET, S3_KEYS, MotoRun
from tests.support.sink_batches import context

FAST = {
    "retry": {"initial_backoff_s": 0.005, "max_backoff_s": 0.05, "confirmed_after_s": 0.02},
    "timeout_s": 20,
}
TABLE = f"s3://{BUCKET}/telemetry"


class LakeCase(ABC):
    """One kind of table, in a bucket of its own.

    Attributes:
        type: Of the sink.
        door: In front of the store.
    """

    type: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.door = FaultDoor(MotoRun())

    @abstractmethod
    def keys(self, url: str) -> dict[str, Any]:
        """The sink's settings, for a store at a URL."""

    @abstractmethod
    def rows(self) -> pa.Table:
        """What any reader sees, past the door."""

    @abstractmethod
    def commits(self) -> int:
        """How many there were, the table's making among them."""

    @abstractmethod
    def is_commit(self, asked: Asked) -> bool:
        """Whether a request to the store is what makes a commit visible, or writes its metadata."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """As another program would."""

    def stored(self) -> Counter[int]:
        """How often each record, by its number, is there."""
        values = self.rows().column("value").to_pylist()
        return Counter(int(orjson.loads(it)["body"].split()[1]) for it in values)

    def sink(self, *, name: str = "sink", **keys: Any) -> tuple[Any, SinkContext]:
        """The sink, open, and its context."""
        made = context(self.directory, sink=name)
        settings = {"type": self.type, **FAST, **self.keys(self.door.url), **keys}
        sink = make_sink(sink_kind(self.type).config.model_validate(settings), made)
        assert isinstance(sink, LakeSink)
        sink.open()
        self.door.closing.append(sink.close)
        return sink, made

    def close(self) -> None:
        """End what the test began."""
        self.door.close()


class DeltaCase(LakeCase):
    """A table of Delta Lake."""

    type = "delta"

    def storage(self, url: str) -> dict[str, str]:
        """Options of its library."""
        return {
            "aws_endpoint": url,
            "aws_allow_http": "true",
            "aws_access_key_id": S3_KEYS["access_key_id"],
            "aws_secret_access_key": S3_KEYS["secret_access_key"],
            "aws_region": "us-east-1",
        }

    @override
    def keys(self, url: str) -> dict[str, Any]:
        return {"table": TABLE, "storage": self.storage(url)}

    def table(self) -> DeltaTable:
        """For a look at it."""
        assert isinstance(self.door.backend, MotoRun)
        return DeltaTable(TABLE, storage_options=self.storage(self.door.backend.url))

    @override
    def rows(self) -> pa.Table:
        return self.table().to_pyarrow_table()

    @override
    def commits(self) -> int:
        last: int = self.table().version()
        return last + 1

    @override
    def is_commit(self, asked: Asked) -> bool:
        return asked.method == "PUT" and "/_delta_log/" in asked.path

    @override
    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.table(), rows, mode="append", schema_mode="merge")


class IcebergCase(LakeCase):
    """A table of Iceberg; its catalog is a file of SQLite."""

    type = "iceberg"

    @override
    def keys(self, url: str) -> dict[str, Any]:
        return {"table": "telemetry.records", "catalog": self.catalog(url)}

    def catalog(self, url: str) -> dict[str, str]:
        """Properties of its library."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.directory}/catalog.db",
            "warehouse": f"s3://{BUCKET}/warehouse",
            "s3.endpoint": url,
            "s3.region": "us-east-1",
            "s3.access-key-id": S3_KEYS["access_key_id"],
            "s3.secret-access-key": S3_KEYS["secret_access_key"],
        }

    def table(self) -> Any:
        """For a look at it."""
        assert isinstance(self.door.backend, MotoRun)
        catalog = load_catalog("default", **self.catalog(self.door.backend.url))
        return catalog.load_table("telemetry.records")

    @override
    def rows(self) -> pa.Table:
        found: pa.Table = self.table().scan().to_arrow()
        return found

    @override
    def commits(self) -> int:
        return len(self.table().snapshots())

    @override
    def is_commit(self, asked: Asked) -> bool:
        return asked.method in ("PUT", "POST") and ".metadata.json" in asked.path

    @override
    def append(self, rows: pa.Table) -> None:
        self.table().append(rows)


CASES = {case.type: case for case in (DeltaCase, IcebergCase)}


def write_to(kind: str, directory: Path, url: str, rows: pa.Table) -> None:
    """Write as the driver of another process would."""
    case = CASES[kind].__new__(CASES[kind])
    case.directory = directory
    made = context(directory)
    settings = {"type": kind, **FAST, **case.keys(url)}
    sink = make_sink(sink_kind(kind).config.model_validate(settings), made)
    sink.open()
    sink.write(rows)
