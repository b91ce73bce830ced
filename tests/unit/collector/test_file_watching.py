"""Files that are looked at because inotify reports a change, and files that are not begun or go.

A look at everything comes every 30 s, so what comes sooner came by an event.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.collector.sources.files.discovery import Patterns
from penstock.collector.sources.files.watcher import Changes, Watcher, file_system_of
from tests.support.collector_files import FilesCollector
from tests.support.waiting import wait_until_async

LOG = structlog.get_logger()
SOON_S = 4.0
"""Times the patience of tests this is less than the time between two looks at everything."""


@asynccontextmanager
async def watching(root: Path, **options: Any) -> AsyncIterator[FilesCollector]:
    """A collector that has read `first.log` and looks by itself from then on."""
    collector = FilesCollector(root)
    section = collector.section(**{"poll_ms": 100, **options})
    collector = FilesCollector(root, section)
    (collector.files / "first.log").write_text("first\n")
    async with collector:
        collector.run()
        await has(collector, "first")
        yield collector


async def has(collector: FilesCollector, *bodies: str) -> None:
    await wait_until_async(lambda: {*bodies} <= {*collector.bodies}, within_s=SOON_S)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


async def test_lines_come_long_before_the_next_poll(tmp_path: Path) -> None:
    async with watching(tmp_path, poll_ms=60_000) as collector:
        for number in range(5):
            append(collector.files / "first.log", f"line {number}\n")
            await has(collector, f"line {number}")


async def test_files_come_go_and_are_renamed(tmp_path: Path) -> None:
    async with watching(tmp_path) as collector:
        path = collector.files / "first.log"
        path.rename(collector.files / "first.log.1")
        append(collector.files / "first.log.1", "after the rename\n")
        path.write_text("second\n")
        await has(collector, "after the rename", "second")
        os.truncate(path, 0)
        append(path, "truncated\n")
        await has(collector, "truncated")
        (collector.files / "other.log").write_text("")
        append(collector.files / "other.log", "other\n")
        await has(collector, "other")
    assert len(collector.bodies) == len({*collector.bodies}), "nothing came twice"


async def test_directories_that_come_later_are_watched(tmp_path: Path) -> None:
    files = tmp_path / "files"
    include = [f"{files}/*.log", f"{files}/pods/*/logs/*.log"]
    async with watching(tmp_path, include=include) as collector:
        logs = files / "pods" / "one" / "logs"
        logs.mkdir(parents=True)
        (logs / "0.log").write_text("one\n")
        await has(collector, "one")
        append(logs / "0.log", "two\n")
        await has(collector, "two")


async def test_a_file_behind_a_link_is_watched_where_it_is(tmp_path: Path) -> None:
    """As of Docker's containers below /var/log/pods."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "json.log").write_text("one\n")
    async with watching(tmp_path) as collector:
        (collector.files / "link.log").symlink_to(elsewhere / "json.log")
        await has(collector, "one")
        append(elsewhere / "json.log", "two\n")
        await has(collector, "two")


async def test_events_of_several_lines_end_without_another_write(tmp_path: Path) -> None:
    multiline = {"extends": "java"}
    async with watching(tmp_path, multiline=multiline, join_timeout_s=0.2) as collector:
        append(collector.files / "first.log", "broken\n\tat a.B(C.java)\n")
        await has(collector, "broken\n\tat a.B(C.java)")


async def test_without_inotify_files_are_polled(tmp_path: Path) -> None:
    async with watching(tmp_path, inotify=False) as collector:
        append(collector.files / "first.log", "second\n")
        await has(collector, "second")


async def test_a_directory_that_reports_nothing_is_not_watched() -> None:
    watcher = Watcher(lambda: None, LOG)
    with structlog.testing.capture_logs() as logs:
        assert not watcher.watch(["/proc/self"])
        assert not watcher.watch(["/proc/self"])
    assert not watcher.is_on
    (logged,) = logs
    assert logged["event"] == "files_polled"
    assert "type proc" in logged["reason"]


async def test_a_directory_that_is_gone_ends_the_watch(tmp_path: Path) -> None:
    watcher = Watcher(lambda: None, LOG)
    assert watcher.watch([str(tmp_path)])
    assert not watcher.watch([str(tmp_path)]), "it is watched already"
    assert not watcher.watch([str(tmp_path), str(tmp_path / "gone")])
    assert not watcher.is_on


async def test_changes_are_reported_once(tmp_path: Path) -> None:
    path, news = tmp_path / "a", asyncio.Event()
    path.write_text("")
    watcher = Watcher(news.set, LOG)
    assert watcher.watch([str(tmp_path)])
    append(path, "x")
    await asyncio.wait_for(news.wait(), SOON_S)
    changes = watcher.take()
    assert changes == Changes(frozenset({str(path)}), names=False)
    assert not watcher.take().written
    news.clear()
    path.unlink()
    await asyncio.wait_for(news.wait(), SOON_S)
    assert watcher.take().names
    watcher.close()


async def test_more_events_than_the_kernel_keeps_are_a_reason_to_look_at_everything(
    tmp_path: Path,
) -> None:
    news = asyncio.Event()
    watcher = Watcher(news.set, LOG)
    assert watcher.watch([str(tmp_path)])
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    paths = [tmp_path / "a", tmp_path / "b"]
    with paths[0].open("w") as a, paths[1].open("w") as b:
        await asyncio.wait_for(news.wait(), SOON_S)
        assert watcher.take().names
        news.clear()
        for _ in range(kept // 2 + 1):  # equal events would be one
            os.write(a.fileno(), b"x")
            os.write(b.fileno(), b"x")
    await asyncio.wait_for(news.wait(), SOON_S)
    assert watcher.take() == Changes(frozenset(map(str, paths)), names=True)
    watcher.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/a/b", "nfs4"), ("/a", "ext4"), ("/a/bc", "ext4"), ("/a/b/c/d", "tmpfs"), ("/", "ext4")],
)
def test_a_path_is_on_the_file_system_of_the_nearest_mount(path: str, kind: str) -> None:
    mounts = {"/": "ext4", "/a/b": "nfs4", "/a/b/c": "tmpfs"}
    assert file_system_of(path, mounts) == kind


def test_directories_of_patterns_are_those_in_which_a_name_counts(tmp_path: Path) -> None:
    logs = tmp_path / "pods" / "one" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "pods" / "two").mkdir()

    def found(pattern: str) -> set[str]:
        names = Patterns([f"{tmp_path}/{pattern}"], []).directories()
        return {os.path.relpath(name, tmp_path) for name in names}

    assert found("pods/*/logs/*.log") == {"pods", "pods/one", "pods/two", "pods/one/logs"}
    assert found("app.log") == {"."}
    assert found("missing/app/*.log") == {"."}
    assert found("pods/**/*.log") == {"pods", "pods/one", "pods/two", "pods/one/logs"}


async def test_a_file_that_is_too_old_is_begun_when_it_is_written_to(tmp_path: Path) -> None:
    collector = FilesCollector(tmp_path)
    collector = FilesCollector(tmp_path, collector.section(ignore_older_s=3600))
    old, young = collector.files / "old.log", collector.files / "young.log"
    old.write_text("old\n")
    young.write_text("young\n")
    os.utime(old, (1, 1))
    async with collector:
        await collector.poll()
        assert collector.bodies == ["young"]
        assert collector.counters() == {"files_too_old": 1}
        append(old, "and more\n")
        await collector.poll()
    assert collector.bodies == ["young", "old", "and more"]
    assert not collector.counters()


async def test_a_known_file_is_read_on_however_old_it_is(tmp_path: Path) -> None:
    collector = FilesCollector(tmp_path)
    collector = FilesCollector(tmp_path, collector.section(ignore_older_s=3600))
    path = collector.files / "a.log"
    path.write_text("one\n")
    async with collector:
        await collector.poll()
        await collector.stop()
    append(path, "two\n")
    os.utime(path, (1, 1))
    async with collector:
        await collector.poll()
    assert collector.bodies == ["one", "two"]


async def test_a_file_is_removed_once_the_log_has_all_of_it(tmp_path: Path) -> None:
    collector = FilesCollector(tmp_path)
    collector = FilesCollector(tmp_path, collector.section(remove_after_s=60))
    path, busy = collector.files / "a.log", collector.files / "busy.log"
    path.write_text("one\ntwo\n")
    busy.write_text("three\n")
    os.utime(path, (1, 1))
    async with collector:
        collector.log.accepts = 1
        await collector.poll()
        await collector.poll()
        assert path.exists(), "the log has one of its lines"
        await collector.deliver(5)
        with path.open("a") as writer:
            await collector.poll()
            assert not path.exists()
            assert busy.exists(), "somebody writes to it"
            writer.write("by a writer that has it open\n")
            writer.flush()
            await collector.deliver(5)
            await collector.poll()
            await collector.deliver(5)
        assert collector.counters()["files_removed"] == 1
    assert sorted(collector.bodies) == ["by a writer that has it open", "one", "three", "two"]


async def test_a_link_is_not_removed(tmp_path: Path) -> None:
    collector = FilesCollector(tmp_path)
    collector = FilesCollector(tmp_path, collector.section(remove_after_s=0))
    target = tmp_path / "target"
    target.write_text("one\n")
    os.utime(target, (1, 1))
    (collector.files / "a.log").symlink_to(target)
    async with collector:
        await collector.poll()
        await collector.poll()
    assert (collector.files / "a.log").is_symlink()
