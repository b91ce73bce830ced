"""Container formats, and events of several lines, however the file's bytes arrive."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.sources.files.boundaries import Boundaries
from penstock.collector.sources.files.container_lines import (
    LineFragment,
    ReadFragment,
    read_cri,
    read_docker,
    read_plain,
)
from penstock.collector.sources.files.multiline import Joiner
from penstock.collector.sources.line_framing import Line, LineCutter

STAMP = "2026-01-02T03:04:05.123456789Z"
STAMP_NS = 1_767_323_045_123_456_789
START = re.compile(rb"[A-Z]")


def cri(text: str, tag: str = "F", stream: str = "stdout") -> bytes:
    return f"{STAMP} {stream} {tag} {text}\n".encode()


def docker(text: str, stream: str = "stdout") -> bytes:
    return json.dumps({"log": text, "stream": stream, "time": STAMP}).encode() + b"\n"


class Reading:
    """A file that is read piece by piece, as a source does it."""

    def __init__(
        self, read: ReadFragment = read_plain, *, multiline: bool = False, position: int = 0,
        bytes_max: int = 1000, held_bytes_max: int = 10_000,
    ) -> None:  # fmt: skip
        self.cutter = LineCutter(1000, position=position)
        self.joiner = Joiner(
            read, Boundaries(start="^[A-Z]") if multiline else None,
            bytes_max=bytes_max, held_bytes_max=held_bytes_max,
        )  # fmt: skip
        self.events: list[Line] = []
        self.starts: list[int] = []

    @property
    def position(self) -> int:
        held = self.joiner.start
        return self.cutter.line_start if held is None else held

    def feed(self, data: bytes, now_ns: int = 0) -> None:
        start = self.cutter.line_start
        self.took(*self.joiner.feed(start, self.cutter.feed(data), now_ns))

    def flush(self, grown_before_ns: int | None = None) -> None:
        if self.joiner.start is not None:
            self.took(*self.joiner.flush(grown_before_ns))

    def took(self, start: int, events: list[Line]) -> None:
        self.events += events
        self.starts += [start] * len(events)

    @property
    def texts(self) -> list[bytes]:
        return [event.text for event in self.events]


def test_formats_are_read() -> None:
    assert read_cri(cri("a b")[:-1]) == LineFragment(b"a b", "stdout", STAMP_NS)
    assert read_cri(cri("x", "P:more", "stderr")[:-1]) == LineFragment(
        b"x", "stderr", STAMP_NS, is_partial=True
    )
    assert read_cri(cri("")[:-1]) == LineFragment(b"", "stdout", STAMP_NS)
    assert read_docker(docker("a\r\n")) == LineFragment(b"a", "stdout", STAMP_NS)
    assert read_docker(docker("part")) == LineFragment(b"part", "stdout", STAMP_NS, is_partial=True)
    assert read_docker(b'{"stream":"stderr","time":"%s"}' % STAMP.encode()) == LineFragment(
        b"", "stderr", STAMP_NS
    )


@pytest.mark.parametrize(
    "line", [b"", b"text", b"{}", b"[]", b'{"log":1,"time":"x"}', b"2026 stdout F x", b"\xff{"]
)
def test_what_is_of_neither_format_is_told(line: bytes) -> None:
    assert read_cri(line) is None
    assert read_docker(line) is None


def test_pieces_are_joined_within_their_stream() -> None:
    reading = Reading(read_cri)
    reading.feed(cri("a", "P") + cri("x", "P", "stderr") + cri("b", "P"))
    assert (reading.events, reading.position) == ([], 0)
    reading.feed(cri("c") + cri("y", "F", "stderr"))
    assert reading.texts == [b"abc", b"xy"]
    assert [event.stream for event in reading.events] == ["stdout", "stderr"]
    assert reading.position == reading.events[-1].end


def test_docker_pieces_are_joined_until_the_newline() -> None:
    reading = Reading(read_docker)
    reading.feed(docker("one ") + docker("line\n") + docker("next\n"))
    assert reading.texts == [b"one line", b"next"]


def test_a_piece_without_its_end_leaves_when_it_is_flushed() -> None:
    reading = Reading(read_cri)
    reading.feed(cri("only", "P"))
    reading.flush()
    assert reading.texts == [b"only"]


def test_a_line_that_is_not_of_the_format_is_an_event_as_it_stands() -> None:
    reading = Reading(read_cri)
    reading.feed(b"odd\n" + cri("a"))
    assert (reading.texts, reading.joiner.malformed) == ([b"odd", b"a"], 1)


def test_lines_go_on_with_an_event_until_another_begins() -> None:
    reading = Reading(multiline=True)
    reading.feed(b"Error\n  at a\n  at b\nNext\n")
    assert reading.texts == [b"Error\n  at a\n  at b"]
    assert reading.position == reading.events[0].end
    reading.flush()
    assert reading.texts[1:] == [b"Next"]


def test_an_event_waits_for_one_of_another_stream_that_may_end_before_it() -> None:
    reading = Reading(read_cri, multiline=True)
    reading.feed(cri("Err", stream="stderr") + cri("Out") + cri("Out2"))
    assert reading.events == []
    reading.feed(cri(" more", stream="stderr"))
    assert reading.texts == [b"Out"]
    reading.flush()
    assert sorted(reading.texts) == [b"Err\n more", b"Out", b"Out2"]
    assert [event.end for event in reading.events] == sorted(event.end for event in reading.events)


def test_a_piece_without_its_end_holds_back_the_other_stream_for_so_long_only() -> None:
    """As when a program closes its standard output in the middle of a line, and goes on."""
    reading = Reading(read_cri)
    reading.feed(cri("cut", "P"), now_ns=1)
    for second in range(2, 9):
        reading.feed(cri(f"err {second}", stream="stderr"), now_ns=second)
        reading.flush(grown_before_ns=second - 5)
    assert reading.texts == [b"cut", *(b"err %d" % second for second in range(2, 8)), b"err 8"]
    reading.feed(cri("end"), now_ns=9)
    assert reading.texts[-1] == b"end"


def test_an_event_that_does_not_grow_holds_back_the_other_stream_for_so_long_only() -> None:
    reading = Reading(read_cri, multiline=True)
    reading.feed(cri("Started", stream="stderr"), now_ns=1)
    for second in range(2, 9):
        reading.feed(cri(f"Out {second}"), now_ns=second)
        reading.flush(grown_before_ns=second - 5)
        assert reading.joiner.start is not None
    assert reading.texts == [b"Started", *(b"Out %d" % second for second in range(2, 8))]
    assert [event.end for event in reading.events] == sorted(event.end for event in reading.events)


def test_an_event_goes_on_while_pieces_of_its_next_line_come() -> None:
    reading = Reading(read_cri, multiline=True)
    reading.feed(cri("Err", stream="stderr"), now_ns=1)
    reading.feed(cri(" mo", "P", "stderr"), now_ns=7)
    reading.flush(grown_before_ns=5)
    reading.feed(cri("re", stream="stderr"), now_ns=8)
    reading.flush(grown_before_ns=8)
    assert reading.events == []
    reading.flush(grown_before_ns=9)
    assert reading.texts == [b"Err\n more"]


def test_what_has_no_text_counts_as_held_too() -> None:
    reading = Reading(read_cri)
    reading.feed(cri("stuck", "P", "stderr"))
    reading.feed(cri("") * 100)
    assert len(reading.texts) == 101


def test_what_is_beyond_the_bound_is_left_out_and_marked() -> None:
    reading = Reading(multiline=True, bytes_max=10)
    reading.feed(b"Abcdefg\n" + b" 123456\n" * 10 + b"B\n")
    assert reading.events == [Line(b"Abcdefg\n 1", 88, truncated=True)]


def test_more_than_may_be_held_is_not_waited_for() -> None:
    reading = Reading(read_cri, held_bytes_max=100)
    reading.feed(cri("stuck", "P", "stderr"))
    for number in range(20):
        reading.feed(cri(f"line {number:05}"))
    assert b"stuck" in reading.texts
    assert len(reading.texts) > 5


FILES = st.lists(
    st.one_of(
        st.builds(
            cri,
            st.text("Aab ", max_size=4),
            st.sampled_from("PFF"),
            st.sampled_from(["stdout", "stderr"]),
        ),
        st.just(b"odd\n"),
    ),
    max_size=14,
).map(b"".join)


@given(FILES, st.integers(1, 90), st.booleans())
def test_events_are_the_same_however_the_bytes_arrive(
    data: bytes, step: int, multiline: bool
) -> None:
    whole, parts = Reading(read_cri, multiline=multiline), Reading(read_cri, multiline=multiline)
    whole.feed(data)
    for at in range(0, len(data), step):
        parts.feed(data[at : at + step])
    for reading in (whole, parts):
        reading.flush()
    assert parts.events == whole.events
    ends = [event.end for event in whole.events]
    assert ends == sorted(set(ends))


@given(FILES, st.integers(1, 90), st.booleans(), st.integers(0, 20))
def test_reading_again_from_where_nothing_is_done_meets_the_same_events(
    data: bytes, step: int, multiline: bool, done: int
) -> None:
    """After a crash: events up to `done` are known by their ends, the rest must come again."""
    first = Reading(read_cri, multiline=multiline)
    for at in range(0, len(data), step):
        first.feed(data[at : at + step])
    last = first.events[:done][-1].end if first.events[:done] else 0
    start = first.starts[done] if done < len(first.events) else first.position
    again = Reading(read_cri, multiline=multiline, position=start)
    again.feed(data[start:])
    rest = [event for event in again.events if event.end > last]
    assert rest == first.events[done:]


def test_what_docker_was_told_to_add_goes_with_the_line() -> None:
    line = {
        "log": "hi\n",
        "stream": "stdout",
        "attrs": {"tag": "web/1", "com.example.team": "shop"},
        "time": "2026-01-02T03:04:05Z",
    }
    piece = read_docker(json.dumps(line).encode())
    assert piece is not None
    assert piece.attributes == {
        "docker.attrs.tag": "web/1",
        "docker.attrs.com.example.team": "shop",
    }
