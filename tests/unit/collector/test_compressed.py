"""The table of compressed files; the letters are those of `penstock.collector.core.compressed`."""

import gzip
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import zstandard

from penstock.collector.core.compressed import End, Fit, Next, Seen, choose, fit
from penstock.collector.core.files import FileState, Found, Generations
from penstock.collector.limits import FILE_READ_BYTES
from penstock.collector.source_sections import FileSource as FileSection
from penstock.collector.sources.compressed import Search
from penstock.collector.sources.tail import Tail

HEAD = b"first line\n"
CONTENT = b"".join(b"%d %d\n" % (n, random.Random(n).getrandbits(64)) for n in range(16_000))
ZIPPED = gzip.compress(CONTENT, 1)
A, B = "/a.gz", "/b.gz"
WAIT_NS = 30 * 10**9


def gone(position: int = 20, *, head: bytes = HEAD, path: str = "/x.log") -> FileState:
    state = Generations().begin("s", Found(1, 2, len(head), head), path)
    state.position = position
    return state


@pytest.mark.parametrize(
    ("letter", "seen", "expected"),
    [
        ("a", Seen(HEAD[:5], 5, End.OPEN), Fit.UNDECIDED),
        ("b", Seen(HEAD[:5], 5, End.BROKEN), Fit.UNKNOWN),
        ("c", Seen(HEAD[:5], 5, End.WHOLE), Fit.OTHER),
        ("d", Seen(b"other line\n", 11, End.OPEN), Fit.OTHER),
        ("e", Seen(HEAD + b"more", 100, End.OPEN), Fit.UNDECIDED),
        ("f", Seen(HEAD, 100, End.BROKEN), Fit.BROKEN),
        ("g", Seen(HEAD, 19, End.WHOLE), Fit.OTHER),
        ("h", Seen(HEAD, 20, End.WHOLE), Fit.REST),
    ],
)
def test_each_row_of_the_table(letter: str, seen: Seen, expected: Fit) -> None:
    assert fit(gone(), seen) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, (Next.GIVE_UP, "")),
        ({A: Seen(HEAD, 50, End.WHOLE), B: Seen(b"", 0, End.OPEN)}, (Next.LOOK, B)),
        ({A: Seen(HEAD, 50, End.WHOLE), B: Seen(HEAD, 60, End.WHOLE)}, (Next.READ, B)),
        ({A: Seen(HEAD, 50, End.WHOLE), B: Seen(HEAD, 60, End.BROKEN)}, (Next.READ, A)),
        ({A: Seen(HEAD, 10, End.WHOLE), B: Seen(HEAD, 60, End.BROKEN)}, (Next.WAIT, "")),
        ({A: Seen(b"", 0, End.BROKEN, fresh=True)}, (Next.WAIT, "")),
        ({A: Seen(b"", 0, End.BROKEN)}, (Next.GIVE_UP, "")),
    ],
)
def test_what_is_done_next(found: dict[str, Seen], expected: tuple[Next, str]) -> None:
    assert choose(gone(), found) == expected


class Seeking:
    """A search in a directory, with what it said."""

    def __init__(self, directory: Path, **options: Any) -> None:
        section = FileSection(type="file", include=[f"{directory}/*"], service="app", **options)
        self.directory = directory
        self.notes: Counter[str] = Counter()
        self.errors: list[str] = []
        self.steps = 0
        self.search = Search(
            section,
            lambda what: self.notes.update([what]),
            lambda path, _: self.errors.append(Path(path).name),
            structlog.get_logger(),
        )

    def lost(self, position: int) -> FileState:
        return gone(position, head=CONTENT[:1024], path=str(self.directory / "app.log"))

    def seek(self, *lost: FileState, now_ns: int = 0) -> list[tuple[FileState, Tail | None]]:
        """Steps until there is nothing more to look at."""
        more = True
        while more:
            decided, more = self.search.seek(lost, now_ns)
            self.steps += 1
            if decided:
                return decided
        return []


@pytest.fixture
def seeking(tmp_path: Path) -> Iterator[Seeking]:
    made = Seeking(tmp_path, decompressed_bytes_max=20 * FILE_READ_BYTES)
    yield made
    made.search.close()


def rest_of(tail: Tail | None) -> bytes:
    """Everything that a tail still reads, and that it is at its end."""
    assert tail is not None
    found, at_end = [], False
    while not at_end:
        _, lines, at_end = tail.read(0)
        found += [line.text + b"\n" for line in lines]
    tail.close()
    return b"".join(found)


@pytest.mark.parametrize(
    ("suffix", "squeeze"), [(".gz", gzip.compress), (".zst", zstandard.compress)]
)
@pytest.mark.parametrize("lines", [0, 1, 15_999])
def test_it_reads_on_from_the_position(
    seeking: Seeking, suffix: str, squeeze: Any, lines: int
) -> None:
    position = sum(len(line) for line in CONTENT.splitlines(keepends=True)[:lines])
    (seeking.directory / f"app.log.1{suffix}").write_bytes(squeeze(CONTENT))
    (seeking.directory / f"other{suffix}").write_bytes(squeeze(b"other\n" + CONTENT))
    state = seeking.lost(position)
    [(decided, tail)] = seeking.seek(state)
    assert decided is state
    assert rest_of(tail) == CONTENT[position:]
    assert seeking.notes == {"compressed_read": 1}


def test_what_was_read_whole_is_not_read_again(seeking: Seeking) -> None:
    (seeking.directory / "app.log.1.gz").write_bytes(ZIPPED)
    assert [tail for _, tail in seeking.seek(seeking.lost(len(CONTENT)))] == [None]
    assert seeking.notes == {}


def test_without_a_compressed_file_it_is_gone(seeking: Seeking) -> None:
    os.mkfifo(seeking.directory / "app.log.1.gz")
    (seeking.directory / "app.log.2").write_bytes(CONTENT)
    assert [tail for _, tail in seeking.seek(seeking.lost(5))] == [None]
    assert seeking.notes == {"files_gone": 1}


def test_one_cut_short_is_waited_for_and_told_when_it_stays_so(seeking: Seeking) -> None:
    path, whole = seeking.directory / "app.log.1.gz", ZIPPED
    state = seeking.lost(len(CONTENT) - 5)
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert seeking.seek(state) == []
    assert seeking.notes == {}
    for _ in range(2):
        assert seeking.seek(state, now_ns=WAIT_NS) == []
    assert seeking.notes == {"compressed_refused": 1}
    path.write_bytes(whole)
    assert rest_of(seeking.seek(state, now_ns=WAIT_NS)[0][1]) == CONTENT[-5:]


def test_a_small_one_cut_short_is_known_by_its_head(seeking: Seeking) -> None:
    whole = gzip.compress(CONTENT[:5000])
    (seeking.directory / "app.log.1.gz").write_bytes(whole[:-1])
    state = seeking.lost(10)
    assert seeking.seek(state) == []
    assert seeking.seek(state, now_ns=WAIT_NS) == []
    assert seeking.notes == {"compressed_refused": 1}


def test_one_with_a_wrong_byte_gives_nothing(seeking: Seeking) -> None:
    whole = bytearray(ZIPPED)
    whole[-6] ^= 1  # of the checksum: all of it decompresses
    (seeking.directory / "app.log.1.gz").write_bytes(whole)
    state = seeking.lost(10)
    assert seeking.seek(state, now_ns=1) == []
    assert seeking.seek(state, now_ns=WAIT_NS + 1) == []
    assert seeking.notes == {"compressed_refused": 1}
    (seeking.directory / "app.log.1.gz").unlink()
    assert [tail for _, tail in seeking.seek(state)] == [None]
    assert seeking.notes["files_gone"] == 1


def test_a_foreign_broken_one_is_not_waited_for_long(seeking: Seeking) -> None:
    (seeking.directory / "junk.gz").write_bytes(b"no gzip")
    state = seeking.lost(10)
    assert seeking.seek(state) == []
    assert [tail for _, tail in seeking.seek(state, now_ns=WAIT_NS)] == [None]
    assert seeking.notes == {"files_gone": 1, "compressed_refused": 1}


def test_a_bomb_is_looked_at_in_steps_and_refused_at_the_limit(seeking: Seeking) -> None:
    bomb = CONTENT[:1024] + bytes(60 * FILE_READ_BYTES)
    (seeking.directory / "app.log.1.gz").write_bytes(gzip.compress(bomb, 1))
    state = seeking.lost(10)
    assert seeking.seek(state) == []
    assert seeking.seek(state, now_ns=WAIT_NS) == []
    assert seeking.notes == {"compressed_refused": 1}
    assert 20 < seeking.steps < 30


def test_of_equal_heads_the_longest_is_taken_and_each_once(seeking: Seeking) -> None:
    (seeking.directory / "app.log.1.gz").write_bytes(gzip.compress(CONTENT[:2000]))
    (seeking.directory / "app.log.2.gz").write_bytes(gzip.compress(CONTENT[:9000]))
    early, late = seeking.lost(1900), seeking.lost(8900)
    decided = {id(state): rest_of(tail) for state, tail in seeking.seek(early, late)}
    assert decided[id(late)] == CONTENT[8900 : CONTENT.rindex(b"\n", 0, 9000) + 1]
    assert decided[id(early)] == CONTENT[1900 : CONTENT.rindex(b"\n", 0, 2000) + 1]


def test_what_cannot_be_opened_is_tried_again(
    seeking: Seeking, monkeypatch: pytest.MonkeyPatch
) -> None:
    (seeking.directory / "app.log.1.gz").write_bytes(ZIPPED)
    state = seeking.lost(len(CONTENT) - 5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert seeking.seek(state) == []
        assert seeking.seek(state, now_ns=2 * WAIT_NS) == []
    assert seeking.errors == ["app.log.1.gz"] * 2
    assert rest_of(seeking.seek(state, now_ns=2 * WAIT_NS)[0][1]) == CONTENT[-5:]


def test_one_that_changes_while_it_is_read_does_not_end(seeking: Seeking) -> None:
    path = seeking.directory / "app.log.1.gz"
    path.write_bytes(ZIPPED)
    [(_, tail)] = seeking.seek(seeking.lost(10))
    assert tail is not None
    os.truncate(path, 12)  # a header, and nothing that it becomes
    for _ in range(3):
        with pytest.raises(OSError, match="ends early"):
            tail.read(0)
    tail.close()


def test_one_that_was_replaced_after_it_was_looked_at_is_not_read(
    seeking: Seeking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody saw whether what is there now is whole; it is looked at, and read then."""
    path = seeking.directory / "app.log.1.gz"
    path.write_bytes(ZIPPED)
    read_on = Search._read_on

    def replaced(*asked: Any) -> Tail | None:
        path.with_name("new").write_bytes(ZIPPED[:-1])
        path.with_name("new").rename(path)
        monkeypatch.undo()
        return read_on(*asked)

    monkeypatch.setattr(Search, "_read_on", replaced)
    state = seeking.lost(10)
    assert seeking.seek(state) == []
    assert (seeking.notes, seeking.errors) == ({}, ["app.log.1.gz"])
    path.write_bytes(ZIPPED)
    assert rest_of(seeking.seek(state)[0][1]) == CONTENT[10:]


def refuse(*_: object) -> int:
    raise PermissionError(13, "Permission denied")
