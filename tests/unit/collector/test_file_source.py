"""Files that cannot be read for a while: nothing ends, nothing is read twice."""

import asyncio
import errno
import gzip
import os
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.base.clock import SystemClock
from penstock.collector.core.batch import Limits
from penstock.collector.core.delivery import Delivery, Publish, Quarantine, Read
from penstock.collector.core.files import FileState, Found, Generations, Mark, Verdict, head_hash
from penstock.collector.core.ledger import Ledger
from penstock.collector.core.lines import LineCutter
from penstock.collector.courier import Courier
from penstock.collector.descriptors import Descriptors
from penstock.collector.publisher import Answer
from penstock.collector.source_sections import FileSource as FileSection
from penstock.collector.sources.file import FileSource
from penstock.collector.sources.tail import Tail, look


async def _saved() -> bool:
    return True


async def _publish(effect: Publish) -> Answer:
    raise AssertionError(effect)


async def _quarantine(effect: Quarantine) -> None:
    raise AssertionError(effect)


def source_of(path: Path, known: list[FileState]) -> FileSource:
    clock = SystemClock()
    delivery = Delivery(Limits(), jitter=lambda: 0.0)
    return FileSource(
        FileSection(type="file", include=(str(path),), service="app"),
        {},
        Generations(following=2, known=known),
        pipeline=cast("Any", None),
        courier=Courier(delivery, clock, publish=_publish, quarantine=_quarantine),
        ledger=Ledger(),
        clock=clock,
        save=_saved,
        first_time=False,
        descriptors=Descriptors(1000, clock),
    )


def found(path: Path) -> Found:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return look(descriptor)
    finally:
        os.close(descriptor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "app.log"
    made.write_text("one\ntwo\n")
    return made


async def test_a_file_that_cannot_be_opened_at_start_keeps_its_position(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Generations().begin("file", found(path), str(path))
    state.position = 4
    source = source_of(path, [state])
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        await source._discover()
    assert [(s.generation, s.position) for s in source.states] == [(1, 4)]
    await source._discover()
    assert [tail.lines.position for tail in source._tails.values()] == [4]
    assert [s.generation for s in source.states] == [1]


async def test_a_file_that_cannot_be_read_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(path, [])
    await source._discover()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", refuse)
        append(path)
        await source._discover()
        assert not await source._read_round()
    assert source._ledger["file"].notes["files_unreadable"] == 1
    for tail in source._tails.values():
        assert tail.lines.position == 0
        tail.close()


LONG = "".join(f"{number:04} of a long header\n" for number in range(50))


def reading(path: Path, text: str) -> Tail:
    """A tail that has read all there is of a file with equal heads."""
    path.write_text(text)
    state = Generations().begin("file", found(path), str(path))
    tail = Tail(state, os.open(path, os.O_RDONLY), LineCutter(1000))
    tail.read(0)
    assert tail.verdict() is Verdict.SAME
    return tail


@pytest.mark.parametrize(
    ("text", "then", "verdict"),
    [
        (LONG + "one\n", LONG + "two\n", Verdict.REPLACED),
        (LONG + "one\n", LONG + "another\nand more\n", Verdict.REPLACED),
        (LONG + "one\n", LONG + "one\nand more\n", Verdict.SAME),
        (LONG + "one\n", LONG + "one", Verdict.TRUNCATED),
        ("one\n", "one\nand more\n", Verdict.SAME),
        (LONG + "one\n" + "\0" * 99, LONG + "one\ntwo\n" + "\0" * 95, Verdict.SAME),
        (LONG + "\0" * 2000, LONG + "\0" * 1990 + "ten bytes\n", Verdict.SAME),
        (LONG + "one\n" + "\0" * 99, LONG + "two\n" + "\0" * 99, Verdict.REPLACED),
        (LONG + "one\n", LONG + "\0" * 99 + "two\n", Verdict.SAME),
        (LONG + "\0" * 9 + "ok\n", LONG + "filled 2\nok\n", Verdict.SAME),
        (LONG + "\0" * 9 + "ok\n", LONG + "filled 2\nno\n", Verdict.REPLACED),
    ],
    ids=[
        "other", "other, longer", "written on", "truncated", "short", "room filled",
        "much room filled", "other with room", "hole", "gap filled", "other with a gap",
    ],
)  # fmt: skip
def test_content_of_an_equal_head_is_known_by_what_was_read_last(
    path: Path, text: str, then: str, verdict: Verdict
) -> None:
    tail = reading(path, text)
    path.write_text(then)
    os.utime(path, ns=(1, 1))
    assert tail.verdict() is verdict
    tail.close()


async def test_a_gap_that_is_filled_while_the_collector_is_stopped_makes_no_other_file(
    path: Path,
) -> None:
    write(path, LONG + "\0" * 9 + "ok\n")
    state = read_to(path, len(LONG) + 12)
    write(path, LONG + "filled 2\nok\nand more\n")
    source = source_of(path, [state])
    await source._discover()
    assert [tail.lines.position for tail in source._tails.values()] == [len(LONG) + 12]
    for tail in source._tails.values():
        tail.close()


def test_lines_that_come_one_by_one_are_all_known(path: Path) -> None:
    """What one read brings may be little, and the same again."""
    tail = reading(path, LONG + "one\n")
    for _ in range(3):
        with path.open("a") as file:
            file.write("ok\n")
        tail.read(0)
    path.write_text(LONG + "two\n" + "ok\n" * 9)
    assert tail.verdict() is Verdict.REPLACED
    tail.close()


async def test_another_file_with_the_inode_and_head_of_a_known_one_is_read_from_its_beginning(
    path: Path,
) -> None:
    write(path, LONG + "one\n")
    state = read_to(path, len(LONG) + 4)
    write(path, LONG + "two\nand more\n")
    source = source_of(path, [state])
    await source._discover()
    assert [tail.lines.position for tail in source._tails.values()] == [0]
    assert source._generations.lost == [state]
    for tail in source._tails.values():
        tail.close()


@pytest.mark.parametrize("marked", [True, False])
async def test_content_replaced_before_anything_was_read_on_is_noticed(
    path: Path, marked: bool
) -> None:
    """After a restart, while the source waits for room; also by an earlier version's checkpoint."""
    write(path, LONG + "one\n")
    state = read_to(path, len(LONG) + 4)
    state.mark = state.mark if marked else None
    source = source_of(path, [state])
    await source._discover()
    [tail] = source._tails.values()
    assert (tail.lines.position, tail.verdict()) == (len(LONG) + 4, Verdict.SAME)
    write(path, LONG + "two\nand more\n")
    assert tail.verdict() is Verdict.REPLACED
    tail.close()


async def test_what_is_acknowledged_after_a_source_ended_is_known_by_what_it_read(
    path: Path,
) -> None:
    """Nothing of it was when its file was open."""
    write(path, LONG + "one\n")
    source = source_of(path, [])
    await source._discover()
    [tail] = source._tails.values()
    tail.read(0)
    await source.stop()
    await source.run()
    source._courier.handle(Read("file/2", len(LONG) + 4))
    write(path, LONG + "two\nand more\n")
    later = source_of(path, source.states)
    await later._discover()
    assert [tail.lines.position for tail in later._tails.values()] == [0]
    for tail in later._tails.values():
        tail.close()


async def test_a_file_that_did_not_change_is_not_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, LONG)
    source = source_of(path, [read_to(path, len(LONG))])
    await source._discover()
    assert len(source.states) == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", refuse)
        await source._discover()
        [state] = source.states
    assert source._ledger["file"].notes["files_unreadable"] == 0
    assert state.mark is not None
    for tail in source._tails.values():
        tail.close()


async def test_what_is_unread_of_a_file_goes_on_in_a_compressed_one_with_its_inode(
    path: Path,
) -> None:
    """The file's number is the compressed one's by now, which is no log itself."""
    state = read_to(path, 4)
    compressed = compress(path, b"three\n")
    state.device, state.inode = compressed.st_dev, compressed.st_ino
    source = source_of(path, [state])
    await source._discover()
    assert [(s.generation, s.position) for s in source.states] == [(1, 4)]
    while source._seek():
        assert source._generations.lost == [state]
    [tail] = source._tails.values()
    _, lines, at_end = tail.read(0)
    assert ([line.text for line in lines], at_end) == ([b"two", b"three"], True)
    assert [s.generation for s in source.states] == [1]
    tail.close()
    source._search.close()


async def test_what_is_known_of_a_file_comes_with_its_position(path: Path) -> None:
    """Not of what took its place unseen."""
    source = source_of(path, [])
    await source._discover()
    source._courier.handle(Read("file/2", 6))
    [state] = source.states
    marked = Mark(8, modified_ns(path), 6, 6, head_hash(b"one\ntw"))
    assert (state.position, state.mark) == (6, marked)
    write(path, "other content\n")
    source._courier.handle(Read("file/2", 8))
    [state] = source.states
    assert (state.position, state.mark) == (8, marked)
    for tail in source._tails.values():
        tail.close()


async def test_what_stands_behind_a_closed_files_number_is_not_taken_for_it(path: Path) -> None:
    """A source that ended is asked for its positions until another takes them over."""
    source = source_of(path, [])
    await source._discover()
    [tail] = source._tails.values()
    tail.read(0)
    number = tail.descriptor
    await source.stop()
    await source.run()  # which closes what it has
    source._courier.handle(Read("file/2", 6))
    [before] = source.states
    marked = before.mark
    assert marked == Mark(8, modified_ns(path), 8, 8, head_hash(b"one\ntwo\n"))
    other = path.with_name("other")
    other.write_text("something else\n")
    descriptor = os.open(other, os.O_RDONLY)
    if descriptor != number:
        os.dup2(descriptor, number)
    try:
        source._courier.handle(Read("file/2", 8))
        [state] = source.states
        assert (state.position, state.mark, source.lag_bytes) == (8, marked, 0)
        source.hand_over()
    finally:
        for one in {descriptor, number}:
            os.close(one)


async def test_a_search_that_goes_on_lets_others_have_their_turn(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(path.with_name("none"), [])
    monkeypatch.setattr(source, "_seek", lambda: True)
    running = asyncio.create_task(source.run())
    await asyncio.sleep(0)
    await source.stop()
    async with asyncio.timeout(20):
        await running


async def test_a_compressed_one_that_breaks_is_given_back_and_a_good_one_read(
    path: Path,
) -> None:
    state = read_to(path, 4)
    compress(path, b"three\n")
    compressed = path.with_name("app.log.1.gz")
    whole = compressed.read_bytes()
    write(path, "later\n")
    source = source_of(path, [state])
    await source._discover()
    while source._seek():
        pass
    assert [s.generation for s in source.states] == [1, 2], "the oldest first"
    os.truncate(compressed, 10)  # the header
    later = next(tail for tail in source._tails.values() if tail.state is not state)
    later.close()
    del source._tails[later.key]
    tail = next(iter(source._tails.values()))
    source._courier.handle(Read("file/1", 3))
    assert not await source._read_round()
    assert source._generations.lost == [], "what it gave is not in the log yet"
    source._courier.handle(Read("file/1", 4))
    assert not await source._read_round()
    assert source._generations.lost == [state]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(tail.descriptor)
    compressed.write_bytes(whole)
    while source._seek():
        pass
    [tail] = source._tails.values()
    _, lines, _ = tail.read(0)
    assert [line.text for line in lines] == [b"two", b"three"]
    tail.close()
    source._search.close()


async def test_a_name_beside_what_a_link_leads_to_is_found(path: Path) -> None:
    link, target = linked(path)
    state = read_to(target, 4)
    state.path = str(link)
    target.rename(target.with_name("0.log.20260101"))
    source = source_of(link, [state])
    await source._discover()
    [tail] = source._tails.values()
    assert tail.lines.position == 4
    tail.close()


def linked(path: Path) -> tuple[Path, Path]:
    """The file in a directory of its own, and a link to it in another."""
    link, target = path.with_name("links") / "app.log", path.with_name("pods") / "0.log"
    for one in (link, target):
        one.parent.mkdir()
    path.rename(target)
    link.symlink_to(target)
    return link, target


def modified_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


def write(path: Path, text: str) -> None:
    path.write_text(text)


def read_to(path: Path, position: int) -> FileState:
    """What a checkpoint has of a file."""
    state = Generations().begin("file", found(path), str(path))
    state.position = position
    tail = Tail(state, os.open(path, os.O_RDONLY), LineCutter(1000, position=position))
    tail.mark(position)
    tail.close()
    return state


def compress(path: Path, more: bytes) -> os.stat_result:
    compressed = path.with_name(f"{path.name}.1.gz")
    compressed.write_bytes(gzip.compress(path.read_bytes() + more))
    path.unlink()
    return compressed.stat()


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("three\n")


def refuse(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
