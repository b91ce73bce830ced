"""Files that cannot be read for a while, or become others: nothing is lost or read twice."""

import asyncio
import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.collector.limits import FILE_READ_BYTES
from penstock.logd.storage import Checkpoint
from tests.support.collector_files import FAR, FilesCollector
from tests.support.privileges import closed

LONG = "".join(f"{number:04} of a long header\n" for number in range(50))
HEADER = LONG.splitlines()


@pytest.fixture
def collector(tmp_path: Path) -> FilesCollector:
    return FilesCollector(tmp_path)


@pytest.fixture
def path(collector: FilesCollector) -> Path:
    made = collector.files / "app.log"
    made.write_text("one\n")
    return made


async def read_before(collector: FilesCollector, records: int) -> None:
    """Let a run have all there is in the log, so many records, and stop."""
    async with collector:
        await collector.poll()
        await collector.stop()
    assert len(collector.bodies) == records


async def test_a_file_that_cannot_be_opened_at_start_keeps_its_position(
    collector: FilesCollector, path: Path
) -> None:
    await read_before(collector, 1)
    append(path, "two\n")
    async with collector:
        with closed(path):
            await collector.poll()
            await collector.poll()
            assert await collector.positions() == {1: 4}
        assert collector.counters() == {"files_unreadable": 1}
        await collector.poll()
        assert await collector.positions() == {1: 8}
    assert collector.bodies == ["one", "two"]


async def test_a_file_that_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    """It was closed for another, and cannot be opened again."""
    collector = FilesCollector(tmp_path, descriptors={"max_files": 1})
    path, other = collector.files / "a.log", collector.files / "b.log"
    path.write_text("one\n")
    other.write_text("other\n")
    async with collector:
        await collector.poll()
        append(path, "two\n")
        with closed(path):
            await collector.poll()
            await collector.poll()
            assert collector.bodies == ["one", "other"]
        assert collector.counters()["files_unreadable"] == 1
        await collector.poll()
    assert collector.bodies == ["one", "other", "two"]


@pytest.mark.parametrize(
    ("text", "then", "counted"),
    [
        (LONG + "one\n", LONG + "two\n", "files_replaced"),
        (LONG + "one\n", LONG + "another\nand more\n", "files_replaced"),
        (LONG + "one\n", LONG + "one\nand more\n", ""),
        (LONG + "one\n", LONG + "one", "files_truncated"),
        ("one\n", "one\nand more\n", ""),
        (LONG + "one\n" + "\0" * 99, LONG + "one\ntwo\n" + "\0" * 95, ""),
        (LONG + "\0" * 2000, LONG + "\0" * 1990 + "ten bytes\n", ""),
        (LONG + "one\n" + "\0" * 99, LONG + "two\n" + "\0" * 99, "files_replaced"),
        (LONG + "one\n", LONG + "\0" * 99 + "two\n", ""),
        (LONG + "\0" * 9 + "ok\n", LONG + "filled 2\nok\n", ""),
        (LONG + "\0" * 9 + "ok\n", LONG + "filled 2\nno\n", "files_replaced"),
    ],
    ids=[
        "other", "other, longer", "written on", "truncated", "short", "room filled",
        "much room filled", "other with room", "hole", "gap filled", "other with a gap",
    ],
)  # fmt: skip
async def test_content_of_an_equal_head_is_known_by_what_was_read_last(
    collector: FilesCollector, path: Path, text: str, then: str, counted: str
) -> None:
    path.write_text(text)
    async with collector:
        await collector.poll()
        path.write_text(then)
        os.utime(path, ns=(1, 1))
        await collector.poll()
        found = {key for key in collector.counters() if key.startswith("files_")}
        assert found == ({counted} if counted else set())
        assert list(await collector.positions()) == [2 if counted else 1]


async def test_a_gap_that_is_filled_while_the_collector_is_stopped_makes_no_other_file(
    collector: FilesCollector, path: Path
) -> None:
    path.write_text(LONG + "\0" * 9 + "ok\n")
    await read_before(collector, len(HEADER) + 1)
    path.write_text(LONG + "filled 2\nok\nand more\n")
    async with collector:
        await collector.poll()
        assert list(await collector.positions()) == [1]
    assert collector.bodies[len(HEADER) + 1 :] == ["and more"]


async def test_lines_that_come_one_by_one_are_all_known(
    collector: FilesCollector, path: Path
) -> None:
    """What one read brings may be little, and the same again."""
    path.write_text(LONG + "one\n")
    async with collector:
        for _ in range(3):
            await collector.poll()
            append(path, "ok\n")
        await collector.poll()
        path.write_text(LONG + "two\n" + "ok\n" * 9)
        await collector.poll()
        assert collector.counters()["files_replaced"] == 1


async def test_another_file_with_the_inode_and_head_of_a_known_one_is_read_from_its_beginning(
    collector: FilesCollector, path: Path
) -> None:
    path.write_text(LONG + "one\n")
    await read_before(collector, len(HEADER) + 1)
    path.write_text(LONG + "two\nand more\n")
    async with collector:
        await collector.poll()
        assert list(await collector.positions()) == [2]
        assert collector.counters() == {"files_gone": 1}, "the rest of the one before"
    assert collector.bodies[len(HEADER) + 1 :] == [*HEADER, "two", "and more"]


@pytest.mark.parametrize("marked", [True, False])
async def test_content_replaced_before_anything_was_read_on_is_noticed(
    collector: FilesCollector, path: Path, marked: bool
) -> None:
    """After a restart; also by an earlier version's checkpoint."""
    path.write_text(LONG + "one\n")
    await read_before(collector, len(HEADER) + 1)
    if not marked:
        checkpoint = Checkpoint(collector.data_dir / "checkpoint")
        document = checkpoint.load()
        assert document is not None
        del document["marks"]
        checkpoint.save(document)
    async with collector:
        await collector.poll()
        assert await collector.positions() == {1: len(LONG) + 4}
        path.write_text(LONG + "two\nand more\n")
        await collector.poll()
        assert collector.counters() == {"files_replaced": 1}
    assert collector.bodies[len(HEADER) + 1 :] == [*HEADER, "two", "and more"]


async def test_what_is_acknowledged_after_a_source_ended_is_known_by_what_it_read(
    collector: FilesCollector, path: Path
) -> None:
    """Nothing of it was when its file was open."""
    path.write_text(LONG + "one\n")
    collector.log.accepts = 0
    async with collector:
        await collector.poll()
        await collector.stop_sources()
        collector.log.accept(FAR)
        await collector.stop()
        path.write_text(LONG + "two\nand more\n")
        await collector.start()
        await collector.poll()
    assert collector.bodies == [*HEADER, "one", *HEADER, "two", "and more"]


async def test_a_file_that_did_not_change_is_not_read(
    collector: FilesCollector, path: Path
) -> None:
    path.write_text(LONG)
    async with collector:
        await collector.poll()
        await collector.poll()
        before = bytes_read()
        unit = bytes_read() - before  # what the question itself reads
        before = bytes_read()
        await collector.poll_once()
        assert bytes_read() - before <= unit + 20


async def test_what_is_unread_of_a_file_goes_on_in_a_compressed_one_with_its_inode(
    collector: FilesCollector, path: Path
) -> None:
    """The file's number is the compressed one's by now, which is no log itself."""
    await read_before(collector, 1)
    path.write_bytes(gzip.compress(b"one\ntwo\nthree\n"))
    path.rename(path.with_name("app.log.1.gz"))
    async with collector:
        await collector.poll()
        assert collector.counters() == {"compressed_read": 1}
        assert (await collector.checkpoint()).next_generation == 2
    assert collector.bodies == ["one", "two", "three"]


async def test_a_rest_in_a_compressed_file_is_read_beside_what_has_the_inode_now(
    collector: FilesCollector, path: Path
) -> None:
    await read_before(collector, 1)
    path.with_name("app.log.1.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    path.write_text("new content\n")
    async with collector:
        await collector.poll()
        append(path, "and more\n")
        await collector.poll()
    assert sorted(collector.bodies) == ["and more", "new content", "one", "two"]


async def test_what_is_known_of_a_file_comes_with_its_position(
    collector: FilesCollector, path: Path
) -> None:
    """Not of what took its place unseen."""
    path.write_text(LONG + "one\n")
    async with collector:
        await collector.poll()
        collector.log.accepts = 0
        append(path, "two\n")
        await collector.poll()
        assert await collector.positions() == {1: len(LONG) + 4}
        path.write_text(LONG + "six\nten\n")
        await collector.deliver(1)
        assert await collector.positions() == {1: len(LONG) + 8}
        await collector.kill()
        collector.log.accept(FAR)
        await collector.start()
        await collector.poll()
    assert collector.bodies == [*HEADER, "one", "two", *HEADER, "six", "ten"]


async def test_what_stands_behind_a_closed_files_number_is_not_taken_for_it(
    collector: FilesCollector, path: Path
) -> None:
    """A source that ended is asked for its positions until another takes them over."""
    path.write_text(LONG + "one\n")
    collector.log.accepts = 0
    async with collector:
        await collector.poll()
        number = next(number for number in descriptors() if is_open_on(number, path))
        await collector.stop_sources()
        other = path.with_name("other")
        other.write_text("something else\n" * 99)
        descriptor = os.open(other, os.O_RDONLY)
        os.dup2(descriptor, number)
        try:
            await collector.deliver(len(HEADER) + 1)
            assert await collector.positions() == {1: len(LONG) + 4}
            assert collector.lag_bytes == 0
        finally:
            for one in {descriptor, number}:
                os.close(one)
        collector.log.accept(FAR)
        await collector.stop()
        append(path, "two\n")
        await collector.start()
        await collector.poll()
    assert collector.bodies == [*HEADER, "one", "two"]


async def test_a_search_that_goes_on_lets_others_have_their_turn(
    collector: FilesCollector, path: Path
) -> None:
    await read_before(collector, 1)
    path.unlink()
    large = gzip.compress(b"one\ntwo\n" + bytes(60 * FILE_READ_BYTES), 1)
    path.with_name("app.log.1.gz").write_bytes(large)
    turns = 0
    async with collector:
        collector.run()
        while not collector.counters():
            await asyncio.sleep(0)
            turns += 1
    assert turns > 20


async def test_a_compressed_one_that_breaks_is_given_back_and_a_good_one_read(
    collector: FilesCollector, path: Path
) -> None:
    numbers = random.Random(1)
    lines = [f"{n} {numbers.randbytes(15_000).hex()}" for n in range(60)]
    await read_before(collector, 1)
    whole = gzip.compress(b"one\n" + "".join(f"{line}\n" for line in lines).encode(), 1)
    compressed = path.with_name("app.log.1.gz")
    compressed.write_bytes(whole)
    written_ns = compressed.stat().st_mtime_ns
    path.unlink()
    path.write_text("later\n")
    collector.log.accepts = 0
    async with collector:
        await until(collector, lambda: collector.counters()["compressed_read"] == 1)
        os.truncate(compressed, 10)  # the header
        await until(collector, lambda: collector.counters()["files_unreadable"] == 1)
        assert 1 < collector.pending < len(lines), "some of it was read"
        for _ in range(5):
            await collector.poll_once()
        assert len([n for n in descriptors() if is_open_on(n, compressed)]) == 1, (
            "what it gave is not in the log yet"
        )
        collector.log.accept(FAR)
        await collector.poll()
        await collector.poll()
        assert [n for n in descriptors() if is_open_on(n, compressed)] == []
        compressed.write_bytes(whole)
        os.utime(compressed, ns=(written_ns, written_ns))
        collector.clock.advance(60)
        await collector.poll()
        assert collector.counters()["compressed_read"] == 2
    assert sorted(collector.bodies) == sorted(["one", "later", *lines])


async def test_a_name_beside_what_a_link_leads_to_is_found(
    collector: FilesCollector, path: Path
) -> None:
    """As Kubernetes links to the logs of containers."""
    target = path.with_name("pods") / "0.log"
    target.parent.mkdir()
    path.rename(target)
    path.symlink_to(target)
    await read_before(collector, 1)
    append(target, "two\n")
    target.rename(target.with_name("0.log.20260101"))
    async with collector:
        await collector.poll()
        assert await collector.positions() == {1: 8}
    assert collector.bodies == ["one", "two"]


async def until(collector: FilesCollector, condition: Callable[[], bool]) -> None:
    """Poll one round at a time."""
    async with asyncio.timeout(60):
        while not condition():
            await collector.poll_once()
            await asyncio.sleep(0)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def bytes_read() -> int:
    """By this process since it began, from whatever."""
    with Path("/proc/self/io").open() as file:
        return int(file.readline().split()[1])


def descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - the name itself


def is_open_on(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except OSError:
        return False
