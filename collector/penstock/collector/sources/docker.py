r"""Lines of container logs: what Docker's json-file driver and CRI runtimes write around each.

    docker   {"log":"text\n","stream":"stdout","time":"2026-01-02T03:04:05.123456789Z"}
             and "attrs":{"tag":"web"}, where its options `labels`, `env` or `tag` are set
    cri      2026-01-02T03:04:05.123456789Z stdout F text

Both cut long lines: a piece of Docker's lacks the newline at its end, one of CRI's has the tag P
instead of F. The pieces of one line follow one another within their stream only.

Lines that Docker's `fluentd` driver cut, made whole where all of their pieces are there.

Docker cuts a line after 16 KiB. Each piece is a record with its text in `log`, and with:

    partial_message  "true"
    partial_id       the same for all pieces of a line
    partial_ordinal  1, 2, ...
    partial_last     "true" of the last, else "false"

Pieces are joined within one received unit and nowhere else, so whoever reads the unit again gets
the same records: what was acknowledged is whole in the spool, and nothing waits for what may never
come. The line stands where its last piece does. Pieces of which one is missing, is there twice, or
which together are more than a record's body may have, stay as they are.

`Gathering` holds back what comes without acks until a line's last piece is there, so that all are
in one unit. What awaits an ack cannot wait: its sender may send nothing before that.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import orjson

from penstock.collector.decode.timestamps import iso_time_ns
from penstock.specs.limits import STRING_CHARACTERS_MAX

_CRI: Final = re.compile(rb"([0-9][0-9T:.+Z-]{18,35}) (stdout|stderr) ([^ ]+) ?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LineFragment:
    """A line, or a part of one.

    Attributes:
        stream: ``stdout``, ``stderr``, or empty.
        time_ns: When it was written; None when the line does not say.
        is_partial: The line goes on in the next piece of its stream.
        attributes: What the runtime was told to add: Docker's labels, variables and tag.
    """

    text: bytes
    stream: str = ""
    time_ns: int | None = None
    is_partial: bool = False
    attributes: Mapping[str, str] | None = None


ReadFragment = Callable[[bytes], LineFragment | None]
"""Read a line of a file; None when it is not of the format."""


def read_plain(line: bytes) -> LineFragment:
    """A line that is nothing else."""
    return LineFragment(line)


def read_docker(line: bytes) -> LineFragment | None:
    """A line of the json-file driver; an empty `log` is left out by it."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict) or "time" not in fields:
        return None
    text, stream, time = fields.get("log", "\n"), fields.get("stream", ""), fields["time"]
    if not (isinstance(text, str) and isinstance(stream, str) and isinstance(time, str)):
        return None
    raw = text.encode()
    return LineFragment(
        raw.removesuffix(b"\n").removesuffix(b"\r"),
        stream,
        iso_time_ns(time),
        is_partial=not raw.endswith(b"\n"),
        attributes=_attributes(fields.get("attrs")),
    )


def _attributes(attrs: object) -> dict[str, str] | None:
    """Docker writes texts alone; anything else is kept as the text that it is written as."""
    if not isinstance(attrs, dict) or not attrs:
        return None
    return {
        f"docker.attrs.{name}": value if isinstance(value, str) else orjson.dumps(value).decode()
        for name, value in attrs.items()
    }


def read_cri(line: bytes) -> LineFragment | None:
    """A line of a CRI runtime."""
    head = _CRI.match(line)
    if head is None:
        return None
    tag = head[3].partition(b":")[0]
    if tag not in (b"P", b"F"):
        return None
    return LineFragment(
        line[head.end() :],
        head[2].decode(),
        iso_time_ns(head[1].decode()),
        is_partial=tag == b"P",
    )


READERS: Final[Mapping[str, ReadFragment]] = {
    "plain": read_plain,
    "docker": read_docker,
    "cri": read_cri,
}
"""By the name of the format."""


_FIELDS: Final = ("partial_message", "partial_id", "partial_ordinal", "partial_last")
_TEXT: Final = "log"


class Fragment(NamedTuple):
    """What a record says of the line that it is a piece of."""

    line: str
    ordinal: int
    last: bool


class Record(Protocol):
    """An event."""

    @property
    def tag(self) -> str:
        """Of its sender."""

    @property
    def record(self) -> dict[Any, Any]:
        """Its fields."""


class Carrier(Protocol):
    """A message."""

    @property
    def raw(self) -> bytes:
        """Its bytes."""

    @property
    def chunk(self) -> bytes | str | None:
        """What is to be acknowledged."""

    @property
    def piece(self) -> Fragment | None:
        """When its only record is one."""


R = TypeVar("R", bound=Record)
C = TypeVar("C", bound=Carrier)


def fragment_of(record: object) -> Fragment | None:
    """What a record is a piece of; None when it is none."""
    if not isinstance(record, dict) or "partial_message" not in record:
        return None
    flag, line, ordinal, last = (record.get(name) for name in _FIELDS)
    if flag not in ("true", True) or last not in ("true", "false", True, False):
        return None
    if not isinstance(line, str) or not isinstance(record.get(_TEXT), str | bytes):
        return None
    try:
        return Fragment(line, int(str(ordinal)), last in ("true", True))
    except ValueError:
        return None


def join_fragments(events: Iterable[tuple[int, R]]) -> dict[int, tuple[R, dict[Any, Any]] | None]:
    """Whole lines in place of their pieces.

    Args:
        events: Of one unit, in order, with their indexes.

    Returns:
        By the index of a last piece, the first one and the record of the line; None for the others.
    """
    made: dict[int, tuple[R, dict[Any, Any]] | None] = {}
    growing: dict[tuple[str, str], list[tuple[int, Fragment, R]]] = {}
    for index, event in events:
        piece = fragment_of(event.record)
        if piece is None:
            continue
        pieces = growing.setdefault((event.tag, piece.line), [])
        pieces.append((index, piece, event))
        if piece.last:
            del growing[event.tag, piece.line]
            record = _whole([(piece, event.record) for _, piece, event in pieces])
            if record is not None:
                made.update((at, None) for at, _, _ in pieces)
                made[index] = pieces[0][2], record
    return made


def _whole(pieces: list[tuple[Fragment, dict[Any, Any]]]) -> dict[Any, Any] | None:
    """The record of a line; None when it cannot be made."""
    if [piece.ordinal for piece, _ in pieces] != [*range(1, len(pieces) + 1)]:
        return None
    data = b"".join(_bytes(record[_TEXT]) for _, record in pieces)
    text = data.decode("utf-8", "surrogateescape")  # a cut may have been within a character
    if len(text) > STRING_CHARACTERS_MAX:
        return None
    first = pieces[0][1]
    return {key: value for key, value in first.items() if key not in _FIELDS} | {_TEXT: text}


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


@dataclass(slots=True)
class Gathering(Generic[C]):
    """Messages of one connection that wait until the lines cut in them are whole, in order.

    Args:
        bytes_max: Of what waits; with more, nothing waits any longer.
        wait_s: How long the first of them waits at most.

    Attributes:
        size: Bytes that wait.
        until_s: When they have waited long enough.
    """

    bytes_max: int
    wait_s: float
    size: int = 0
    until_s: float = 0.0
    _waiting: list[C] = field(default_factory=list)
    _open: set[str] = field(default_factory=set)

    def add(self, messages: list[C], now_s: float) -> list[C]:
        """Messages came; returns what waits no longer, in order."""
        if messages and not self._waiting:
            self.until_s = now_s + self.wait_s
        self._waiting += messages
        for message in messages:
            self.size += len(message.raw)
            if message.chunk is not None:
                self._open.clear()  # it must be acknowledged soon, and all before it be taken
            elif message.piece is not None:
                change = self._open.discard if message.piece.last else self._open.add
                change(message.piece.line)
        if self._open and self.size <= self.bytes_max and now_s < self.until_s:
            return []
        return self.flush()

    def flush(self) -> list[C]:
        """All that waits."""
        waiting, self._waiting, self.size = self._waiting, [], 0
        self._open.clear()
        return waiting
