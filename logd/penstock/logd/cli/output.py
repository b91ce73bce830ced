r"""Output of commands: text for people, one JSON document for programs with `--json`.

Errors are on standard error with the same exit code either way; then no document says that it is
done.

Text that others wrote, shown on a terminal without being able to drive it.

Subjects, headers and payloads may hold anything: escape sequences that move the cursor or set the
clipboard, marks that turn the direction of writing round, characters that nobody sees. Whatever is
neither a letter nor a plain sign is written as an escape, `\x1b` for people and `\u001b` in JSON,
where it means the same to a program as before.

Records for people and for programs.

A payload that is a telemetry record of Penstock's (`Telemetry`) is shown by what it says; the log
itself looks into none.
"""

import base64
import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from uuid import UUID

import click
import orjson

from penstock.base.clock import Clock, SystemClock
from penstock.base.lazy_module import LazyModule
from penstock.base.pluralize import pluralize

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.logd.format.batch import Record
else:
    pa = LazyModule("pyarrow")  # only rows of a query and records are Arrow

# Controls (C0, DEL, C1), marks for directions and joins, unseen spaces, line and paragraph
# separators, tag characters, halves of pairs. \x9b alone begins a sequence, as ESC [.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(text: str) -> str:
    """Text on one line, that moves nothing on a terminal."""
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape, text)


def safe_bytes(value: bytes) -> str:
    r"""A payload as such text; bytes that are not UTF-8 are written as `\\xff`."""
    return safe(value.decode("utf-8", "backslashreplace"))


def safe_lines(text: str) -> str:
    """Text whose lines may stay lines."""
    return "\n".join(map(safe, text.split("\n")))


def safe_json(document: bytes) -> str:
    """JSON that moves nothing on a terminal, and means the same.

    Args:
        document: Encoded by orjson: what is a control to ASCII is escaped already.
    """
    text = document.decode()
    if text.isascii() and "\x7f" not in text:
        return text
    return "\n".join(_UNSAFE.sub(_escape_json, line) for line in text.split("\n"))


def echo_json(document: Any, *, indent: bool = False) -> None:
    """Print a document as JSON, on one line or on several."""
    options = orjson.OPT_INDENT_2 if indent else None
    click.echo(safe_json(orjson.dumps(document, option=options)))


def pretty_json(value: bytes) -> str | None:
    """A payload that is a JSON object or list, laid out for people; None: it is neither."""
    if value.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return safe_json(orjson.dumps(orjson.loads(value), option=orjson.OPT_INDENT_2))
    except (orjson.JSONDecodeError, TypeError, RecursionError):
        return None


def width_of(text: str) -> int:
    """Columns of a terminal that text takes: none for marks above letters, two for wide signs."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


def cut(text: str, columns: int) -> str:
    """Text that takes no more columns; an ellipsis says that there was more."""
    if width_of(text) <= columns:
        return text
    kept, room = "", columns - 1
    for sign in text:
        room -= _width(sign)
        if room < 0:
            break
        kept += sign
    return kept + "…"


def human_bytes(count: int) -> str:
    """A size for people: 1.5 GB."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def on_terminal() -> bool:
    """Return whether progress is shown on a terminal."""
    return sys.stderr.isatty()


def _width(sign: str) -> int:
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _escape(match: re.Match[str]) -> str:
    sign = match.group()
    code = ord(sign)
    if sign in _SHORT:
        return _SHORT[sign]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_json(match: re.Match[str]) -> str:
    sign = match.group()
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else json.dumps(sign)[1:-1]


Function = TypeVar("Function", bound=Callable[..., Any])


def json_option(text: str = "One JSON object.") -> Callable[[Function], Function]:
    """Add `--json`, which the command receives as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def check_form(form: str | None, *, as_json: bool) -> None:
    """Refuse `--json` beside a `--format` that is not JSON lines.

    Raises:
        click.UsageError: It is another.
    """
    if as_json and form not in (None, "ndjson"):
        raise click.UsageError(f"give either --json or --format {form}")


def tell(words: str, done: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what was done, on one line.

    Args:
        words: Text for people.
        done: Document for programs.
        as_json: Whether the output is for programs.
    """
    if as_json:
        echo_json(done)
    else:
        click.echo(safe(words))


_CELL_MAX: Final = 60
"""Columns of a terminal that one cell takes at most, in a row of several."""

_AS_TEXT: Final = (Decimal, UUID, timedelta, date, time)
"""Kinds of values that JSON has no form for."""

_NS: Final = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}


def text_row(batch: "pa.RecordBatch") -> Iterator[tuple[object, ...]]:
    """Rows of text and numbers."""
    alone = batch.num_columns == 1
    for row in _rows(batch):
        yield tuple(_cell(value, alone=alone) for value in row)


def json_row(batch: "pa.RecordBatch") -> Iterator[dict[str, Any]]:
    """Rows as objects; bytes that are not UTF-8 as base64, `_base64` behind the column's name."""
    names = batch.schema.names
    for row in _rows(batch):
        document: dict[str, Any] = {}
        for name, value in zip(names, row, strict=True):
            plain = _plain(value)
            if isinstance(value, bytes) and isinstance(plain, bytes):
                document[f"{name}_base64"] = base64.b64encode(plain).decode()
            else:
                document[name] = _without_bytes(plain)
        yield document


def _rows(batch: "pa.RecordBatch") -> Iterator[tuple[Any, ...]]:
    columns = [_values(column) for column in batch.columns]
    return zip(*columns, strict=True)


def _values(column: "pa.Array") -> list[Any]:
    """Python's values; nanoseconds, for which it has none, as text."""
    if pa.types.is_timestamp(column.type):
        scale, zone = _NS[column.type.unit], "Z" if column.type.tz else ""
        return [
            None if count is None else _moment(count * scale) + zone
            for count in column.cast(pa.int64()).to_pylist()
        ]
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    if pa.types.is_decimal(column.type) and column.type.scale == 0:  # a sum, of DuckDB's
        return [None if value is None else int(value) for value in column.to_pylist()]
    found: list[Any] = column.to_pylist()
    return found


def _moment(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 10**9)
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    try:
        moment = begin + timedelta(seconds=seconds)
    except OverflowError:
        return f"{time_ns} ns"
    return f"{moment:%Y-%m-%dT%H:%M:%S}" + (f".{rest:09d}".rstrip("0") if rest else "")


def _cell(value: Any, *, alone: bool) -> object:
    if isinstance(value, bool) or value is None:
        return {None: "NULL", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return value
    text = safe_bytes(value) if isinstance(value, bytes) else str(_plain(value))
    return text if alone else cut(text, _CELL_MAX)


def _plain(value: Any) -> Any:
    """A value that JSON has, but for bytes that are not UTF-8."""
    match value:
        case bytes():
            return _text(value)
        case dict():
            return {str(_without_bytes(_plain(key))): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            too_large = isinstance(value, int) and not -(1 << 63) <= value < 1 << 64
            return str(value) if too_large or isinstance(value, _AS_TEXT) else value


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _without_bytes(value: Any) -> Any:
    """Return the value with the bytes in its lists and maps decoded as Latin-1."""
    match value:
        case bytes():
            return value.decode("latin-1")
        case dict():
            return {key: _without_bytes(item) for key, item in value.items()}
        case list():
            return [_without_bytes(item) for item in value]
        case _:
            return value


_EVERY_NS: Final = 200_000_000


class Progress:
    """A bar on a terminal, moved a few times a second; of what is over sooner there is none.

    Args:
        label: Name of the work.
        total: Records there are to do; None: unknown.
        clock: Clock for the rate.
        shown: Whether there is a terminal; None: as it is.
    """

    def __init__(
        self,
        label: str,
        total: int | None = None,
        *,
        clock: Clock | None = None,
        shown: bool | None = None,
    ) -> None:
        self.records = 0
        self.bytes = 0
        self._label = label
        self._total = total
        self._clock = clock or SystemClock()
        self._shown = on_terminal() if shown is None else shown
        self._begun_ns = self._clock.monotonic_ns()
        self._printed_ns = self._begun_ns
        self._bar: Any = None

    def __enter__(self) -> Self:
        """Begun."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the bar's line."""
        self.hide()

    def hide(self) -> None:
        """Show no more: what comes next has the terminal."""
        self._shown = False
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None

    def advance(self, records: int, size_bytes: int = 0) -> None:
        self.records += records
        self.bytes += size_bytes
        now_ns = self._clock.monotonic_ns()
        if self._shown and now_ns - self._printed_ns >= _EVERY_NS:
            self._printed_ns = now_ns
            self._bar = self._bar or bar(self._label, self._total)
            show_at(self._bar, self.records, self.line())

    @property
    def seconds(self) -> float:
        """Since it began."""
        return (self._clock.monotonic_ns() - self._begun_ns) / 1e9

    def line(self) -> str:
        """Return the records so far and their rate."""
        words = [pluralize(self.records, "record", form=",")]
        if self.bytes:
            words.append(human_bytes(self.bytes))
        words.append(f"{self.records / max(self.seconds, 1e-9):,.0f} records/s")
        return ", ".join(words)


def bar(label: str, total: int | None) -> Any:
    """A bar of click's on standard error; without a total it only says what is done.

    It is moved by `show_at`, and ended by its `render_finish`.
    """
    return click.progressbar(
        count() if total is None else None,
        length=total,
        label=safe(label),
        file=sys.stderr,
        width=20,
        show_eta=False,
        item_show_func=lambda words: words,
    )


def show_at(shown: Any, done: int, words: str) -> None:
    """Move a bar to what is done, with words behind it."""
    shown.pos, shown.current_item = done, words
    shown.render_progress()


LEVELS: Final = {"trace": 1, "debug": 5, "info": 9, "warn": 13, "error": 17, "fatal": 21}
"""The least severity number of each, as OpenTelemetry has them."""
_KINDS: Final = frozenset({"log", "span", "metric", "event", "audit"})
_HIDDEN: Final = ("code.", "exception.stacktrace", "process.", "system.", "thread.")
"""Attributes that are on every record, or no line could hold; --pretty and --json show them."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The parts of a telemetry record that a line shows.

    Attributes:
        level: The severity's text; the kind, where a record has none.
        severity: The severity's number; None where it has none.
        subject: The message, in a few words.
        fields: Context and attributes.
    """

    level: str
    severity: int | None
    service: str
    subject: str
    fields: tuple[tuple[str, Any], ...]

    @classmethod
    def read(cls, payload: bytes | None) -> Self | None:
        """None for a payload that is something else."""
        if not payload or not payload.startswith(b"{"):
            return None
        try:
            found: Any = orjson.loads(payload)
        except ValueError:
            return None
        kind = found.get("kind")
        if not isinstance(kind, str) or kind not in _KINDS or "schema" not in found:
            return None
        failed = found.get("status_code") == "ERROR"
        severity = LEVELS["error"] if failed else found.get("severity_number")
        text = "ERROR" if failed else found.get("severity_text") or kind.upper()
        return cls(
            level=str(text),
            severity=severity if isinstance(severity, int) else None,
            service=str(_object(found, "resource").get("service.name", "-")),
            subject=_subject(kind, found),
            fields=tuple(_fields(found)),
        )

    def line(self) -> str:
        """Level, service, what happened, fields."""
        pairs = (f"{safe(name)}={_value(value)}" for name, value in self.fields)
        head = f"{safe(self.level):<5}  {safe(self.service)}  {safe(self.subject)}"
        return "  ".join(part for part in (head, " ".join(pairs)) if part)


def _object(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def _fields(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from _object(record, "context").items()
    attributes = _object(record, "attributes").items()
    yield from ((name, value) for name, value in attributes if not name.startswith(_HIDDEN))


def _subject(kind: str, record: Mapping[str, Any]) -> str:
    match kind:
        case "log":
            return str(record.get("body", ""))
        case "span":
            begin, end = record.get("time_unix_nano"), record.get("end_time_unix_nano")
            if not isinstance(begin, int) or not isinstance(end, int):
                return str(record.get("name", ""))
            return f"{record.get('name', '')} {(end - begin) / 1e6:.1f} ms"
        case "metric":
            value = record.get("value", record.get("sum", record.get("count")))
            return f"{record.get('name', '')} {value} {record.get('unit', '')}"
        case "audit":
            actor, target = _object(record, "actor"), _object(record, "target")
            return (
                f"{actor.get('type')}:{actor.get('id')} {record.get('action')}"
                f" {target.get('type')}:{target.get('id')} {record.get('outcome')}"
            )
        case _:
            return str(record.get("event_name", record["schema"]))


def _value(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable() and not set(' "=') & set(value):
        return safe(value)
    return safe_json(orjson.dumps(value))


def record_text(offset: int, record: "Record", partition: int | None = None) -> str:
    """A record on one line; its partition, if it is one of several."""
    place = offset if partition is None else f"{partition}/{offset}"
    return f"{place}  {line_text(record)}"


def line_text(record: "Record") -> str:
    """A record's time, and what it says: as telemetry, else its subject and payload."""
    time = time_text(record.timestamp_ns)
    if telemetry := Telemetry.read(record.value):
        return f"{time}  {telemetry.line()}"
    value = "(tombstone)" if record.value is None else safe_bytes(record.value)
    return f"{time}  {safe(record.subject)}  {value}"


def record_pretty(offset: int, record: "Record", partition: int | None = None) -> str:
    """A record with everything it has, a payload that is JSON laid out."""
    place = "" if partition is None else f"partition {partition}  "
    lines = [f"{place}offset {offset}  {time_text(record.timestamp_ns)}  {safe(record.subject)}"]
    if record.key is not None:
        lines.append(f"  key: {safe_bytes(record.key)}")
    lines += [f"  {safe(name)}: {safe_bytes(value)}" for name, value in record.headers]
    if record.value is None:
        lines.append("(tombstone)")
    elif record.value:
        lines.append(pretty_json(record.value) or safe_bytes(record.value))
    return "\n".join(lines) + "\n"


def record_json(offset: int, record: "Record", partition: int | None = None) -> str:
    """A record as a JSON object."""
    document: dict[str, Any] = {} if partition is None else {"partition": partition}
    document |= {
        "offset": offset,
        "timestamp_ns": record.timestamp_ns,
        "subject": record.subject,
    }
    for name, value in (("key", record.key), ("value", record.value)):
        document |= _json_bytes(name, value)
    if record.headers:
        document["headers"] = [[name, value.decode("latin-1")] for name, value in record.headers]
    if record.reply is not None:
        document["reply"] = record.reply
    return safe_json(orjson.dumps(document))


def time_text(timestamp_ns: int) -> str:
    """A timestamp for people, to the microsecond."""
    return f"{datetime.fromtimestamp(timestamp_ns / 1e9, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def _json_bytes(name: str, value: bytes | None) -> dict[str, str | None]:
    """Text as it is; what is not UTF-8 as base64 under another name."""
    if value is None:
        return {name: None} if name == "value" else {}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


_NOTHING: Final = ("-", "", "NULL")
_LAST_MIN: Final = 12
"""Columns that the last column keeps, however narrow the terminal is."""


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None: it is none, and nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None = None
) -> str:
    """Lay rows out in aligned columns; numbers to the right.

    Args:
        titles: Titles of the columns.
        rows: Rows of cells; other values than text are shown by `str`, unknown ones as "-".
        width: Columns of the terminal: the last column is cut to it. None: that of standard output.
    """
    lines = [[safe(str(cell)) for cell in row] for row in rows]
    widths = [
        max([width_of(title), *(width_of(line[column]) for line in lines)])
        for column, title in enumerate(titles)
    ]
    right = [_are_numbers([row[column] for row in rows]) for column in range(len(titles))]
    room = width or terminal_width()
    last = None if room is None else max(_LAST_MIN, room - sum(widths[:-1]) - 2 * len(widths) + 2)
    return "\n".join(_line(line, widths, right, last) for line in [list(titles), *lines])


def facts(known: Mapping[str, Any]) -> str:
    """Names and values, one to a line."""
    width = max(map(len, known), default=0)
    return "\n".join(
        f"{name.ljust(width)}  {'none' if value is None else safe(str(value))}"
        for name, value in known.items()
    )


def _line(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], last: int | None
) -> str:
    padded = []
    for number, cell in enumerate(cells):
        if number == len(cells) - 1 and last is not None:
            cell = cut(cell, last)  # noqa: PLW2901 - the last one is what gives way
        space = " " * (widths[number] - width_of(cell))
        padded.append(space + cell if right[number] else cell + space)
    return "  ".join(padded).rstrip()


def _are_numbers(cells: Sequence[object]) -> bool:
    known = [cell for cell in cells if cell not in _NOTHING]
    return bool(known) and all(isinstance(cell, int) for cell in known)
