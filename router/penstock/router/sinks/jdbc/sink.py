"""The JDBC sink: rows in one table of any database that has a JDBC driver, each exactly once.

    tasks of Spark      records ─▶ rows of the table
    driver              rows of a request ─▶ Spark's writer ─▶ staging table
                        staging table ─▶ one INSERT … SELECT … WHERE NOT EXISTS ─▶ table

The table's primary key is the record's position in the log. So what comes again, in whatever pieces
and however late, is not there twice, and a connection that breaks while a transaction ends is no
question either. The staging table has no key: Spark may run a task again that has inserted its
rows. The transaction that fills the table counts what is staged, and where these are not the rows
of the request they are staged again. All of it is SQL that every database has.

A row that the table refuses is found by halves, for which only the statement is run again. A row
that the staging table refuses, which has the table's types, is found by halves that are staged.

The staging table is of one process: its name ends in random letters. One that a crash left is
removed when the sink connects for the first time; nothing of it is used.

The table is made at the first connection unless `create: false`. Its columns are those of the sink
`postgres`; `record` is the record's JSON, as it came, in a column for text. A row that is no record
is in `raw`. Which types the columns have depends on the database; `column_types` says others.

What an error means is known by SQLSTATE (ISO/IEC 9075, table 38), which databases extend, and by
JDBC's categories of errors.
"""

import json
import re
import secrets
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from py4j.protocol import Py4JError
from pydantic import Field
from pyspark.sql import SparkSession
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
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.sinks.http.encode import ABOUT, KEY, describe, position_of, record_of, row_key
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import HIDDEN, RequestBatch, TaskRequestSettings
from penstock.router.sinks.http.task_sink import TaskRequestSink
from penstock.router.sinks.jdbc.client import (
    Address,
    Database,
    DatabaseError,
    NoAnswerError,
    drivers_in,
)
from penstock.router.sinks.sink import Guarantee, Preview, Replay, SinkContext
from penstock.service.config_types import Form, Secret

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

_SCHEMA: Final = pa.schema(
    [
        ("stream", pa.string()),
        ("incarnation", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("time_unix_nano", pa.int64()),
        ("kind", pa.string()),
        ("service", pa.string()),
        ("severity_number", pa.int32()),
        ("trace_id", pa.string()),
        ("record", pa.string()),
        ("raw", pa.binary()),
        ("time", pa.timestamp("us", tz="UTC")),
    ]
)
"""Columns in the order of an item's content, with the types in which the driver gets values."""

assert tuple(_SCHEMA.names[: len(ABOUT)]) == ABOUT, "`describe` makes the first ones"

_TIME_AT: Final = ABOUT.index("time_unix_nano")
_BYTES_BESIDE_VALUE: Final = 200

_EMPTY_COPIES: Final = (
    "CREATE TABLE {copy} AS (SELECT {columns} FROM {table}) WITH NO DATA",
    "CREATE TABLE {copy} AS SELECT {columns} FROM {table} WITH NO DATA",
    "CREATE TABLE {copy} AS SELECT {columns} FROM {table} WHERE 1 = 0",
    "SELECT {columns} INTO {copy} FROM {table} WHERE 1 = 0",
)
"""Statements that make an empty table with the types of another: the standard's (ISO/IEC 9075-2,
11.3), Derby's, that of MySQL, MariaDB and Oracle, and SQL Server's. The first one that the database
takes is it."""

_EMPTYING: Final = ("TRUNCATE TABLE {table}", "DELETE FROM {table}")
"""Statements that empty a table; the first one that the database takes is used."""

_STRICT_ABOUT_NULLS: Final = ("Apache Derby", "DB2")
"""Databases that refuse a NULL whose type is not the column's. Spark's writer has one for all
text, that of a CLOB; so rows without a value go there without the column."""

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


_log = structlog.get_logger()


class _RefusedError(Exception):
    """The database, or its driver, refused what it was asked."""

    def __init__(self, verdict: DeliveryResult) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


class JdbcSink(TaskRequestSettings):
    """Rows in a table of a database with a JDBC driver."""

    type: Literal["jdbc"]
    url: Secret
    jars: Annotated[tuple[Path, ...], Field(min_length=1)]
    driver: Annotated[str, Form(r"^[\w.$]+$", "a Java class: letters, digits, _ . $")] | None = None
    user: str | None = None
    password: Secret | None = None
    properties: dict[str, Secret] = Field(default_factory=dict)
    table: Annotated[
        str,
        Form(
            rf"^{_NAME}(\.{_NAME})?$",
            "TABLE or SCHEMA.TABLE, each 1 to 128 characters of A-Z a-z 0-9 _ $, the first a letter"
            " or _",
        ),
    ] = "penstock"
    create: bool = True
    column_types: dict[str, str] = Field(default_factory=dict)
    batch: RequestBatch = RequestBatch(max_records=10_000, max_bytes=8 * 1024 * 1024)

    @override
    def about(self) -> str:
        return f"rows of {self.table} by JDBC; each record exactly once"

    @override
    def spark_jars(self) -> tuple[Path, ...]:
        return self.jars


class Jdbc(TaskRequestSink):
    """Inserts rows; see the module's docstring."""

    config_class = JdbcSink
    _config: JdbcSink
    guarantee = Guarantee(
        Replay.EXACTLY_ONCE, "the record's position in the log is the table's primary key"
    )
    publishes_in_tasks: ClassVar[bool] = False
    sends_in_tasks: ClassVar[bool] = False

    def __init__(self, config: JdbcSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._database: Database | None = None
        self._table: _Table | None = None
        self._secrets: list[str] = []
        self._owner, self._name = _parts(config.table)
        digest = sha256(f"{context.job}/{context.sink}/{config.table}".encode()).hexdigest()[:12]
        self._staging_prefix = f"penstock_stage_{digest}_"
        self._staging = self._staging_prefix + secrets.token_hex(4)
        self._has_looked_for_left = False
        self._staged: tuple[_Position, ...] = ()
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
        database, table = self._database, self._table
        if database is not None and table is not None:
            try:
                with database.transaction():
                    database.execute(f"DROP TABLE {table.staging}")
            except (DatabaseError, NoAnswerError, Py4JError, OSError) as error:
                reason = self._shown(str(error))  # the next process of the sink removes it
                _log.warning("staging_table_left", table=self._staging, reason=reason)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database, self._table, self._staged = None, None, ()

    @override
    def encode(self, row: Row) -> Item | Fault:
        value: bytes = row["value"] or b""
        record = record_of(row)
        stream_id = self.context.stream_id(*position_of(row))
        described = describe(row, record or {}, stream_id)
        content = (
            *described,
            None if record is None else value.decode(),
            value if record is None else None,
            described[_TIME_AT] // 1000,
        )
        return Item(content, len(value) + _BYTES_BESIDE_VALUE)

    @override
    def place_of(self, row: Row) -> str | None:
        return row_key(self._config.table, row, self.context)

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        try:
            there = self._store(request)
        except _RefusedError as refused:
            if not isinstance(refused.verdict, Rejected):
                self._disconnect()
            return refused.verdict
        except NoAnswerError as error:
            self._disconnect()
            return Failed(Fault("jdbc_silent", f"JDBC: {self._shown(str(error))}"), answered=False)
        self.context.meter.count("already_there", there)
        return Success()

    def _store(self, request: Request) -> int:
        """Bring a request's rows into the table; returns how many were there.

        Raises:
            _RefusedError: They are not there.
            NoAnswerError: Nobody knows whether they are.
        """
        database, table = self.connect()
        positions = tuple(item.content[: len(KEY)] for item in request.items)
        if not _holds(self._staged, positions):
            self._stage(request, positions, database, table)
        offsets = f"{positions[0][-1]} AND {positions[-1][-1]}"
        seen = 0
        while True:
            try:
                return self._upsert(database, table, offsets, len(positions))
            except DatabaseError as error:
                refused = _RefusedError(self._verdict(error))
                if not isinstance(refused.verdict, Rejected):
                    raise refused from None
            # Who else writes the same rows at this time is found at the next turn; a refusal that
            # is not about rows that are there now is about something else.
            found = self._number(database, table.there.format(offsets=offsets))
            if found <= seen:
                staged = self._number(database, table.staged.format(offsets=offsets))
                self._require_staged(staged, len(positions))
                raise refused
            seen = found

    def _stage(
        self,
        request: Request,
        positions: "tuple[_Position, ...]",
        database: Database,
        table: "_Table",
    ) -> None:
        """Have the staging table hold the rows of a request, and no others."""
        self._staged = ()
        columns = zip(*(item.content for item in request.items), strict=True)
        arrays = [pa.array(it, field.type) for it, field in zip(columns, _SCHEMA, strict=True)]
        rows = pa.Table.from_arrays(arrays, schema=_SCHEMA)
        is_strict = database.product.startswith(_STRICT_ABOUT_NULLS)
        try:
            _first_taken(database, [it.format(table=table.staging) for it in _EMPTYING])
            for part in _without_nulls(rows) if is_strict else [rows]:
                database.append(part, table.staging)
        except DatabaseError as error:
            raise _RefusedError(self._verdict(error)) from None
        self._staged = positions

    def _upsert(self, database: Database, table: "_Table", offsets: str, count: int) -> int:
        """Insert what is staged and not in the table; returns how many rows that leaves out."""
        with database.transaction():
            inserted = database.execute(table.upsert.format(offsets=offsets))
            self._require_staged(database.number(table.staged.format(offsets=offsets)), count)
        return count - inserted

    def _require_staged(self, found: int, count: int) -> None:
        """Refuse what is staged if tasks of Spark ran twice, or somebody emptied the table."""
        if found != count:
            self._staged = ()
            raise _RefusedError(
                Retryable(f"the staging table has {found} rows of a request of {count}")
            )

    def _number(self, database: Database, sql: str) -> int:
        try:
            with database.transaction():
                return database.number(sql)
        except DatabaseError as error:
            raise _RefusedError(self._verdict(error)) from None

    def connect(self) -> "tuple[Database, _Table]":
        """Have a connection, a table and a staging table.

        Raises:
            _RefusedError: There are none.
            NoAnswerError: The database does not answer.
        """
        if self._database is not None and self._table is not None:
            return self._database, self._table
        self._disconnect()
        try:
            self._database = database = Database(SparkSession.active(), self._address())
            self._table = self._made_table(database)
        except DatabaseError as error:
            raise _RefusedError(_without_rows(self._verdict(error))) from None
        return database, self._table

    def _address(self) -> Address:
        config = self._config
        try:
            url = config.url.read()
            properties = {name: it.read() for name, it in config.properties.items()}
            if config.password is not None:
                properties["password"] = config.password.read()
        except OSError as error:
            raise _RefusedError(Paused(f"a secret cannot be read: {error}")) from None
        if config.user is not None:
            properties["user"] = config.user
        hidden = {name: it for name, it in properties.items() if name != "user"}
        self._secrets = [url, *secrets_in(url), *filter(None, hidden.values())]
        try:
            drivers = (config.driver,) if config.driver else drivers_in(config.jars)
        except (OSError, zipfile.BadZipFile) as error:
            raise _RefusedError(Paused(f"a jar cannot be read: {error}")) from None
        return Address(
            url,
            drivers,
            properties,
            config.timeout_s,
            config.batch.max_records // config.max_in_flight,
        )

    def _made_table(self, database: Database) -> "_Table":
        """Have the table and an empty staging table."""
        config, owner, name = self._config, self._owner, self._name
        if not database.is_in_utc:
            raise _RefusedError(
                Paused(
                    "Spark's JVM is not in UTC, in which the driver has to write times; start it"
                    " with -Duser.timezone=UTC"
                )
            )
        quote = database.quote
        table = _quoted_name(owner, name, quote)
        with database.transaction():
            exists = database.has_table(name, owner)
        if not exists:
            if not config.create:
                raise _RefusedError(Paused(f"there is no table {config.table}"))
            self._create(database, table)
        with database.transaction():
            key = database.primary_key(name, owner)
        if not {*KEY} <= key <= {*KEY, "time"}:
            needed = ", ".join(KEY)
            raise _RefusedError(
                Paused(f"the primary key of {config.table} must be {needed}, and perhaps time")
            )
        self._remove_left(database)
        return self._make_staging(database, table)

    def _create(self, database: Database, table: str) -> None:
        types = {
            **_STANDARD, **_OF_PRODUCT.get(database.product, {}), **self._config.column_types,
        }  # fmt: skip
        quote = database.quote
        columns = ", ".join(f"{_quoted([name], quote)} {types[name]}" for name in _STANDARD)
        try:
            with database.transaction():
                database.execute(
                    f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({_quoted(KEY, quote)}))"
                )
        except DatabaseError as error:
            error.args = (f"making the table {self._config.table}: {error}",)
            raise

    def _remove_left(self, database: Database) -> None:
        """Remove staging tables that a process of the sink left, or only this one's own."""
        with database.transaction():
            pattern = self._staging if self._has_looked_for_left else self._staging_prefix
            left = [
                it for it in database.tables("penstock%", self._owner) if it.startswith(pattern)
            ]
        for name in left:
            with database.transaction():
                database.execute(f"DROP TABLE {_quoted_name(self._owner, name, database.quote)}")
        self._has_looked_for_left = True

    def _make_staging(self, database: Database, table: str) -> "_Table":
        quote = database.quote
        made = _Table.of(table, _quoted_name(self._owner, self._staging, quote), quote)
        columns = _quoted(_SCHEMA.names, quote)
        try:
            _first_taken(
                database,
                [
                    it.format(copy=made.staging, table=table, columns=columns)
                    for it in _EMPTY_COPIES
                ],
            )
        except DatabaseError as error:
            error.args = (f"making the staging table {self._staging}: {error}",)
            raise
        return made

    def _verdict(self, error: DatabaseError) -> DeliveryResult:
        return classify_error(error.state, error.kind, self._shown(str(error)))

    def _shown(self, text: str) -> str:
        """Return a driver's message on one line and without the secrets that it quotes."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return " ".join(text.split())[:_REASON_MAX]

    @override
    def show(self, request: Request) -> Preview:
        rows = (dict(zip(_SCHEMA.names, item.content, strict=True)) for item in request.items)
        lines = "\n".join(json.dumps(row, default=as_text, ensure_ascii=False) for row in rows)
        return Preview(f"INSERT INTO {self._config.table}", len(request.items), lines)


_Position = tuple[str, str, int, int]
"""Values of the columns of `KEY`."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Statements for the table; `{offsets}` stands for the first offset AND the last.

    Attributes:
        staging: Name of the staging table, quoted.
        upsert: Inserts what is staged and not in the table.
        staged: Counts what is staged.
        there: Counts what is staged and in the table.
    """

    staging: str
    upsert: str
    staged: str
    there: str

    @classmethod
    def of(cls, table: str, staging: str, quote: str) -> "_Table":
        columns = _quoted(_SCHEMA.names, quote)
        same = " AND ".join(f"t.{_quoted([it], quote)} = s.{_quoted([it], quote)}" for it in KEY)
        exists = f"EXISTS (SELECT 1 FROM {table} t WHERE {same})"  # noqa: S608 - names are checked
        staged = f"FROM {staging} s WHERE s.{_quoted(['offset'], quote)} BETWEEN {{offsets}}"
        return cls(
            staging,
            f"INSERT INTO {table} ({columns}) SELECT {columns} {staged} AND NOT {exists}",
            f"SELECT COUNT(*) {staged}",
            f"SELECT COUNT(*) {staged} AND {exists}",
        )


def _holds(staged: Sequence[_Position], wanted: Sequence[_Position]) -> bool:
    """Return whether rows are staged one after the other: then their range of offsets is theirs."""
    if not staged or wanted[0] not in staged:
        return False
    begin = staged.index(wanted[0])
    return tuple(staged[begin : begin + len(wanted)]) == tuple(wanted)


def _first_taken(database: Database, statements: Sequence[str]) -> None:
    """Run the first of some statements that the database takes.

    Raises:
        DatabaseError: It takes none; this is what it said of the first.
    """
    refused: DatabaseError | None = None
    for sql in statements:
        try:
            with database.transaction():
                database.execute(sql)
        except DatabaseError as error:
            refused = refused or error
        else:
            return
    assert refused is not None, "there are statements"
    raise refused


def _without_nulls(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in parts that have no NULL: columns without a value are left out."""
    for at, name in enumerate(rows.column_names):
        is_null = pc.is_null(rows.column(name))
        missing = pc.sum(is_null).as_py()
        if missing == rows.num_rows:
            yield from _without_nulls(rows.remove_column(at))
            return
        if missing:
            yield from _without_nulls(rows.filter(is_null))
            yield from _without_nulls(rows.filter(pc.invert(is_null)))
            return
    yield rows


def _parts(table: str) -> tuple[str | None, str]:
    owner, _, name = table.rpartition(".")
    return owner or None, name


def _quoted_name(owner: str | None, name: str, quote: str) -> str:
    return ".".join(f"{quote}{it}{quote}" for it in (owner, name) if it is not None)


def secrets_in(url: str) -> list[str]:
    """Return the secrets in a URL; drivers quote parts of it in their errors."""
    return [next(filter(None, found)) for found in _SECRET_IN_URL.findall(url)]


def classify_error(state: str | None, kind: str, text: str) -> DeliveryResult:
    """Return the result for the rows of a failed transaction, none of which is stored.

    Args:
        state: SQLSTATE; None where the driver has none.
        kind: The category of the driver's exception, as `DatabaseError` has it.
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


def _quoted(names: Sequence[str], quote: str) -> str:
    return ", ".join(f"{quote}{name}{quote}" for name in names)
