"""Lines that Docker's `fluentd` driver cut, made whole where all of their pieces are there.

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

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.specs.limits import STRING_CHARACTERS_MAX

_FIELDS: Final = ("partial_message", "partial_id", "partial_ordinal", "partial_last")
_TEXT: Final = "log"


class Piece(NamedTuple):
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
    def piece(self) -> Piece | None:
        """When its only record is one."""


R = TypeVar("R", bound=Record)
C = TypeVar("C", bound=Carrier)


def piece_of(record: object) -> Piece | None:
    """What a record is a piece of; None when it is none."""
    if not isinstance(record, dict) or "partial_message" not in record:
        return None
    flag, line, ordinal, last = (record.get(name) for name in _FIELDS)
    if flag not in ("true", True) or last not in ("true", "false", True, False):
        return None
    if not isinstance(line, str) or not isinstance(record.get(_TEXT), str | bytes):
        return None
    try:
        return Piece(line, int(str(ordinal)), last in ("true", True))
    except ValueError:
        return None


def join_pieces(events: Iterable[tuple[int, R]]) -> dict[int, tuple[R, dict[Any, Any]] | None]:
    """Whole lines in place of their pieces.

    Args:
        events: Of one unit, in order, with their indexes.

    Returns:
        By the index of a last piece, the first one and the record of the line; None for the others.
    """
    made: dict[int, tuple[R, dict[Any, Any]] | None] = {}
    growing: dict[tuple[str, str], list[tuple[int, Piece, R]]] = {}
    for index, event in events:
        piece = piece_of(event.record)
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


def _whole(pieces: list[tuple[Piece, dict[Any, Any]]]) -> dict[Any, Any] | None:
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
