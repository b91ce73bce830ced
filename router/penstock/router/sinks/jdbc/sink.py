"""The JDBC sink: rows in one table of any database that has a JDBC driver, each exactly once.

A request is one transaction of INSERTs. The table's primary key is the record's position in the
log: where it refuses a row, the transaction is undone, the table asked which of the rows it has,
and the others are inserted. So what comes again, in whatever pieces and however late, is not there
twice, and a connection that breaks while a transaction ends is no question either. All of it is SQL
that every database has.

The table is made at the first connection unless `create: false`. Its columns are those of the sink
`postgres`; `record` is the record's JSON, as it came, in a column for text. A row that is no record
is in `raw`. Which types the columns have depends on the database; `column_types` says others.

Drivers run in their own process, see `jdbc_process`. What an error means is known by SQLSTATE
(ISO/IEC 9075, table 38), which databases extend, and by JDBC's categories of errors.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from typing_extensions import override

from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Fault,
    Paused,
    Rejected,
    Retryable,
    Success,
)
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.sinks.http.encode import ABOUT, KEY, describe, position_of, record_of, row_key
from penstock.router.sinks.http.request_sink import Item, Request, RequestSink, Row
from penstock.router.sinks.http.settings import HIDDEN, RequestBatch, RequestSettings
from penstock.router.sinks.jdbc.client import JdbcProcess, ProcessEndedError
from penstock.router.sinks.sink import Guarantee, Preview, Replay, SinkContext
from penstock.service.config_types import Secret

_STANDARD: Final[Mapping[str, str]] = {
    "stream": "VARCHAR(255) NOT NULL",
    "incarnation": "VARCHAR(64) NOT NULL",
    "partition": "INTEGER NOT NULL",
    "offset": "BIGINT NOT NULL",
    "time": "TIMESTAMP NOT NULL",
    "time_unix_nano": "BIGINT NOT NULL",
    "kind": "VARCHAR(64) NOT NULL",
    "service": "VARCHAR(1024)",
    "severity_number": "SMALLINT",
    "trace_id": "VARCHAR(255)",
    "record": "CLOB",
    "raw": "BLOB",
}
_EXACT: Final = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"  # names in any case are others
_MYSQL: Final = {
    "stream": f"VARCHAR(255) {_EXACT} NOT NULL",
    "incarnation": f"VARCHAR(64) {_EXACT} NOT NULL",
    "time": "DATETIME(6) NOT NULL",
    "kind": f"VARCHAR(64) {_EXACT} NOT NULL",
    "service": f"VARCHAR(1024) {_EXACT}",
    "trace_id": f"VARCHAR(255) {_EXACT}",
    "record": f"LONGTEXT {_EXACT}",
    "raw": "LONGBLOB",
}
_OF_PRODUCT: Final[Mapping[str, Mapping[str, str]]] = {
    "MariaDB": _MYSQL,
    "MySQL": _MYSQL,
    "PostgreSQL": {
        "time": "TIMESTAMPTZ NOT NULL", "service": "TEXT", "record": "TEXT", "raw": "BYTEA",
    },
}  # fmt: skip

_COLUMNS: Final = (*ABOUT, "record", "raw", "time")
_KINDS: Final[Mapping[str, str]] = {
    "partition": "int", "offset": "long", "time_unix_nano": "long", "severity_number": "int",
    "raw": "bytes", "time": "time",
}  # fmt: skip
"""Types in which the driver gets values; all others are text."""

_TIME_AT: Final = ABOUT.index("time_unix_nano")
_RECORD_AT: Final = len(ABOUT)
_BYTES_BESIDE_VALUE: Final = 200
_HEAP_MIN: Final = 128 * 1024 * 1024
_HEAP_OF_BATCH: Final = 12
"""Bytes of the heap for a byte of a batch: its text, what it is parsed to, the driver's own."""

_STATES: Final = {
    "passing": ("40", "53", "55P03", "57P01", "57P03", "HYT"),
    "statement": ("0A", "23502", "25", "28", "3D", "3F", "42", "55", "57P04"),
    "data": ("21", "22", "23", "44", "54", "P0001"),
}
"""Classes of SQLSTATE, and whole codes, that say more than the driver's category; in this order."""

_SECRET_IN_URL: Final = re.compile(
    r"(?i)(?:password|passwd|pwd|passphrase|secret|token)\w*=([^;&?,\s]+)|//[^/@:]*:([^/@]+)@|/([^/@:]+)@"
)
"""Pattern of secrets: key=VALUE, //user:PASSWORD@host and Oracle's user/PASSWORD@host."""

_REASON_MAX: Final = 300
_NAME: Final = "[A-Za-z_][A-Za-z0-9_$]{0,127}"


class _RefusedError(Exception):
    """The database, or its driver, refused what it was asked."""

    def __init__(self, verdict: DeliveryResult) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


class JdbcSink(RequestSettings):
    """Rows in a table of a database with a JDBC driver."""

    type: Literal["jdbc"]
    url: Secret
    jars: Annotated[tuple[Path, ...], Field(min_length=1)]
    driver: Annotated[str, Field(pattern=r"^[\w.$]+$")] | None = None
    user: str | None = None
    password: Secret | None = None
    properties: dict[str, Secret] = Field(default_factory=dict)
    table: Annotated[str, Field(pattern=rf"^{_NAME}(\.{_NAME})?$")] = "penstock"
    create: bool = True
    column_types: dict[str, str] = Field(default_factory=dict)
    batch: RequestBatch = RequestBatch(max_records=10_000, max_bytes=8 * 1024 * 1024)

    @override
    def about(self) -> str:
        return f"rows of {self.table} by JDBC; each record exactly once"


class Jdbc(RequestSink):
    """Inserts rows; see the module's docstring."""

    config_class = JdbcSink
    guarantee = Guarantee(
        Replay.EXACTLY_ONCE, "the record's position in the log is the table's primary key"
    )

    def __init__(self, config: JdbcSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._config = config
        self._process: JdbcProcess | None = None
        self._is_connected = False
        self._secrets: list[str] = []
        self._statements: dict[str, Any] = {}
        self.address = f"JDBC, table {config.table}"

    @override
    def open(self) -> None:
        """Look for the files and read what is given; the database itself may come later.

        Raises:
            ConfigError: There is no such jar, the URL is none of JDBC, or a column is not the
                sink's.
        """
        where = f"sinks.{self.context.sink}"
        for jar in self._config.jars:
            if not jar.is_file():
                raise WrongKeyError(
                    f"{where}.jars: {jar}: there is no such file",
                    fix="name the jars of the database's JDBC driver, as its maker has them",
                )
        strange = sorted({*self._config.column_types} - {*_STANDARD})
        if strange:
            raise WrongKeyError(
                f"{where}.column_types: {', '.join(strange)}: no column of the sink",
                fix=f"these are: {', '.join(_STANDARD)}",
            )
        try:
            url = self._config.url.read()
        except OSError as error:
            raise WrongKeyError(
                f"{where}.url: {error}", fix="name a file that this user may read"
            ) from None
        if not url.startswith("jdbc:"):
            raise WrongKeyError(
                f"{where}.url: it does not begin with jdbc:",
                fix="write it as the driver wants it, like jdbc:postgresql://HOST:5432/DATABASE",
            )

    @override
    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
        self._is_connected = False

    @override
    def encode(self, row: Row) -> Item | Fault:
        value: bytes = row["value"] or b""
        record = record_of(row)
        stream_id = self.context.stream_id(*position_of(row))
        described = describe(row, record or {}, stream_id)
        is_text = record is not None
        content = (
            *described,
            value.decode() if is_text else None,
            None if is_text else base64.b64encode(value).decode(),
            described[_TIME_AT],
        )
        return Item(content, len(value) + _BYTES_BESIDE_VALUE)

    @override
    def place_of(self, row: Row) -> str | None:
        return row_key(self._config.table, row, self.context)

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        rows = [item.content for item in request.items]
        try:
            self.connect()
            answer = self._told({"ask": "insert", "rows": rows, **self._statements})
        except _RefusedError as refused:
            self._is_connected = isinstance(refused.verdict, Rejected)
            return refused.verdict
        except ProcessEndedError as error:
            self.close()
            return Failed(Fault("jdbc_silent", f"JDBC: {self._shown(str(error))}"), answered=False)
        except OSError as error:
            return Paused(f"a secret cannot be read: {self._shown(str(error))}")
        self.context.meter.count("already_there", answer["there"])
        return Success()

    def connect(self) -> None:
        """Have a connection, and a table for it.

        Raises:
            _RefusedError: It cannot be.
            ProcessEndedError: There was no answer.
            OSError: A secret cannot be read.
        """
        if self._is_connected and self._process is not None and not self._process.ended:
            return
        try:
            self._statements = self._table()
        except _RefusedError as refused:
            raise _RefusedError(_without_rows(refused.verdict)) from None
        self._is_connected = True

    def _table(self) -> dict[str, Any]:
        """Connect, and see to the table; returns the statements for it."""
        about = self._told(self._connecting())
        name, quote = self._config.table, about["quote"]
        parts = name.split(".")
        table = ".".join(_quoted([part], quote) for part in parts)
        found = self._told({"ask": "key", "table": parts})
        if not found["exists"]:
            if not self._config.create:
                raise _RefusedError(Paused(f"there is no table {name}"))
            sql = self._make_table(table, about["product"], quote)
            self._told({"ask": "execute", "sql": sql}, f"making the table {name}: ")
            found = self._told({"ask": "key", "table": parts})
        if not {*KEY} <= {*found["key"]} <= {*KEY, "time"}:
            needed = ", ".join(KEY)
            raise _RefusedError(
                Paused(f"the primary key of {name} must be {needed}, and perhaps time")
            )
        return _statements(table, quote)

    def _connecting(self) -> dict[str, Any]:
        config = self._config
        url = config.url.read()
        properties = {name: it.read() for name, it in config.properties.items()}
        if config.user is not None:
            properties["user"] = config.user
        if config.password is not None:
            properties["password"] = config.password.read()
        hidden = {name: it for name, it in properties.items() if name != "user"}
        self._secrets = [url, *secrets_in(url), *filter(None, hidden.values())]
        return {
            "ask": "connect",
            "url": url,
            "driver": config.driver,
            "properties": properties,
            "limit_s": max(round(config.timeout_s), 1),
        }

    def _told(self, question: Mapping[str, Any], doing: str = "") -> dict[str, Any]:
        """The answer.

        Args:
            question: Question to the process.
            doing: Description of the attempt, for people.
        """
        if self._process is None or self._process.ended:
            self.close()
            self._process = JdbcProcess(
                self._config.jars,
                self.context.state_dir / "jdbc",
                heap_bytes=_HEAP_MIN + _HEAP_OF_BATCH * self._config.batch.max_bytes,
            )
        answer = self._process.ask(question, 2 * self._config.timeout_s)
        if "error" in answer:
            text = doing + self._shown(str(answer["error"]))
            state, kind = answer.get("state"), answer.get("kind", "other")
            raise _RefusedError(classify_error(state, kind, text))
        return answer

    def _make_table(self, table: str, product: str, quote: str) -> str:
        types = {**_STANDARD, **_OF_PRODUCT.get(product, {}), **self._config.column_types}
        columns = ", ".join(f"{_quoted([name], quote)} {types[name]}" for name in _STANDARD)
        return f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({_quoted(KEY, quote)}))"

    def _shown(self, text: str) -> str:
        """Return a driver's message on one line and without the secrets that it quotes."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return " ".join(text.split())[:_REASON_MAX]

    @override
    def show(self, request: Request) -> Preview:
        rows = (dict(zip(_COLUMNS, item.content, strict=True)) for item in request.items)
        lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        return Preview(f"INSERT INTO {self._config.table}", len(request.items), lines)


def secrets_in(url: str) -> list[str]:
    """Return the secrets in a URL; drivers quote parts of it in their errors."""
    return [next(filter(None, found)) for found in _SECRET_IN_URL.findall(url)]


def classify_error(state: str | None, kind: str, text: str) -> DeliveryResult:
    """Return the result for the rows of a failed transaction, none of which is stored.

    Args:
        state: SQLSTATE; None where the driver has none.
        kind: The category of the driver's exception, as `Jdbc.java` names it.
        text: The error's message.
    """
    reason = f"JDBC {state or ''}: {text}".replace(" :", ":")
    fault = Fault(f"sql_{state or kind}", reason)
    known = state or ""
    match next((it for it, states in _STATES.items() if known.startswith(states)), kind):
        case "data" | "constraint":
            return Rejected(fault)
        case "statement" | "login":
            return Paused(reason)
        case "passing":
            return Retryable(reason)
        case _:
            return Failed(fault, answered=not known.startswith(("08", "57")))


def _without_rows(verdict: DeliveryResult) -> DeliveryResult:
    """Return the result of a failed call that sent no rows, so that none is to blame."""
    match verdict:
        case Rejected(fault):
            return Paused(fault.reason)
        case Failed(fault):
            return Retryable(fault.reason)
        case _:
            return verdict


def _statements(table: str, quote: str) -> dict[str, Any]:
    columns = _quoted(_COLUMNS, quote)
    marks = ", ".join("?" for _ in _COLUMNS)
    *place, offset = (_quoted([name], quote) for name in KEY)
    same = " AND ".join(f"{name} = ?" for name in place)
    return {
        "sql": f"INSERT INTO {table} ({columns}) VALUES ({marks})",  # noqa: S608 - names are checked
        "look": f"SELECT {offset} FROM {table} WHERE {same} AND {offset} BETWEEN ? AND ?",  # noqa: S608 - names are checked
        "kinds": " ".join(_KINDS.get(name, "text") for name in _COLUMNS),
        "offset_at": KEY.index("offset"),
    }


def _quoted(names: Sequence[str], quote: str) -> str:
    return ", ".join(f"{quote}{name}{quote}" for name in names)
