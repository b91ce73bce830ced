"""Sinks that speak no HTTP, each with a real server behind a door that breaks connections."""

import asyncio
import atexit
import json
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import nats
import psycopg
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError
from typing_extensions import override

from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.http.request_sink import RequestSink
from penstock.router.sinks.http.task_sink import CONNECTIONS, TaskRequestSink
from penstock.router.sinks.registry import sink_kind
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import SUPERUSER, postgres_port
from tests.support.sink_batches import context, log_record
from tests.support.task_batches import write_in_tasks
from tests.support.tcp_door import TcpDoor

FAST = {
    "retry": {"initial_backoff_s": 0.005, "max_backoff_s": 0.05, "confirmed_after_s": 0.02},
    "timeout_s": 10,
}

Trouble = Callable[[], Callable[[], None]]
"""Makes the server refuse; what it returns makes it well again."""


class ServerCase(ABC):
    """One kind of server, with a place in it for one test alone.

    Attributes:
        type: Of the sink.
        mark: What the client sends for each request, once.
        door: In front of the server.
        passing: What makes the server refuse requests in a way that passes.
        code: Of the dead letter of a record that the server refuses.
        asks_again_itself: Whether the client makes up for a broken connection, unseen by the sink.
        door_port: Where the door has to be; 0 where it may be anywhere.
        takes_future: Whether a time two hours ahead is taken.
        in_tasks: Whether what the sink's `write` gets is written as by a task of Spark's.
    """

    type: ClassVar[str]
    mark: ClassVar[bytes]
    code: ClassVar[str]
    asks_again_itself: ClassVar[bool] = False
    door_port: int = 0
    takes_future: ClassVar[bool] = True
    in_tasks: bool = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.door = TcpDoor(self.port(), self.mark, self.door_port)
        self.closing: list[Callable[[], None]] = []
        self.run = f"r{uuid.uuid4().hex[:12]}"

    @abstractmethod
    def port(self) -> int:
        """Of the running server."""

    @abstractmethod
    def keys(self) -> dict[str, Any]:
        """The sink's settings."""

    @abstractmethod
    def stored(self) -> Counter[int]:
        """How often each record, by its number, is there."""

    @abstractmethod
    def troubles(self) -> Mapping[str, Trouble]:
        """How the server refuses for a while, by name."""

    @abstractmethod
    def locked_out(self) -> tuple[dict[str, Any], Callable[[], None]]:
        """Settings with a secret that is wrong, and what corrects it."""

    def poison(self, number: int) -> Any:
        """A record that the server refuses."""
        return log_record(number, body=f"order {number} POISON", padding="x" * 2000)

    def sink(self, **keys: Any) -> tuple[Any, SinkContext]:
        """The sink, open, and its context."""
        made = context(self._directory)
        settings = {"type": self.type, **FAST, **self.keys(), **keys}
        sink = make_sink(sink_kind(self.type).config.model_validate(settings), made)
        assert isinstance(sink, RequestSink)
        sink.open()
        self.closing.append(sink.close)
        if self.in_tasks:
            assert isinstance(sink, TaskRequestSink)
            sink.write = partial(write_in_tasks, sink)  # type: ignore[method-assign]
            self.closing.append(CONNECTIONS.close)
        return sink, made

    def secret(self, text: str) -> dict[str, str]:
        """A secret in a file."""
        self.write_secret(text)
        return {"file": str(self._directory / "secret")}

    def write_secret(self, text: str) -> None:
        """Another one in the same file."""
        (self._directory / "secret").write_text(text)

    def close(self) -> None:
        """End what the test began."""
        for close in self.closing:
            close()
        self.door.close()


class PostgresCase(ServerCase):
    """A table in PostgreSQL that takes no POISON."""

    type = "postgres"
    mark = b"COMMIT"
    code = "sql_23514"
    body: ClassVar[str] = "record ->> 'body'"
    """Where a record's text is."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.admin = psycopg.connect(self._dsn(postgres_port()), autocommit=True)
        self.closing.append(self.admin.close)
        self.sink()[0].connect()  # makes the table
        self.admin.execute(f"ALTER TABLE {self.run} ADD CHECK ({self.body} NOT LIKE '%POISON%')")

    def _dsn(self, port: int, user: str = SUPERUSER) -> str:
        return f"postgresql://{user}@127.0.0.1:{port}/postgres"

    @override
    def port(self) -> int:
        return postgres_port()

    @override
    def keys(self) -> dict[str, Any]:
        return {"dsn": self._dsn(self.door.port), "table": self.run}

    @override
    def stored(self) -> Counter[int]:
        rows = self.admin.execute(f"SELECT {self.body} FROM {self.run}").fetchall()
        return Counter(int(body.split()[1]) for (body,) in rows)

    @override
    def troubles(self) -> Mapping[str, Trouble]:
        codes = ("40001", "53300", "57P01", "XX000", "42501", "0A000", "57014")
        return {code: partial(self._raises, code) for code in codes}

    def _raises(self, code: str) -> Callable[[], None]:
        """A trigger raises it; a sequence counts how often, for it survives a rollback."""
        name = self.run
        self.admin.execute(f"CREATE SEQUENCE {name}_times")
        self.admin.execute(
            f"CREATE FUNCTION {name}_raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF nextval('{name}_times') <= 2 THEN RAISE EXCEPTION 'as told' USING ERRCODE ="
            f" '{code}'; END IF; RETURN NULL; END $$"
        )
        self.admin.execute(
            f"CREATE TRIGGER raises BEFORE INSERT ON {name} FOR EACH STATEMENT"
            f" EXECUTE FUNCTION {name}_raise()"
        )
        return lambda: None  # it stops by itself

    @override
    def locked_out(self) -> tuple[dict[str, Any], Callable[[], None]]:
        self.admin.execute("DROP ROLE IF EXISTS guarded")
        self.admin.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right'")
        right = self._dsn(self.door.port, "guarded:right")
        dsn = self.secret(right.replace("right", "wrong"))
        return {"dsn": dsn}, partial(self.write_secret, right)


@cache
def running_jetstream() -> NatsServer:
    """One for all tests of this process."""
    directory = tempfile.TemporaryDirectory(prefix="penstock-jetstream-")
    home = Path(directory.name)
    config = home / "nats.conf"
    config.write_text(
        f'jetstream {{ store_dir: "{home}/js" }}\n'
        "max_payload: 8KB\n"
        "authorization { users: [\n"
        "  {user: penstock, password: right}\n"
        '  {user: listener, password: right, permissions: {publish: "_INBOX.>"}}\n'
        "] }\n"
    )
    server = NatsServer(home / "server", config=config)
    atexit.register(directory.cleanup)
    atexit.register(server.close)
    return server


class NatsCase(ServerCase):
    """A stream of JetStream."""

    type = "nats"
    mark = b"HPUB"
    code = "nats_10054"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._make_stream(max_msg_size=1500)

    @override
    def port(self) -> int:
        return running_jetstream().port

    @override
    def keys(self) -> dict[str, Any]:
        return {
            "servers": f"nats://127.0.0.1:{self.door.port}",
            "subject": f"{self.run}.{{kind}}",
            "user": "penstock",
            "password": "right",
        }

    @override
    def stored(self) -> Counter[int]:
        return Counter(self.numbers())

    def numbers(self) -> list[int]:
        """The records that are there, by their numbers and in the stream's order."""
        return asyncio.run(self._numbers())

    @override
    def troubles(self) -> Mapping[str, Trouble]:
        return {"no stream": self._without_stream, "stream is full": self._full}

    def _without_stream(self) -> Callable[[], None]:
        self._ask(lambda stream: stream.delete_stream(self.run))
        return lambda: self._make_stream(max_msg_size=1500)

    def _full(self) -> Callable[[], None]:
        full = {"max_msgs": 1, "discard": "new"}
        self._ask(lambda stream: stream.update_stream(self._config(**full)))
        return lambda: self._ask(lambda stream: stream.update_stream(self._config(max_msgs=-1)))

    @override
    def locked_out(self) -> tuple[dict[str, Any], Callable[[], None]]:
        wrong = self.secret("wrong")
        return {"password": wrong}, partial(self.write_secret, "right")

    def _config(self, **options: Any) -> StreamConfig:
        return StreamConfig(name=self.run, subjects=[f"{self.run}.>"], **options)

    def _make_stream(self, **options: Any) -> None:
        self._ask(lambda stream: stream.add_stream(self._config(**options)))

    async def _numbers(self) -> list[int]:
        found: list[int] = []

        async def read(stream: Any) -> None:
            last = (await stream.stream_info(self.run)).state.last_seq
            for number in range(1, last + 1):
                try:
                    message = await stream.get_msg(self.run, number)
                except NotFoundError:
                    continue
                found.append(int(json.loads(message.data)["body"].split()[1]))

        await self._with_stream(read)
        return found

    def _ask(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        asyncio.run(self._with_stream(work))

    async def _with_stream(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        url = running_jetstream().url
        client = await nats.connect(url, user="penstock", password="right")
        try:
            await work(client.jetstream())
        finally:
            await client.close()


class PostgresInTasksCase(PostgresCase):
    """The same, written to as by a task of Spark's."""

    in_tasks = True


class NatsInTasksCase(NatsCase):
    """The same, written to as by a task of Spark's."""

    in_tasks = True


CASES: dict[str, type[ServerCase]] = {
    "nats": NatsCase,
    "nats in tasks": NatsInTasksCase,
    "postgres": PostgresCase,
    "postgres in tasks": PostgresInTasksCase,
}
