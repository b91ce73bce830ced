"""The PostgreSQL sink: rows in one table, each record exactly once.

    CREATE TABLE penstock (stream text, incarnation text, "partition" integer, "offset" bigint, …,
                           PRIMARY KEY (stream, incarnation, "partition", "offset"))

A request is one transaction: COPY into a temporary table, then INSERT … ON CONFLICT DO NOTHING. The
primary key is the record's position in the log, so what comes again, in whatever pieces and however
late, is not there twice; a connection that breaks during COMMIT is no question either.

Spark's tasks insert, each over `max_in_flight` connections at most, which its worker keeps.

The driver makes the table at its first connection unless `create: false`. One of yours needs these
columns and that key, to which `time` may be added, as a table that is partitioned by time needs it.
Further columns need defaults.

`record` is the record's JSON. A row that is none, or one that `jsonb` has no form for (a string
with U+0000), is in `raw` as it came. Nothing outlives its transaction, so a pooler in transaction
mode may stand between. What a constraint or trigger of yours refuses is bisected out of its
transaction and goes to the dead letters. Codes are those of appendix A of PostgreSQL's manual.
"""

import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from typing_extensions import override

from penstock.router.deadletters.writer import as_text
from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Fault,
    Paused,
    Rejected,
    Retryable,
    Success,
)
from penstock.router.job.config_errors import WrongKeyError, needed
from penstock.router.sinks.http.encode import (
    ABOUT,
    KEY,
    Json,
    describe,
    position_of,
    record_of,
    row_key,
)
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import RequestBatch, TaskRequestSettings
from penstock.router.sinks.http.task_sink import TaskRequestSink
from penstock.router.sinks.sink import Guarantee, Preview, Replay, SinkContext
from penstock.service.config_types import Form, Secret

COLUMNS: Final[Mapping[str, str]] = {
    "stream": "text NOT NULL",
    "incarnation": "text NOT NULL",
    "partition": "integer NOT NULL",
    "offset": "bigint NOT NULL",
    "time": "timestamptz NOT NULL",
    "time_unix_nano": "bigint NOT NULL",
    "kind": "text NOT NULL",
    "service": "text",
    "severity_number": "smallint",
    "trace_id": "text",
    "record": "jsonb",
    "raw": "bytea",
}
_COPIED: Final = (*ABOUT, "record", "raw")
_TIME: Final = "'epoch'::timestamptz + (time_unix_nano / 1000) * interval '1 microsecond'"
_BYTES_BESIDE_VALUE: Final = 100

_PRIMARY_KEY: Final = """
    SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
    WHERE indrelid = to_regclass(%s) AND indisprimary
"""

_BUSY: Final = ("40001", "40P01", "53100", "53300", "53400", "55P03", "57P01", "57P03")
_PAUSED: Final = ("0A", "23502", "25", "28", "3D", "3F", "42", "55", "57P04")
_UNFIT: Final = ("21", "22", "23", "44", "54", "P0001")
"""Classes of SQLSTATE, and whole codes, looked at in this order; any other is a failure.

23502 (NULL where there must be none) is about columns that are not the sink's: no record's fault.
"""


_PASSING: Final = (
    "starting up", "shutting down", "in recovery", "not accepting connections",
    "not yet accepting connections", "too many clients", "too many connections",
    "remaining connection slots",
)  # fmt: skip
"""Texts of FATAL messages on a connection attempt that may pass."""


class PostgresSink(TaskRequestSettings):
    """Rows in a table of PostgreSQL."""

    type: Literal["postgres"]
    dsn: Secret
    table: Annotated[
        str,
        Form(
            r"^[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?$",
            "TABLE or SCHEMA.TABLE, each 1 to 63 characters of a-z 0-9 _, the first no digit",
        ),
    ] = "penstock"
    create: bool = True
    batch: RequestBatch = RequestBatch(max_records=10_000, max_bytes=16 * 1024 * 1024)
    max_in_flight: Annotated[int, Field(ge=1, le=64)] = 2

    @override
    def about(self) -> str:
        return f"rows of {self.table} in PostgreSQL; each record exactly once"


class Postgres(TaskRequestSink):
    """Inserts rows; see the module's docstring."""

    config_class = PostgresSink
    _config: PostgresSink
    guarantee = Guarantee(
        Replay.EXACTLY_ONCE, "the record's position in the log is the table's primary key"
    )

    def __init__(self, config: PostgresSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._psycopg = needed("psycopg", extra="postgres")
        self._connection: Any = None
        self._merge = ""
        self._table = ".".join(f'"{name}"' for name in config.table.split("."))
        self.address = f"PostgreSQL, table {config.table}"

    @override
    def open(self) -> None:
        """Read the connection string; the server itself may come later.

        Raises:
            ConfigError: It is none. What it says is not shown: there is a password in it.
        """
        try:
            said = needed("psycopg.conninfo", extra="postgres").conninfo_to_dict(
                self._config.dsn.read()
            )
        except (OSError, self._psycopg.ProgrammingError) as error:
            reason = str(error) if isinstance(error, OSError) else "libpq cannot read it"
        else:
            ports = str(said.get("port") or "").split(",")
            if all(port.isdecimal() or not port for port in ports):
                return
            reason = "its port is no number"  # as where an @ of the password ends it
        raise WrongKeyError(
            f"sinks.{self.context.sink}.dsn: {reason}",
            fix="write it as postgresql://USER:PASSWORD@HOST:5432/DATABASE, and each of @ : / ? # %"
            " in the password percent-encoded (@ is %40)",
        )

    @override
    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @override
    def encode(self, row: Row) -> Item | Fault:
        value: bytes = row["value"] or b""
        record = record_of(row)
        stored = None if record is None or _has_nul(record, value) else value.decode()
        stream_id = self.context.stream_id(*position_of(row))
        described = describe(row, record or {}, stream_id)
        content = (*described, stored, value if stored is None else None)
        return Item(content, len(value) + _BYTES_BESIDE_VALUE)

    @override
    def place_of(self, row: Row) -> str | None:
        return row_key(self._config.table, row, self.context)

    @override
    def is_ready(self) -> bool:
        if self._refusal() is None:
            return True
        self.close()
        return False

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        if (refusal := self._refusal()) is not None:
            self.close()
            return refusal
        try:
            with self._in_time():
                self._insert(request)
        except self._psycopg.Error as error:
            if self._connection.closed or self._connection.broken:
                self.close()
            data_error = isinstance(error, self._psycopg.DataError)
            return classify_error(error.sqlstate, _first_line(error), data_error=data_error)
        return Success()

    def _refusal(self) -> DeliveryResult | None:
        """Why there is no connection, or no table for it."""
        try:
            said = self.connect()
        except self._psycopg.Error as error:
            if isinstance(error, self._psycopg.ProgrammingError) and error.sqlstate is None:
                return Paused("libpq cannot read the connection string")  # it would show secrets
            return refusal_of(error.sqlstate, str(error))
        except OSError as error:
            return Paused(f"a secret cannot be read: {_first_line(error)}")
        return Paused(said) if said else None

    def connect(self) -> str:
        """Connect if there is no connection; returns why the table cannot be used."""
        if self._connection is not None and not self._connection.closed:
            return ""
        timeout_s = self._config.timeout_s
        self._connection = self._psycopg.connect(
            self._config.dsn.read(),
            autocommit=True,
            prepare_threshold=None,  # a prepared statement would outlive its transaction
            client_encoding="UTF8",
            connect_timeout=max(round(timeout_s), 2),
            tcp_user_timeout=round(timeout_s * 1000),
            application_name=f"penstock {self.context.job}/{self.context.sink}",
        )
        table, name = self._table, self._config.table
        with self._in_time():
            found = self._connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
            if found == (None,):
                if not self._config.create:
                    return f"there is no table {name}"
                self._connection.execute(_make_table(table))
            key = {name for (name,) in self._connection.execute(_PRIMARY_KEY, (table,))}
        if not {*KEY} <= key <= {*KEY, "time"}:
            return f"the primary key of {name} must be {', '.join(KEY)}, and perhaps time"
        self._merge = _merge(table, key)
        return ""

    def _insert(self, request: Request) -> None:
        names = _quoted(_COPIED)
        limit_ms = round(self._config.timeout_s * 1000)
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute(
                f"SET LOCAL statement_timeout = {limit_ms};"  # noqa: S608 - names are checked
                f" CREATE TEMPORARY TABLE penstock_copy ON COMMIT DROP AS"
                f" SELECT {names} FROM {self._table} WITH NO DATA"
            )
            with cursor.copy(f"COPY penstock_copy ({names}) FROM STDIN") as copy:
                for item in request.items:
                    copy.write_row(item.content)
            cursor.execute(self._merge)
            there = len(request.items) - cursor.rowcount
        self.context.meter.count("already_there", there)

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Limit what the server takes for everything, also when it says nothing at all.

        A socket's own limit is for each read; one byte each few seconds would pass it.
        """
        with socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            timer = threading.Timer(2 * self._config.timeout_s, _end, (line,))
            timer.daemon = True
            timer.start()
            try:
                yield
            finally:
                timer.cancel()

    @override
    def show(self, request: Request) -> Preview:
        rows = (dict(zip(_COPIED, item.content, strict=True)) for item in request.items)
        lines = "\n".join(json.dumps(row, default=as_text, ensure_ascii=False) for row in rows)
        target = f"INSERT INTO {self._config.table} … ON CONFLICT DO NOTHING"
        return Preview(target, len(request.items), lines)


def _end(line: socket.socket) -> None:
    with suppress(OSError):  # closed already
        line.shutdown(socket.SHUT_RDWR)


def classify_error(state: str | None, text: str, *, data_error: bool = False) -> DeliveryResult:
    """Return the result for the rows of a failed transaction, none of which is stored.

    Args:
        state: SQLSTATE; None where the server said nothing.
        text: The error's message.
        data_error: Whether the client refused a value before it was sent.
    """
    reason = f"PostgreSQL {state or ''}: {text}".replace(" :", ":")
    fault = Fault(f"sql_{state or ('data' if data_error else 'none')}", reason)
    if state is None:
        return Rejected(fault) if data_error else Failed(fault, answered=False)
    if state.startswith(_BUSY):
        return Retryable(reason)
    if state.startswith(_PAUSED):
        return Paused(reason)
    if state.startswith(_UNFIT):
        return Rejected(fault)
    return Failed(fault, answered=not state.startswith(("57", "08")))


def refusal_of(state: str | None, text: str) -> DeliveryResult:
    """Return the result of a connection that could not be made.

    libpq has no SQLSTATE then. A server that answers says FATAL; else there is none.
    """
    reason = f"PostgreSQL: {(text.strip().splitlines() or ['no connection'])[0][:200]}"
    if state is not None:
        return Paused(reason) if state.startswith(_PAUSED) else Retryable(reason)
    answered = "FATAL:" in text or "no password" in text
    if not answered or any(passing in text for passing in _PASSING):
        return Retryable(reason)
    return Paused(reason)


def _make_table(name: str) -> str:
    columns = ", ".join(f'"{column}" {kind}' for column, kind in COLUMNS.items())
    return f"CREATE TABLE IF NOT EXISTS {name} ({columns}, PRIMARY KEY ({_quoted(KEY)}))"


def _merge(table: str, key: set[str]) -> str:
    """Return the statement that skips repeats; another unique index of the table still refuses."""
    names = _quoted(_COPIED)
    return (
        f'INSERT INTO {table} ({names}, "time") SELECT {names}, {_TIME} FROM penstock_copy'  # noqa: S608 - names are checked
        f" ON CONFLICT ({_quoted(sorted(key))}) DO NOTHING"
    )


def _quoted(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _has_nul(record: Json, value: bytes) -> bool:
    """Return whether a string of the record has U+0000, which JSON allows and `jsonb` does not."""
    return b"\\u0000" in value and _nul_in(record)


def _nul_in(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(map(_nul_in, value)) or any(map(_nul_in, value.values()))
    return isinstance(value, list) and any(map(_nul_in, value))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
