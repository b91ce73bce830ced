"""Lines that Docker's `fluentd` driver cut, made whole where all of their fragments are there.

Docker cuts a line after 16 KiB. Each fragment is a record with its text in `log`, and with:

    partial_message  "true"
    partial_id       the same for all fragments of a line
    partial_ordinal  1, 2, ...
    partial_last     "true" of the last, else "false"

Fragments are joined within one received unit and nowhere else, so a unit that is read again gives
the same records: what was acknowledged is whole in the spool, and nothing waits for what may never
come. The line stands where its last fragment does. Fragments of which one is missing, is there
twice, or which together are more than a record's body may have, stay as they are.

`Gathering` holds back what comes without acks until a line's last fragment is there, so that all
are in one unit. What awaits an ack cannot wait: its sender may send nothing before that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.specs.limits import STRING_CHARACTERS_MAX

_FIELDS: Final = ("partial_message", "partial_id", "partial_ordinal", "partial_last")
_TEXT: Final = "log"


class Fragment(NamedTuple):
    """A record's account of the line that it is a fragment of."""

    line: str
    ordinal: int
    last: bool


class Record(Protocol):
    """An event."""

    @property
    def tag(self) -> str:
        """The tag that its sender gave it."""

    @property
    def record(self) -> dict[Any, Any]:
        """Fields of the fragment's record."""


class Carrier(Protocol):
    """A message."""

    @property
    def raw(self) -> bytes:
        """Bytes of the fragment."""

    @property
    def chunk(self) -> bytes | str | None:
        """The chunk to acknowledge."""

    @property
    def fragment(self) -> Fragment | None:
        """The fragment, where its only record is one."""


R = TypeVar("R", bound=Record)
C = TypeVar("C", bound=Carrier)


def fragment_of(record: object) -> Fragment | None:
    """Return what a record says of its fragment; None when it is none."""
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
    """Whole lines in place of their fragments.

    Args:
        events: The events of one unit, in order, with their indexes.

    Returns:
        By the index of a last fragment, the first one and the record of the line; None for the
        others.
    """
    made: dict[int, tuple[R, dict[Any, Any]] | None] = {}
    growing: dict[tuple[str, str], list[tuple[int, Fragment, R]]] = {}
    for index, event in events:
        fragment = fragment_of(event.record)
        if fragment is None:
            continue
        fragments = growing.setdefault((event.tag, fragment.line), [])
        fragments.append((index, fragment, event))
        if fragment.last:
            del growing[event.tag, fragment.line]
            record = _whole([(fragment, event.record) for _, fragment, event in fragments])
            if record is not None:
                made.update((at, None) for at, _, _ in fragments)
                made[index] = fragments[0][2], record
    return made


def _whole(fragments: list[tuple[Fragment, dict[Any, Any]]]) -> dict[Any, Any] | None:
    """The record of a line; None when it cannot be made."""
    if [fragment.ordinal for fragment, _ in fragments] != [*range(1, len(fragments) + 1)]:
        return None
    data = b"".join(_bytes(record[_TEXT]) for _, record in fragments)
    text = data.decode("utf-8", "surrogateescape")  # a cut may have been within a character
    if len(text) > STRING_CHARACTERS_MAX:
        return None
    first = fragments[0][1]
    return {key: value for key, value in first.items() if key not in _FIELDS} | {_TEXT: text}


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


@dataclass(slots=True)
class Gathering(Generic[C]):
    """Messages of one connection that wait until the lines cut in them are whole, in order.

    Args:
        bytes_max: Bound of what waits; with more, nothing waits any longer.
        wait_s: Maximum seconds that the first of them waits.

    Attributes:
        size: Bytes that wait.
        until_s: Time at which they have waited long enough.
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
            elif message.fragment is not None:
                change = self._open.discard if message.fragment.last else self._open.add
                change(message.fragment.line)
        if self._open and self.size <= self.bytes_max and now_s < self.until_s:
            return []
        return self.flush()

    def flush(self) -> list[C]:
        """Return all waiting messages, and empty the buffer."""
        waiting, self._waiting, self.size = self._waiting, [], 0
        self._open.clear()
        return waiting
