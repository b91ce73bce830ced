"""What a checkpoint says of files, also while one source hands over to the next."""

import gzip
from pathlib import Path

import pytest

from penstock.collector.sources.files.identity import FileState, Generations
from tests.support.collector_files import FilesCollector
from tests.support.privileges import closed
from tests.support.waiting import wait_until_async


@pytest.mark.parametrize("lost", [True, False])
async def test_a_file_that_waits_during_a_hand_over_is_in_the_checkpoint_once(
    tmp_path: Path, *, lost: bool
) -> None:
    """The one that leaves and its successor both answer for it."""
    collector = FilesCollector(tmp_path)
    waits, read = collector.files / "a.log", collector.files / "b.log"
    waits.write_text("one\n")
    read.write_text("two\n")
    async with collector:
        await collector.poll()
        await collector.stop()
    if lost:  # its rest may be in a compressed one, which cannot be read now
        waits.unlink()
        waits = collector.files / "a.log.1.gz"
        waits.write_bytes(gzip.compress(b"one\nmore\n"))
    read.write_text("two\nthree\n")
    collector.log.accepts = 0
    with closed(waits):
        async with collector:
            collector.run()
            await wait_until_async(lambda: collector.pending == 1)
            await collector.change(collector.section(poll_ms=20))
            assert len(collector.sources.file_sources) == 2
            found = await collector.checkpoint()
    assert [(file.generation, file.position) for file in found.files] == [(1, 4), (2, 4)]


def waiting(generation: int, *, inode: int = 7) -> FileState:
    return FileState("files", generation, 1, inode, "00", 4, "/x.log", position=4)


def test_a_generation_that_stands_twice_in_a_checkpoint_is_one_file() -> None:
    """As versions wrote it that saved during a hand-over."""
    generations = Generations(
        following=3, known=[waiting(1), waiting(1), waiting(2), waiting(2), waiting(1)]
    )
    assert [state.generation for state in generations.known.values()] == [2]
    assert [state.generation for state in generations.lost] == [1]
    generations.add([waiting(1), waiting(2)])
    assert [state.generation for state in generations.waiting] == [1, 2]
