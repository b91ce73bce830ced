"""The three sinks of the job that is killed, and one of them is down half of the time.

A directory of Parquet, a real PostgreSQL, and a fake of Elasticsearch's bulk API behind a door that
answers 503, resets the connection, resets it after taking everything, or says nothing.
"""

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psycopg
from typing_extensions import override

from tests.router_kills.judge import OTHER
from tests.router_kills.load import line_of
from tests.support.fake_elasticsearch import API_KEY, FakeElasticsearch
from tests.support.fault_door import RESET, Answered, Asked, FaultDoor
from tests.support.postgres_server import SUPERUSER, postgres_port
from tests.support.router import read_lake

_TABLE: Final = "killed"
_PERIOD_S: Final = (0.2, 4.0)


class Texts(FakeElasticsearch):
    """Keeps of each document its text only, for there are many."""

    @override
    def _create(self, about: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
        said = super()._create(about, document)
        if said["status"] == 201:
            self.indices[about["_index"]][about["_id"]] = {"body": document["body"]}
        return said


class Destinations:
    """All three.

    Args:
        directory: For the lake.
        rng: Draws the weather.
    """

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self._lake = directory / "lake"
        self._dsn = f"postgresql://{SUPERUSER}@127.0.0.1:{postgres_port()}/postgres"
        self._execute(f"DROP TABLE IF EXISTS {_TABLE}")
        self._search = Texts()
        self._door = FaultDoor(self._search)
        self._weather = Weather(self._door, rng)
        self._secret = directory / "api_key"
        self._secret.write_text(API_KEY)

    @property
    def requests(self) -> int:
        """To the fake, refused ones included."""
        return self._weather.requests

    @property
    def down_share(self) -> float:
        """Of the time so far in which the fake was down."""
        return self._weather.down_share

    def sinks(self) -> dict[str, dict[str, Any]]:
        """For the job file."""
        retry = {"first_s": 0.05, "max_s": 0.5, "paused_max_s": 1}
        return {
            "lake": {"type": "parquet", "path": str(self._lake)},
            "table": {"type": "postgres", "dsn": self._dsn, "table": _TABLE, "retry": retry},
            "search": {
                "type": "elasticsearch", "url": self._door.url, "documents": "record",
                "api_key": {"file": str(self._secret)}, "retry": retry, "timeout_s": 2,
                "batch": {"records_max": 500},
            },
        }  # fmt: skip

    def clear_up(self) -> None:
        """The fake is well from now on."""
        self._weather.end()

    def stored(self) -> dict[str, Counter[int]]:
        """How often each sink holds each record."""
        by_line = read_lake(self._lake)["value"].to_pylist()
        rows = self._execute(f"SELECT record ->> 'body' FROM {_TABLE}")
        documents = [it["body"] for held in self._search.indices.values() for it in held.values()]
        return {
            "lake": Counter(number_of(line) for line in by_line),
            "table": Counter(number_in(body) for (body,) in rows),
            "search": Counter(number_in(body) for body in documents),
        }

    def close(self) -> None:
        """Forget what is there."""
        self._weather.end()
        self._door.close()
        self._execute(f"DROP TABLE IF EXISTS {_TABLE}")

    def _execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []


class Weather:
    """Half of the time the door is closed, in one of four ways.

    Args:
        door: Which.
        rng: Draws how long it is as it is.
    """

    def __init__(self, door: FaultDoor, rng: random.Random) -> None:
        self.requests = 0
        self._door = door
        self._rng = rng
        self._over = threading.Event()
        self._changed = threading.Event()
        self._down_s = self._up_s = 0.0
        self._way = "up"
        door.rule = self._rule
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def down_share(self) -> float:
        """Of the time until `end`."""
        return self._down_s / max(self._down_s + self._up_s, 1e-9)

    def end(self) -> None:
        """It is fine from now on."""
        self._over.set()
        self._thread.join()
        self._become("up")

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()  # noqa: TID251 - a real server's real time
            self._become("up" if self._way != "up" else self._rng.choice(tuple(_WAYS)))
            self._over.wait(self._rng.uniform(*_PERIOD_S))
            took_s = time.monotonic() - began  # noqa: TID251
            if self._way == "up":
                self._up_s += took_s
            else:
                self._down_s += took_s

    def _become(self, way: str) -> None:
        self._way = way
        self._changed.set()
        self._changed.clear()

    def _rule(self, asked: Asked) -> Answered | None:
        self.requests += 1
        self._door.asked.clear()  # of many requests nobody wants to see each
        match self._way:
            case "up":
                return None
            case "taken":
                self._door.backend.handle(asked)
            case "silent":
                self._changed.wait(30)
            case "busy":
                return Answered(503, b"no room")
            case _:
                assert self._way == "reset"
        return RESET


_WAYS: Final = ("reset", "taken", "silent", "busy")


def number_of(line: bytes | None) -> int:
    """The number of a record, if it is as it was published."""
    try:
        number = int((line or b"").partition(b'"body": "order ')[2].partition(b" ")[0])
    except ValueError:
        return OTHER
    return number if line == line_of(number) else OTHER


def number_in(body: str | None) -> int:
    """The number in a record's text."""
    words = (body or "").split()
    whole = len(words) == 3 and words[0] == "order" and words[1].isdecimal()
    return int(words[1]) if whole else OTHER
