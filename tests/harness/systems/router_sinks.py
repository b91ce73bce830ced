"""The three sinks of the job that is killed: Parquet, a real PostgreSQL, an unsteady Elasticsearch.

The third is a fake of the bulk API behind a door that is closed half of the time.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg
from typing_extensions import override

from tests.harness.checkers.claims import Arrived
from tests.harness.faults.sink import UnsteadySink
from tests.support.fake_elasticsearch import API_KEY, FakeElasticsearch
from tests.support.fault_door import FaultDoor
from tests.support.postgres_server import SUPERUSER, postgres_port
from tests.support.router import log_line, read_lake

_TABLE: Final = "killed"
_SERVICES: Final = 3


def line_of(number: int) -> bytes:
    """The record with a number."""
    return log_line(number, service=f"service-{number % _SERVICES}")


def number_of(line: bytes | None) -> int | None:
    """The number of a record, if it is as it was published."""
    try:
        number = int((line or b"").partition(b'"body": "order ')[2].partition(b" ")[0])
    except ValueError:
        return None
    return number if line == line_of(number) else None


def number_in(body: str | None) -> int | None:
    """The number in a record's text."""
    words = (body or "").split()
    whole = len(words) == 3 and words[0] == "order" and words[1].isdecimal()
    return int(words[1]) if whole else None


class _Texts(FakeElasticsearch):
    """Keeps of each document its text only, for there are many."""

    @override
    def _create(self, about: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
        said = super()._create(about, document)
        if said["status"] == 201:
            self.indices[about["_index"]][about["_id"]] = {"body": document["body"]}
        return said


class RouterSinks:
    """They take records from the start of the block to its end.

    Args:
        directory: For the lake.
        rng: Draws when the third one is down.
    """

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self._lake = directory / "lake"
        self._secret = directory / "api_key"
        self._secret.write_text(API_KEY)
        self._dsn = f"postgresql://{SUPERUSER}@127.0.0.1:{postgres_port()}/postgres"
        self._search = _Texts()
        self._rng = rng
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._execute(f"DROP TABLE IF EXISTS {_TABLE}")
        self._stack.callback(self._execute, f"DROP TABLE IF EXISTS {_TABLE}")
        self._door = FaultDoor(self._search)
        self._stack.callback(self._door.close)
        self.unsteady = self._stack.enter_context(UnsteadySink(self._door, self._rng))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def config(self) -> dict[str, dict[str, Any]]:
        """For the job file."""
        retry = {"initial_backoff_s": 0.05, "max_backoff_s": 0.5, "max_paused_backoff_s": 1}
        return {
            "lake": {"type": "parquet", "path": str(self._lake)},
            "table": {"type": "postgres", "dsn": self._dsn, "table": _TABLE, "retry": retry},
            "search": {
                "type": "elasticsearch", "url": self._door.url, "documents": "record",
                "api_key": {"file": str(self._secret)}, "retry": retry, "timeout_s": 2,
                "batch": {"max_records": 500},
            },
        }  # fmt: skip

    def stored(self) -> Iterator[Arrived]:
        """What each sink holds."""
        for line in read_lake(self._lake)["value"].to_pylist():
            yield _arrived("lake", number_of(line), line)
        for (body,) in self._execute(f"SELECT record ->> 'body' FROM {_TABLE}"):
            yield _arrived("table", number_in(body), body)
        for held in self._search.indices.values():
            for document in held.values():
                yield _arrived("search", number_in(document["body"]), document["body"])

    def _execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []


def _arrived(sink: str, number: int | None, what: object) -> Arrived:
    return f"{sink}: {what!r}" if number is None else (sink, number)
