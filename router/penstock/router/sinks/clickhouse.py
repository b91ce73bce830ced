"""The ClickHouse sink: rows of one table over HTTP, each record once for queries with FINAL.

    CREATE TABLE penstock (stream String, incarnation String, partition Int32, offset Int64, …)
    ENGINE = ReplacingMergeTree ORDER BY (stream, incarnation, partition, offset)

    POST URL/?query=INSERT INTO penstock (…) FORMAT JSONEachRow&insert_deduplication_token=…

ClickHouse has no unique key. The sorting key is the record's position in the log, so of rows that
came twice a merge leaves one, and `SELECT … FINAL` shows one before that. Besides, each request has
a token made of job, sink, stream, offsets and a digest of its rows: a server that has it among the
table's last ones (`non_replicated_deduplication_window`, or the window of replicated tables) stores
nothing; a replay has its own tokens. Tokens need ClickHouse 22.2; with `tokens: false` older
servers do.

The table is made where there is none, unless `create: false`. One of yours needs these columns and
a ReplacingMergeTree (replicated or not) whose sorting key has the four among what it is made of;
further columns need defaults. A user who may not create tables needs no `create: false` where the
table is there.

A Distributed table is taken as it is, and what stands above is for you to see to: the tables below
it are such ReplacingMergeTrees, its sharding key is made of the four columns and nothing else (a
record that comes again must come to the same shard, for FINAL looks at each by itself), and the
user's profile has `distributed_foreground_insert = 1` (`insert_distributed_sync` before 23.11), or
ClickHouse says that rows are there while they wait on one node for the others.

ClickHouse takes a request's rows or none. What it cannot read, and what a constraint of yours
refuses, is bisected and goes to the dead letters.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import quote, urlencode

import orjson
from typing_extensions import override

from penstock.router.delivery.classify import HttpResponse, Meaning
from penstock.router.delivery.classify import classify_response as usual_result
from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Fault,
    Paused,
    Rejected,
    Retryable,
    Success,
    TooLarge,
)
from penstock.router.sinks.http.client import HttpRequest
from penstock.router.sinks.http.encode import (
    KEY,
    position_of,
    record_of,
    row_key,
    section,
    time_ns,
    utf8,
)
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import HttpTaskSettings, RequestBatch
from penstock.router.sinks.http.task_sink import HttpTaskSink
from penstock.router.sinks.sink import Guarantee, Replay, SinkContext
from penstock.service.config_types import Form, Secret

COLUMNS: Final[Mapping[str, str]] = {
    "stream": "String",
    "incarnation": "String",
    "partition": "Int32",
    "offset": "Int64",
    "time_unix_nano": "Int64",
    "kind": "String",
    "service": "String",
    "severity_number": "Int16",
    "trace_id": "String",
    "record": "String",
    "raw_base64": "String",
}
_TIME: Final = "`time` DateTime DEFAULT toDateTime(intDiv(time_unix_nano, 1000000000))"
_WINDOW: Final = 1000
"""Tokens that a table of ours knows."""

_INT16_MAX: Final = 2**15 - 1
_CODE: Final = re.compile(rb"Code: (\d+)")
_TOO_MANY_PARTS: Final = 252
_OF_ONE_BLOCK: Final = b"single INSERT block"
_NAME: Final = r"[a-zA-Z_][a-zA-Z0-9_]{0,62}"

MEANINGS: Final[Mapping[int, Meaning]] = {
    **dict.fromkeys(
        (6, 26, 27, 33, 38, 41, 72, 117, 131, 321, 349, 395, 469, 691), Meaning.UNFIT
    ),
    36: Meaning.FAILED,
    307: Meaning.TOO_LARGE,
    **dict.fromkeys(
        (16, 46, 47, 48, 53, 60, 62, 81, 115, 164, 192, 193, 194, 195, 291, 392, 452, 497, 516),
        Meaning.PAUSED,
    ),
    **dict.fromkeys(
        (
            159, 160, 201, 202, 203, 209, 210, 241, 242, 243, 252, 285, 286, 319, 394, 425, 439,
            473, 999,
        ),
        Meaning.BUSY,
    ),
}  # fmt: skip
"""Meaning of ClickHouse's error numbers; other answers are classified by HTTP's status.

Unfit: values that cannot be parsed or do not fit, throwIf, a constraint (469). Failed: bad
arguments (36), said of a setting, and of a word that an Enum of yours does not have. Paused: no
such column, function, table, database or setting; syntax; read only; users and rights. Busy: time,
quota, memory, disk, parts to be merged, replicas, the connection between them.
"""


_OF_RECORDS: Final[Mapping[Meaning, type[Rejected | TooLarge | Failed]]] = {
    Meaning.UNFIT: Rejected,
    Meaning.TOO_LARGE: TooLarge,
    Meaning.FAILED: Failed,
}


class ClickHouseSink(HttpTaskSettings):
    """Rows in a table of ClickHouse."""

    type: Literal["clickhouse"]
    table: Annotated[
        str,
        Form(
            rf"^{_NAME}(\.{_NAME})?$",
            "TABLE or DATABASE.TABLE, each 1 to 63 characters of A-Z a-z 0-9 _, the first no digit",
        ),
    ] = "penstock"
    create: bool = True
    tokens: bool = True
    user: str = "default"
    password: Secret | None = None
    batch: RequestBatch = RequestBatch(max_records=50_000, max_bytes=16 * 1024 * 1024)

    @override
    def about(self) -> str:
        return f"rows of {self.table} in ClickHouse at {self.shown_url}; once for FINAL"


class ClickHouse(HttpTaskSink):
    """Inserts rows; see the module's docstring."""

    config_class = ClickHouseSink
    _config: ClickHouseSink
    guarantee = Guarantee(
        Replay.EFFECTIVELY_ONCE,
        "a ReplacingMergeTree is sorted by the record's position in the log; requests have tokens",
        within="queries with `FINAL`",
    )

    def __init__(self, config: ClickHouseSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._table = ".".join(f"`{name}`" for name in config.table.split("."))
        self._seen = False
        self._occasion = ""

    @override
    def start_over(self) -> None:
        """Change the deduplication token: the server may still know that of deleted rows."""
        self._occasion = f"-{self.context.clock.unix_ns()}"

    @override
    def encode(self, row: Row) -> Item | Fault:
        value: bytes = row["value"] or b""
        record = record_of(row) or {}
        text = utf8(value)
        content = {
            "stream": row["stream"],
            "incarnation": self.context.stream_id(*position_of(row)),
            "partition": row["partition"],
            "offset": row["offset"],
            "time_unix_nano": time_ns(row, record),
            "kind": row["kind"],
            "service": _text(section(record, "resource").get("service.name")),
            "severity_number": _small(record.get("severity_number")),
            "trace_id": _text(record.get("trace_id")),
            "record": text or "",
            "raw_base64": "" if text is not None else base64.b64encode(value).decode(),
        }
        line = orjson.dumps(content) + b"\n"
        return Item(line, len(line))

    @override
    def place_of(self, row: Row) -> str | None:
        return row_key(self._config.table, row, self.context)

    @override
    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        body = b"".join(item.content for item in request.items)
        names = ", ".join(f"`{name}`" for name in COLUMNS)
        asked = {"query": f"INSERT INTO {self._table} ({names}) FORMAT JSONEachRow"}
        if self._config.tokens:
            digest = hashlib.blake2b(body, digest_size=8).hexdigest()
            asked |= {
                "async_insert": "0",
                "insert_deduplicate": "1",
                "insert_deduplication_token": f"{request.key}-{digest}{self._occasion}",
            }
        return self._made(asked, body, self._config.compression)

    def _made(
        self, asked: Mapping[str, str], body: bytes = b"", compression: Any = "none"
    ) -> HttpRequest:
        secrets = self.own_headers() | {"X-ClickHouse-User": self._config.user}
        if self._config.password is not None:
            secrets["X-ClickHouse-Key"] = self._config.password.read()
        path = self.query(self.path(), urlencode(asked, quote_via=quote))
        headers = {"Content-Type": "application/octet-stream"}
        return HttpRequest(path, headers, body, compression, secrets=secrets)

    @override
    def is_ready(self) -> bool:
        try:
            return self._seen or self.see_to_table() is None
        except OSError:  # a secret cannot be read, which the first request is told
            return False

    @override
    def join_task(self, first: Self) -> None:
        self._seen = True

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        if not self._seen:
            try:
                refusal = self.see_to_table()
            except OSError as error:
                return Paused(f"a secret cannot be read: {error}")
            if refusal is not None:
                return refusal
        return super().exchange(request, attempt)

    def see_to_table(self) -> DeliveryResult | None:
        """Make the table where there is none, and look at it; returns why it cannot be used."""
        found = self._said(self._question())
        if found == [] and self._config.create:
            made = self._said(self.creation())
            found = self._said(self._question()) if isinstance(made, list) else made
        if not isinstance(found, list):
            return found
        if not found:
            return Paused(f"there is no table {self._config.table}")
        engine, _, key = found[0].partition("\t")
        names = set(re.findall(r"\w+", key))
        replaces = "ReplacingMergeTree" in engine and names >= {*KEY}
        if not replaces and engine != "Distributed":
            return Paused(
                f"{self._config.table} must be a ReplacingMergeTree ORDER BY ({', '.join(KEY)}),"
                f" not {engine} ORDER BY ({key})"
            )
        self._seen = True
        return None

    def _said(self, statement: str) -> list[str] | DeliveryResult:
        """The lines of an answer; or why there are none: whatever it is, no record's fault."""
        answer = self.fetch(self._made({}, statement.encode()))
        if answer is None or not isinstance(classify_response(answer), Success):
            return self._refusal(answer)
        return answer.body.decode(errors="replace").splitlines()

    def _refusal(self, answer: HttpResponse | None) -> DeliveryResult:
        """Why the table cannot be used."""
        if answer is None:
            return Retryable("no answer")
        verdict = classify_response(answer)
        if isinstance(verdict, Retryable | Paused):
            return verdict
        reason = answer.fault.reason
        later = isinstance(verdict, Failed) and code_of(answer) not in MEANINGS
        return Retryable(reason, answer.after_s) if later else Paused(reason, answer.after_s)

    def creation(self) -> str:
        """The statement that makes the table."""
        columns = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
        window = f" SETTINGS non_replicated_deduplication_window = {_WINDOW}"
        return (
            f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}, {_TIME})"
            f" ENGINE = ReplacingMergeTree ORDER BY ({', '.join(f'`{name}`' for name in KEY)})"
            f"{window if self._config.tokens else ''}"
        )

    def _question(self) -> str:
        database, _, table = self._config.table.rpartition(".")
        place = f"'{database}'" if database else "currentDatabase()"
        return (
            "SELECT engine, sorting_key FROM system.tables"  # noqa: S608 - names are checked
            f" WHERE database = {place} AND name = '{table}' FORMAT TSVRaw"
        )

    @override
    def classify_answer(self, answer: HttpResponse, request: Request) -> DeliveryResult:
        verdict = classify_response(answer)
        if isinstance(verdict, Paused):
            self._seen = False  # somebody may have changed the table
        return verdict


def code_of(answer: HttpResponse) -> int:
    """The number of ClickHouse's error; 0 where there is none."""
    named = answer.headers.get("x-clickhouse-exception-code", "")
    if named.isdecimal():
        return int(named)
    found = _CODE.match(answer.body)
    return int(found[1]) if found and answer.status != 200 else 0


def classify_response(answer: HttpResponse) -> DeliveryResult:
    """Return the result for a request's rows, of which all or none are stored."""
    code = code_of(answer)
    if not code and answer.status // 100 == 2:
        # ClickHouse says 200 and nothing else of rows that are there.
        other = Paused(f"not an answer of ClickHouse: {answer.fault.reason}")
        return Success() if answer.status == 200 else other
    meaning = MEANINGS.get(code)
    if code == _TOO_MANY_PARTS and _OF_ONE_BLOCK in answer.body:
        meaning = Meaning.TOO_LARGE  # it is for too many partitions of the table
    fault = Fault(f"clickhouse_{code}", answer.fault.reason, answer.status)
    match meaning:
        case None:
            return usual_result(answer)
        case Meaning.UNFIT | Meaning.TOO_LARGE | Meaning.FAILED:
            return _OF_RECORDS[meaning](fault)
        case Meaning.PAUSED:
            return Paused(fault.reason, answer.after_s)
        case _:
            return Retryable(fault.reason, answer.after_s)


def _small(value: Any) -> int:
    return value if type(value) is int and abs(value) <= _INT16_MAX else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
