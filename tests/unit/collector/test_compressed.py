"""Compressed files, looked for, looked at and read on."""

import gzip
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import zstandard

from penstock.base.clock import SystemClock
from penstock.collector.descriptors import Descriptors
from penstock.collector.limits import FILE_READ_BYTES, HEAD_BYTES
from penstock.collector.sources.files.compressed import CompressedTail, Search
from penstock.collector.sources.files.identity import FileState
from penstock.collector.sources.files.settings import FileSettings
from penstock.collector.sources.files.tail import Tail
from tests.support.gone_files import MODIFIED_NS, gone
from tests.support.privileges import closed

CONTENT = b"".join(b"%d %d\n" % (n, random.Random(n).getrandbits(64)) for n in range(16_000))
ZIPPED = gzip.compress(CONTENT, 1)
WAIT_NS = 30 * 10**9
HOUR_NS = 3600 * 10**9
MINUTE_NS = 60 * 10**9


class Seeking:
    """A search in a directory, with what it said."""

    def __init__(self, directory: Path, **options: Any) -> None:
        section = FileSettings(type="file", include=[f"{directory}/*"], service="app", **options)
        self.directory = directory
        self.notes: Counter[str] = Counter()
        self.errors: list[str] = []
        self.steps = 0
        self.poll_ns = section.poll_ms * 1_000_000
        self.polls = 0
        self.descriptors = Descriptors(1000, SystemClock())
        self.search = Search(
            section,
            lambda what: self.notes.update([what]),
            lambda path, _: self.errors.append(Path(path).name),
            structlog.get_logger(),
            self.descriptors,
        )

    def lost(self, position: int) -> FileState:
        path = str(self.directory / "app.log")
        return gone(position, content=CONTENT, head_length=HEAD_BYTES, path=path)

    def seek(self, *lost: FileState, now_ns: int = 0) -> list[tuple[FileState, Tail | None]]:
        """Steps of a later poll until there is nothing more to look at."""
        more = True
        self.polls += 1
        while more:
            decided, more = self.search.seek(lost, now_ns + self.polls * self.poll_ns)
            self.steps += 1
            if decided:
                return decided
        return []


@pytest.fixture
def seeking(tmp_path: Path) -> Iterator[Seeking]:
    made = Seeking(tmp_path, max_decompressed_bytes=20 * FILE_READ_BYTES)
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
    assert [tail for _, tail in seeking.seek(state, now_ns=WAIT_NS + 1)] == [None]
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


def compressed(path: Path, content: bytes, modified_ns: int) -> None:
    """As gzip makes it, which keeps the time."""
    path.write_bytes(gzip.compress(content))
    os.utime(path, ns=(modified_ns, modified_ns))


BANNER = b"time,level,message\n"


def test_with_a_constant_first_line_an_old_one_is_not_read_again(seeking: Seeking) -> None:
    """Only that line was read; all old files begin with it, and one of them is the longest."""
    path = str(seeking.directory / "app.log")
    state = gone(len(BANNER), content=BANNER, head_length=HEAD_BYTES, path=path)
    compressed(seeking.directory / "app.log.7.gz", BANNER + CONTENT, MODIFIED_NS - HOUR_NS)
    compressed(seeking.directory / "app.log.1.gz", BANNER + b"tail\n", MODIFIED_NS + 1000)
    [(_, tail)] = seeking.seek(state)
    assert rest_of(tail) == b"tail\n"


def test_what_was_read_whole_is_itself_however_many_begin_alike(seeking: Seeking) -> None:
    """One long banner: the older and longer one repeats it, and so does what came after."""
    banner = BANNER * 100
    path = str(seeking.directory / "app.log")
    state = gone(len(banner), content=banner, head_length=HEAD_BYTES, path=path)
    compressed(seeking.directory / "app.log.3.gz", banner + CONTENT, MODIFIED_NS - HOUR_NS)
    compressed(seeking.directory / "app.log.2.gz", banner, MODIFIED_NS)
    compressed(seeking.directory / "app.log.1.gz", banner + CONTENT, MODIFIED_NS + 1000)
    assert [tail for _, tail in seeking.seek(state)] == [None]
    assert seeking.notes == {}


def test_of_equal_heads_the_one_with_the_marked_bytes_is_read(seeking: Seeking) -> None:
    """Also when the wrong ones are later and longer, and were compressed without keeping a time."""
    head, position = BANNER * 100, len(BANNER) * 100 + 2000
    path = str(seeking.directory / "app.log")
    state = gone(position, content=head + CONTENT, head_length=HEAD_BYTES, path=path)
    (seeking.directory / "app.log.7.gz").write_bytes(gzip.compress(head + CONTENT[::-1]))
    (seeking.directory / "app.log.1.gz").write_bytes(gzip.compress(head + CONTENT[:9001]))
    (seeking.directory / "app.log.0.gz").write_bytes(gzip.compress(head + CONTENT[::-1])[:-1])
    [(_, tail)] = seeking.seek(state)
    assert rest_of(tail) == CONTENT[2000 : CONTENT.rindex(b"\n", 0, 9001) + 1]


def test_of_several_that_nothing_tells_apart_none_is_read(seeking: Seeking) -> None:
    path = str(seeking.directory / "app.log")
    state = gone(len(BANNER), content=BANNER, head_length=HEAD_BYTES, path=path)
    for number in (1, 2):
        compressed(
            seeking.directory / f"app.log.{number}.gz", BANNER + b"tail\n", MODIFIED_NS + 2 * 10**9
        )
    assert [tail for _, tail in seeking.seek(state)] == [None]
    assert seeking.notes == {"compressed_alike": 1, "files_gone": 1}


def test_two_names_of_one_file_are_one(seeking: Seeking) -> None:
    (seeking.directory / "app.log.1.gz").write_bytes(ZIPPED)
    (seeking.directory / "latest.gz").symlink_to("app.log.1.gz")
    assert rest_of(seeking.seek(seeking.lost(10))[0][1]) == CONTENT[10:]


def test_one_without_a_mark_is_gone(seeking: Seeking) -> None:
    """Its checkpoint is from before there were marks: nothing tells an old file from its own."""
    (seeking.directory / "app.log.1.gz").write_bytes(ZIPPED)
    state = seeking.lost(10)
    state.mark = None
    assert [tail for _, tail in seeking.seek(state)] == [None]
    assert seeking.notes == {"files_gone": 1}


def test_each_compressed_file_is_taken_once(seeking: Seeking) -> None:
    (seeking.directory / "app.log.1.gz").write_bytes(gzip.compress(CONTENT[:2000]))
    (seeking.directory / "app.log.2.gz").write_bytes(gzip.compress(CONTENT[:9000]))
    early, late = seeking.lost(1900), seeking.lost(8900)
    found = seeking.seek(early, late)
    assert [state for state, _ in found] == [late, early]
    decided = [rest_of(tail) for _, tail in found]
    assert decided[0] == CONTENT[8900 : CONTENT.rindex(b"\n", 0, 9000) + 1]
    assert decided[1] == CONTENT[1900 : CONTENT.rindex(b"\n", 0, 2000) + 1]


def test_one_lost_later_is_looked_for_in_what_was_looked_at(seeking: Seeking) -> None:
    """Its marked bytes were not asked for then."""
    (seeking.directory / "app.log.1.gz").write_bytes(ZIPPED)
    (seeking.directory / "app.log.2.gz").write_bytes(ZIPPED[:-1])
    assert seeking.seek(seeking.lost(10)) == []
    (seeking.directory / "app.log.2.gz").unlink()
    assert rest_of(seeking.seek(seeking.lost(500_000 // 2))[0][1]) == CONTENT[250_000:]


def test_beside_what_a_link_leads_to_is_looked_as_well(seeking: Seeking, tmp_path: Path) -> None:
    """As Kubernetes links to the logs of containers."""
    pods, links = tmp_path / "pods", tmp_path / "containers"
    pods.mkdir()
    links.mkdir()
    (links / "app.log").symlink_to(pods / "0.log")
    (pods / "0.log.20260101.gz").write_bytes(ZIPPED)
    state = seeking.lost(10)
    state.path = str(links / "app.log")
    assert rest_of(seeking.seek(state)[0][1]) == CONTENT[10:]


def test_a_directory_is_listed_once_per_poll(seeking: Seeking) -> None:
    """What comes while a poll's files are looked at is seen by the next one."""
    for number in range(5):
        (seeking.directory / f"app.log.{number}.gz").write_bytes(ZIPPED[: -1 - number])
    state = seeking.lost(10)
    assert seeking.search.seek([state], 0) == ([], True)
    (seeking.directory / "round.gz").symlink_to("round.gz")  # which is complained of when seen
    more, steps = True, 0
    while more:
        _, more = seeking.search.seek([state], 0)
        steps += 1
    assert steps > 5
    assert seeking.errors == []
    assert seeking.seek(state) == []
    assert seeking.errors == ["round.gz"]


def test_one_that_could_not_be_read_on_is_looked_at_anew(seeking: Seeking) -> None:
    path = seeking.directory / "app.log.1.gz"
    path.write_bytes(ZIPPED)
    state = seeking.lost(10)
    [(_, tail)] = seeking.seek(state)
    assert isinstance(tail, CompressedTail)
    assert seeking.seek(gone(10, path=state.path)) != []
    seeking.search.release(tail.stamp)
    tail.close()
    assert rest_of(seeking.seek(state)[0][1]) == CONTENT[10:]


def test_what_cannot_be_opened_is_tried_again(seeking: Seeking) -> None:
    path = seeking.directory / "app.log.1.gz"
    path.write_bytes(ZIPPED)
    state = seeking.lost(len(CONTENT) - 5)
    with closed(path):
        assert seeking.seek(state) == []
        assert seeking.seek(state) == []
    assert seeking.errors == ["app.log.1.gz"] * 2
    assert rest_of(seeking.seek(state)[0][1]) == CONTENT[-5:]


def test_what_cannot_be_opened_is_waited_for_however_long_and_told(seeking: Seeking) -> None:
    """What is unread may be in it; a permission is given late, and a full table is emptied."""
    path = seeking.directory / "app.log.1.gz"
    path.write_bytes(ZIPPED)
    (seeking.directory / "round.gz").symlink_to("round.gz")
    state = seeking.lost(10)
    with closed(path):
        for now_ns in (0, WAIT_NS, WAIT_NS, HOUR_NS):
            assert seeking.seek(state, now_ns=now_ns) == []
    assert seeking.notes == {"compressed_refused": 1}
    assert set(seeking.errors) == {"app.log.1.gz", "round.gz"}
    assert seeking.seek(state, now_ns=HOUR_NS) == []
    assert rest_of(seeking.seek(state, now_ns=HOUR_NS + MINUTE_NS)[0][1]) == CONTENT[10:]


def test_names_that_cannot_be_looked_up_are_waited_for(seeking: Seeking) -> None:
    """The directory can be listed, and not searched."""
    (seeking.directory / "app.log.1.gz").write_bytes(ZIPPED)
    state = seeking.lost(10)
    with closed(seeking.directory, mode=0o444):
        assert seeking.seek(state) == seeking.seek(state, now_ns=WAIT_NS) == []
    assert seeking.notes == {}
    assert rest_of(seeking.seek(state, now_ns=WAIT_NS)[0][1]) == CONTENT[10:]


def test_one_seen_whole_for_another_file_that_cannot_be_opened_again_ends_no_search(
    seeking: Seeking,
) -> None:
    """What is marked of the second file was not looked for when it was seen."""
    (seeking.directory / "app.log.0.gz").write_bytes(ZIPPED[:-1])
    path = seeking.directory / "app.log.1.gz"
    path.write_bytes(ZIPPED)
    first, second = seeking.lost(10), seeking.lost(3000)
    assert seeking.seek(first) == []
    with closed(path):
        assert seeking.seek(first, second) == []
    assert "app.log.1.gz" in seeking.errors


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


class Giving:
    """The only file that may be open; it is closed for the compressed one, and does something."""

    def __init__(self, descriptors: Descriptors, does: Callable[[], object]) -> None:
        self._descriptors = descriptors
        self._does = does
        descriptors.max_files = 1
        descriptors.admit(self)

    def can_close(self) -> bool:
        return True

    def close_for_others(self) -> None:
        self._descriptors.release(self)
        self._does()


def test_one_that_was_replaced_after_it_was_looked_at_is_not_read(seeking: Seeking) -> None:
    """Nobody saw whether what is there now is whole; it is looked at, and read then."""
    path = seeking.directory / "app.log.1.gz"
    path.write_bytes(ZIPPED)
    path.with_name("new").write_bytes(ZIPPED[:-1])
    Giving(seeking.descriptors, lambda: path.with_name("new").rename(path))
    state = seeking.lost(10)
    assert seeking.seek(state) == []
    assert (seeking.notes, seeking.errors) == ({}, ["app.log.1.gz"])
    path.write_bytes(ZIPPED)
    assert rest_of(seeking.seek(state)[0][1]) == CONTENT[10:]
