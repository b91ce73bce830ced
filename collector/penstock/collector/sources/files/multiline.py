"""Events of several lines: fragments that a runtime cut, and lines that belong together.

Each stream of a file is joined separately, in two steps: fragments to a line, lines to an event. A
line that begins an event ends the event before it, so an event waits for the next line or for
`flush`, unless a pattern tells its last line.

The sequence of an event is its end, the position after its last line, and the sequences of a file
must rise. So a complete event is held while an event of another stream may still end before it.
`start` is the position from which reading again meets everything that is held.

Reading again from there gives the same events, however the bytes arrive, because the content of the
file ends an event. Only `flush` depends on time. An event that it cut may come again together with
its rest, if the process dies before the delivery is known. `flush` may also end an event that has
not grown for long while other streams go on: a program may close one of its outputs in the middle
of a line, or write nothing more there, and the others must not wait for that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.collector.sources.files.boundaries import Boundaries
from penstock.collector.sources.files.container_lines import ReadFragment
from penstock.collector.sources.line_framing import Line

_OVERHEAD_BYTES: Final = 256
"""Bytes that holding a line costs besides its text, which may be empty."""


@dataclass(slots=True)
class _Growing:
    """An event, or a line, that may go on."""

    text: bytearray
    start: int
    end: int
    stream: str
    time_ns: int | None
    truncated: bool
    grew_ns: int
    continued: bool = False
    attributes: Mapping[str, str] | None = None
    state: str = ""

    def add(self, other: Line, text: bytes, now_ns: int, *, bytes_max: int) -> None:
        """Append; what is beyond the bound is left out and marked."""
        room = max(0, bytes_max - len(self.text))
        self.text += text[:room]
        self.end = other.end
        self.truncated |= other.truncated or len(text) > room
        self.grew_ns = now_ns

    def line(self) -> Line:
        return Line(
            bytes(self.text),
            self.end,
            self.truncated,
            self.time_ns,
            self.stream,
            self.continued,
            self.attributes,
        )


class Joiner:
    """Joins the lines of one file.

    Args:
        read: Reads what surrounds each line.
        boundaries: Rules of which lines belong to one event; None: each line is one.
        bytes_max: Bound of an event; the rest is left out.
        held_bytes_max: Bound of everything that waits; beyond it nothing is waited for.
    """

    def __init__(
        self,
        read: ReadFragment,
        boundaries: Boundaries | None,
        *,
        bytes_max: int,
        held_bytes_max: int,
    ) -> None:
        self._read = read
        self._boundaries = boundaries
        self._bytes_max = bytes_max
        self._held_bytes_max = held_bytes_max
        self._pieces: dict[str, _Growing] = {}
        self._events: dict[str, _Growing] = {}
        self._complete: list[_Growing] = []
        self.malformed = 0
        """Lines that are not of the format; each is an event as it stands."""

    @property
    def start(self) -> int | None:
        """Position at which the first held event begins; None when none is held."""
        return min((growing.start for growing in self._held()), default=None)

    def feed(self, start: int, lines: Iterable[Line], now_ns: int) -> tuple[int, list[Line]]:
        """Add lines that follow one another.

        Args:
            start: Position of the first of them.
            lines: The file's lines.
            now_ns: Time of the read.

        Returns:
            From where reading again meets all events returned, and the events.
        """
        from_ = self.start
        begin = start
        for line in lines:
            self._take(line, begin, now_ns)
            begin = line.end
        held_bytes = sum(len(growing.text) + _OVERHEAD_BYTES for growing in self._held())
        if held_bytes > self._held_bytes_max:
            self._end_all()
        return start if from_ is None else from_, self._release()

    def flush(self, grown_before_ns: int | None = None) -> tuple[int, list[Line]]:
        """Wait for nothing any more, or not for what did not grow since then.

        Returns:
            What `feed` does. Something must be held.
        """
        start = self.start
        assert start is not None
        self._end_all(grown_before_ns)
        return start, self._release()

    def _take(self, line: Line, begin: int, now_ns: int) -> None:
        piece = self._read(line.text)
        if piece is None:
            self.malformed += 1
            self._complete.append(
                _Growing(bytearray(line.text), begin, line.end, "", None, line.truncated, now_ns)
            )
            return
        growing = self._pieces.pop(piece.stream, None)
        if growing is None:
            growing = _Growing(
                bytearray(),
                begin,
                line.end,
                piece.stream,
                piece.time_ns,
                truncated=False,
                grew_ns=now_ns,
                continued=line.continued,
                attributes=piece.attributes,
            )
        growing.add(line, piece.text, now_ns, bytes_max=self._bytes_max)
        if piece.is_partial:
            self._pieces[piece.stream] = growing
        else:
            self._end_line(growing)

    def _end_line(self, line: _Growing) -> None:
        """A line is whole: it begins an event, or goes on with one."""
        if self._boundaries is None:
            self._complete.append(line)
            return
        text = bytes(line.text)
        event = self._events.get(line.stream)
        state = None if event is None else self._boundaries.follow(event.state, text)
        if event is None or state is None:
            if event is not None:
                self._complete.append(event)
            event = self._events[line.stream] = line
            event.state = self._boundaries.first(text)
        else:
            event.add(line.line(), b"\n" + text, line.grew_ns, bytes_max=self._bytes_max)
            event.state = state
        if self._boundaries.ends(text):
            self._complete.append(self._events.pop(line.stream))

    def _end_all(self, grown_before_ns: int | None = None) -> None:
        """End all, or what did not grow since then; an event goes on while its next line does."""

        def ends(growing: _Growing) -> bool:
            return grown_before_ns is None or growing.grew_ns < grown_before_ns

        for line in sorted(filter(ends, self._pieces.values()), key=lambda growing: growing.end):
            del self._pieces[line.stream]
            self._end_line(line)
        for event in list(self._events.values()):
            if ends(event) and event.stream not in self._pieces:
                del self._events[event.stream]
                self._complete.append(event)

    def _release(self) -> list[Line]:
        """Complete events before which no other can end any more, in order."""
        waits = min((growing.end for growing in self._growing()), default=None)
        self._complete.sort(key=lambda growing: growing.end)
        ready = [event for event in self._complete if waits is None or event.end < waits]
        del self._complete[: len(ready)]
        return [event.line() for event in ready]

    def _growing(self) -> list[_Growing]:
        return [*self._pieces.values(), *self._events.values()]

    def _held(self) -> list[_Growing]:
        return [*self._growing(), *self._complete]
