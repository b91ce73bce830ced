"""Lines of files that match patterns, followed through every kind of rotation.

The file is its own spool: nothing is copied, and the position that a restart begins at moves only
when logd has acknowledged what lies before it. A file that was renamed or removed is read to its
end and let go only when all of it is in the log. A file that was truncated (`copytruncate`) or
replaced in place begins a new generation. One that rotation compressed before it was read is read
on in what it left.

Polling is the truth, and works on every file system. Where inotify reports changes, a round looks
only at the files that were written to and at those that something is due of; every `_SWEEP_NS`, and
when a name came or went, one looks at everything.

A file that no pattern of the configuration names any more is let go, wherever reading stopped; one
that rotation renamed is read to its end under the name by which it was known. Files that are met
together are read oldest first. No more files are open at once than the process's budget allows:
see `penstock.collector.descriptors`.
"""

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import structlog
from typing_extensions import override

from penstock.base.clock import Clock
from penstock.collector.decode.line_rules import OnError, rules_of
from penstock.collector.decode.lines import (
    LineContext,
    PlainLines,
    decode_line,
    is_structured,
    printable,
)
from penstock.collector.decode.shapes import Made, MadeTogether, together
from penstock.collector.delivery.core import Read
from penstock.collector.delivery.pipeline import Pipeline
from penstock.collector.delivery.publisher import Sender
from penstock.collector.descriptors import OUT_OF_DESCRIPTORS, Descriptors
from penstock.collector.ledger import Ledger
from penstock.collector.limits import LINE_BYTES_MAX, STRUCTURED_BYTES_MAX
from penstock.collector.sources.containers.docker import Containers
from penstock.collector.sources.containers.file_facts import ContainerFacts, FileFacts, service_of
from penstock.collector.sources.containers.pods import Pods
from penstock.collector.sources.files.compressed import CompressedTail, Names, Search
from penstock.collector.sources.files.discovery import Patterns, age_of, family_of
from penstock.collector.sources.files.identity import FileState, Generations, Verdict
from penstock.collector.sources.files.settings import FileSettings
from penstock.collector.sources.files.tail import Tail, look, make_tail, open_to_read, read_span
from penstock.collector.sources.files.watcher import Watcher
from penstock.collector.sources.line_framing import Line, TextLines, parts_of
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.transforms.graph.graph import Chunk

_SAVE_RETRY_S: Final = 1.0
_NAMED_MAX: Final = 10
_SWEEP_NS: Final = 30 * 10**9
"""Between two looks at everything where inotify reports changes, which does not report all."""
_DIRECTORIES_NS: Final = 60 * 10**9
"""Between two looks at which directories can be read."""


class FileSource(Source):
    """Follows the files of one configuration section.

    Args:
        save: Makes the checkpoint durable, with the generations begun since; whether it could.
        first_time: Nothing is known of this source: `start_at: end` applies.
        descriptors: Budget of open files.
        node: This machine's name in Kubernetes, unless the section names another.
    """

    settings = FileSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(
            settings,
            context.resource,
            context.generations,
            pipeline=context.pipeline,
            sender=context.sender,
            ledger=context.ledger,
            clock=context.clock,
            save=context.save,
            first_time=context.name not in context.known,
            descriptors=context.descriptors,
            node=context.node,
        )

    def __init__(  # noqa: PLR0913 - what it reads, and what it feeds
        self,
        section: FileSettings,
        resource: Mapping[str, Any],
        generations: Generations,
        *,
        pipeline: Pipeline,
        sender: Sender,
        ledger: Ledger,
        clock: Clock,
        save: Callable[[], Awaitable[bool]],
        first_time: bool,
        descriptors: Descriptors,
        node: str = "",
    ) -> None:
        self.name = section.name or section.type
        self._section = section
        self._rules = rules_of(section.line_options())
        self._patterns = Patterns(section.include, section.exclude)
        self._resource = {**resource, "service.name": section.service}
        self._generations = generations
        self._pipeline = pipeline
        self._sender = sender
        self._ledger = ledger
        self._clock = clock
        self._save = save
        self._descriptors = descriptors
        self._from_end = first_time and section.start_at == "end"
        self._tails: dict[tuple[int, int], Tail] = {}
        self._retiring: dict[str, int] = {}
        self._complained: set[str] = set()
        self._kept: set[Path] = set()
        self._directories_due_ns = 0
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._sweep_due_ns = 0
        self._active: set[tuple[int, int]] = set()
        self._polled_ns = 0
        self.rounds = 0
        """Grows with everything that may change what `states` returns, but for the delivery."""
        self._failed = False
        self._is_renamed = False
        self._log = structlog.get_logger().bind(source=self.name)
        self._containers: list[ContainerFacts] = []
        if section.kubernetes is not None:
            self._containers.append(
                Pods(section.kubernetes, node, source=self.name, note=self._note, clock=clock)
            )
        if section.docker is not None:
            self._containers.append(
                Containers(section.docker, source=self.name, note=self._note, clock=clock)
            )
        self._search = Search(
            section,
            self._note,
            self._complain,
            self._log,
            descriptors,
            is_held=lambda origin: sender.delivery.held_at(origin) is not None,
        )
        self._watcher = Watcher(self._wake.set, self._log)

    @override
    async def start(self) -> None:
        """Do nothing: files may come later."""

    @override
    async def run(self) -> None:
        asking = [asyncio.create_task(one.run()) for one in self._containers]
        try:
            self._let_go_unnamed()
            self._tell_unread()
            everything = True
            while not self._stopping.is_set():
                more = await (self.poll() if everything else self._poll_active())
                if everything:
                    self._watch_directories()
                if more:
                    await asyncio.sleep(0)  # others have their turn, whatever there is to look at
                else:
                    await self._pause()
                everything = self._is_everything_due()
        finally:
            for task in asking:
                task.cancel()
            self._search.close()
            self._watcher.close()
            for tail in self._tails.values():
                self._mark(tail, tail.lines.position)  # its position moves up to there without it
                tail.close()

    async def poll(self) -> bool:
        """Find files, read each once, let go of what is done; whether more is there at once."""
        self.rounds += 1
        self._failed = self._is_renamed = False
        self._polled_ns = self._clock.monotonic_ns()
        await self._discover()
        self._from_end = False
        more = self._seek()
        self._active = {*self._tails}
        return await self._read_round() or more

    async def _poll_active(self) -> bool:
        """Read files that were written to, and those that something is due of."""
        self.rounds += 1
        await self._watch_contents([self._tails[key] for key in self._active & {*self._tails}])
        more = self._seek()
        self._active &= {*self._tails}
        return await self._read_round() or more

    @override
    async def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    @property
    def states(self) -> list[FileState]:
        """Every known file, read up to what is done or held, oldest first; for the checkpoint."""
        self._set_positions()
        waiting = (state for state in self._generations.waiting if state.source == self.name)
        states = [*waiting, *(tail.state for tail in self._tails.values())]
        return sorted(states, key=lambda state: state.generation)

    def _set_positions(self) -> None:
        delivery = self._sender.delivery
        for tail in self._tails.values():
            tail.state.position = delivery.passed(tail.state.origin)
            self._mark(tail, tail.state.position)

    def _mark(self, tail: Tail, position: int) -> None:
        """Know the file by what is before a position, unless more of it was read before a kill."""
        noted = self._sender.delivery.noted(tail.state.origin)
        if position >= max(noted.values(), default=0):
            with contextlib.suppress(OSError):
                tail.mark(position)

    def hand_over(self) -> None:
        """Leave what is known of the files to the source that comes next; all read is done."""
        self.rounds += 1
        self._set_positions()
        self._generations.add(tail.state for tail in self._tails.values())
        self._tails.clear()
        self._retire()

    @property
    def tails(self) -> list[Tail]:
        return [*self._tails.values()]

    @property
    def lag_bytes(self) -> int:
        """Bytes in files that were not read yet."""
        lag = 0
        for tail in self._tails.values():
            with contextlib.suppress(OSError):
                lag += max(0, tail.size - tail.lines.position)
        return lag

    @property
    def partial_bytes(self) -> int:
        """Bytes at the ends of files that wait for a newline."""
        return sum(tail.partial_bytes for tail in self._tails.values())

    async def _pause(self) -> None:
        """Wait for an event, or until something is due."""
        wait_s = self._section.poll_ms / 1000
        is_due = self._failed or self._is_renamed or self._active or self._retiring
        if self._watcher.is_on and not is_due and not self._has_lost:
            wait_s = max(0.0, (self._sweep_due_ns - self._clock.monotonic_ns()) / 1e9)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        if not self._stopping.is_set():
            self._wake.clear()

    # What changed.

    def _watch_directories(self) -> None:
        """Watch where files are and may come; called after a look at everything."""
        now_ns = self._clock.monotonic_ns()
        if not self._section.inotify or (now_ns < self._sweep_due_ns and not self._watcher.is_on):
            return
        begun = self._watcher.watch(self._directories())
        self._sweep_due_ns = now_ns if begun else now_ns + _SWEEP_NS

    def _directories(self) -> set[str]:
        """Return the directories in which names may appear, and those that links lead to."""
        paths = (os.path.realpath(tail.state.path) for tail in self._tails.values())
        return self._patterns.directories() | {path.rpartition("/")[0] or "/" for path in paths}

    def _is_everything_due(self) -> bool:
        """Return whether a round must look at all files; note which files were written to."""
        if not self._watcher.is_on or self._failed:
            return True
        changes = self._watcher.take()
        self._is_renamed |= changes.names
        for path in changes.written:
            try:
                status = os.stat(path)  # noqa: PTH116 - many
            except OSError:
                self._is_renamed = True
                continue
            key = (status.st_dev, status.st_ino)
            if key in self._tails:
                self._active.add(key)
            else:
                self._is_renamed |= self._patterns.name(path)
        now_ns = self._clock.monotonic_ns()
        is_rested = now_ns - self._polled_ns >= self._section.poll_ms * 1_000_000
        return (self._is_renamed and is_rested) or now_ns >= self._sweep_due_ns

    @property
    def _has_lost(self) -> bool:
        return any(state.source == self.name for state in self._generations.lost)

    # Finding files.

    def _let_go_unnamed(self) -> None:
        """Forget known files that no pattern names any more; reading goes where patterns say."""
        for state in self._generations.waiting:
            if state.source == self.name and not self._patterns.name(state.path):
                self._generations.forget(state)
                self._pipeline.forget(state.origin)
                self._note("files_not_named")
                self._log.warning(
                    "file_unmatched",
                    path=state.path,
                    position=state.position,
                    reason="no pattern of the source names it any more",
                )

    def _tell_unread(self) -> None:
        """Say which compressed files the patterns name: nothing begins in one."""
        compressed = [str(path) for path in self._patterns.compressed()]
        self._ledger[self.name].notes["compressed_not_read"] = len(compressed)
        if compressed:
            self._log.warning(
                "compressed_files_not_read",
                count=len(compressed),
                paths=compressed[:_NAMED_MAX],
                fix="decompress those that the source shall read from the beginning",
            )

    def _look_at_directories(self) -> None:
        """Say once of each directory within the patterns that it cannot be read."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._directories_due_ns:
            return
        self._directories_due_ns = now_ns + _DIRECTORIES_NS
        for path in self._patterns.unreadable():
            if path not in self._complained:
                self._complained.add(path)
                self._note("directories_unreadable")
                self._log.warning(
                    "directory_unreadable",
                    path=path,
                    fix="let the collector's user read and search it, or exclude it",
                )

    async def _discover(self) -> None:
        begun = False
        self._look_at_directories()
        for path, begin in self._unopened():
            begun |= self._meet(path, begin=begin)
        begun |= await self._watch_contents([*self._tails.values()], save=False)
        if begun:
            await self._save_surely()

    async def _watch_contents(self, tails: Collection[Tail], *, save: bool = True) -> bool:
        """Begin new generations of files whose content is another; whether one began."""
        begun = False
        names = Names()
        for tail in tails:
            try:
                begun |= await self._watch(tail)
            except OSError as error:
                if not (tail.set_aside and isinstance(error, FileNotFoundError)):
                    self._complain(tail.state.path, error)
                else:
                    self._find_again(tail, names)
        if begun and save:
            await self._save_surely()
        return begun

    def _unopened(self) -> list[tuple[Path, bool]]:
        """Files that are there and not open, oldest first, and whether one may begin there."""
        found: dict[tuple[int, int], tuple[Path, os.stat_result, bool]] = {}
        for path in self._patterns.found():
            status = self._regular(path)
            if status is None:
                continue
            key = (status.st_dev, status.st_ino)
            tail = self._tails.get(key)
            if tail is None:
                found.setdefault(key, (path, status, True))
            elif not tail.has_name(tail.state.path):
                tail.state.path = str(path)
        for path in self._renamed(found):
            status = self._regular(path)
            if status is not None:
                found.setdefault((status.st_dev, status.st_ino), (path, status, False))
        known = self._generations.known
        due = [
            (path, status, begin)
            for key, (path, status, begin) in found.items()
            if key not in self._tails and (status.st_size or (self.name, *key) in known)
        ]
        if self._section.ignore_older_s is not None:
            since_ns = self._clock.unix_ns() - int(self._section.ignore_older_s * 1e9)
            young = [
                one
                for one in due
                if one[1].st_mtime_ns >= since_ns
                or (self.name, one[1].st_dev, one[1].st_ino) in known
            ]
            self._ledger[self.name].notes["files_too_old"] = len(due) - len(young)
            due = young
        due.sort(key=lambda one: age_of(one[0], one[1].st_mtime_ns))
        return [(path, begin) for path, _, begin in due]

    def _regular(self, path: Path) -> os.stat_result | None:
        """Return the status of a path's file; None when it is none, or cannot be found out now."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return None  # it went between the listing and now
        except OSError as error:
            self._complain(str(path), error)
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def _find_again(self, tail: Tail, names: Names) -> None:
        """Open a file that was closed for others under the name that rotation gave it since."""
        try:
            path = names.of(tail.state)
            if path is not None:
                tail.reopen(path)
            else:
                self._lose_again(tail)
        except OSError as error:
            self._complain(tail.state.path, error)

    async def _save_surely(self) -> None:
        """Return when the checkpoint is durable: unsaved generations must not be published."""
        while True:
            self.rounds += 1
            if await self._save():
                return
            await asyncio.sleep(_SAVE_RETRY_S)

    def _meet(self, path: Path, *, begin: bool) -> bool:
        """Open a file that is not open; true when a generation began that must be saved."""
        try:
            return self._open(path, begin=begin)
        except FileNotFoundError:
            return False  # it went between the listing and now
        except OSError as error:
            self._complain(str(path), error)
            return False

    def _complain(self, path: str, error: OSError) -> None:
        """Say once that a file cannot be read; it is tried again at every poll.

        Where descriptors are out that may be so of thousands: it is said once in 60 s.
        """
        self._failed |= error.errno != errno.EACCES  # a permission that is given makes an event
        if error.errno in OUT_OF_DESCRIPTORS:
            if self._descriptors.short("files"):
                self._note("files_unreadable")
                self._log.warning("file_open_failed", path=path, error=str(error))
        elif path not in self._complained:
            self._complained.add(path)
            self._note("files_unreadable")
            self._log.warning("file_read_failed", path=path, error=error.strerror)

    def _note(self, what: str) -> None:
        self._ledger[self.name].notes[what] += 1

    def _open(self, path: Path, *, begin: bool) -> bool:
        self._descriptors.make_room()
        descriptor = open_to_read(path)
        try:
            found = look(descriptor)
            marked = read_span(descriptor, self._generations.marked(self.name, found))
            found = replace(found, marked=marked)
            verdict, state = self._generations.recognise(self.name, found)
        except BaseException:
            os.close(descriptor)
            raise
        if verdict is Verdict.NOT_YET or not (begin or verdict is Verdict.SAME):
            os.close(descriptor)
            return False
        begun = state is None
        if state is None:
            state = self._generations.begin(self.name, found, str(path))
            state.position = found.size if self._from_end else 0
        elif begin:  # a name that rotation gave it is not the one that a pattern named
            state.path = str(path)
        self._follow(make_tail(self._section, state, descriptor, self._descriptors))
        self._log.info(
            "file_opened", path=str(path), generation=state.generation, position=state.position
        )
        return begun

    def _follow(self, tail: Tail) -> None:
        self._tails[tail.key] = tail
        self._active.add(tail.key)
        self._sender.handle(Read(tail.state.origin, tail.state.position))

    def _renamed(self, found: Collection[tuple[int, int]]) -> Iterator[Path]:
        """After a restart, known files under the names that rotation gave them."""
        names = Names()
        for state in list(self._generations.known.values()):
            if state.source != self.name or (state.device, state.inode) in found:
                continue
            try:
                path = names.of(state)
            except OSError as error:
                self._complain(str(Path(state.path).parent), error)
                continue
            if path is None:
                self._generations.lose(state)
            else:
                yield path

    def _seek(self) -> bool:
        """Look for what is unread of files that are gone; true when there is more to look at."""
        lost = [state for state in self._generations.lost if state.source == self.name]
        if not lost:
            self._search.close()
            return False
        decided, more = self._search.seek(lost, self._clock.monotonic_ns())
        known = {state.generation for state, _ in decided}
        self._generations.lost = [
            state for state in self._generations.lost if state.generation not in known
        ]
        for state, tail in decided:
            if tail is None:
                self._pipeline.forget(state.origin)
            else:
                self._follow(tail)
        return more

    async def _watch(self, tail: Tail) -> bool:
        """Begin a new generation where the content is not the one that was being read."""
        verdict = tail.verdict()
        if verdict is Verdict.SAME:
            return False
        found = look(tail.opened())
        self._note(f"files_{verdict.name.lower()}")
        self._log.info("file_restarted", path=tail.state.path, verdict=verdict.name.lower())
        await self._take(tail, *tail.flush_all())
        self._retiring[tail.state.origin] = tail.position
        if found.size == 0:
            tail.close()
            del self._tails[tail.key]  # met again once there is something in it
            return False
        state = self._generations.begin(self.name, found, tail.state.path)
        descriptor = tail.give_up()
        self._follow(make_tail(self._section, state, descriptor, self._descriptors))
        return True

    # Reading files.

    async def _read_round(self) -> bool:
        """One read of each active file; true when some file has more."""
        more = False
        behind: set[str] = set()
        tails = [self._tails[key] for key in self._active]
        for tail in sorted(tails, key=lambda tail: tail.state.generation):
            if self._stopping.is_set():
                more = False
                break
            family = family_of(Path(tail.state.path))
            if family in behind:
                continue  # an older file of the same rotation comes first
            if self._facts_of(tail.state.path) is None:
                continue  # what its container is comes within a moment
            await self._sender.wait_for_room()
            try:
                now_ns = self._clock.monotonic_ns()
                start, lines, at_end = tail.read(now_ns)
            except OSError as error:
                if not (tail.set_aside and isinstance(error, FileNotFoundError)):
                    self._complain(tail.state.path, error)  # else it is looked for by its new name
                if isinstance(tail, CompressedTail) and tail.failed:
                    self._lose_again(tail)
                continue
            await self._take(tail, start, lines)
            if self._is_behind(tail):
                behind.add(family)
            more |= not at_end
            if at_end:
                await self._end_round(tail, now_ns)
        self._retire()
        self.rounds += 1  # a checkpoint may have been saved meanwhile
        return more

    async def _end_round(self, tail: Tail, now_ns: int) -> None:
        """Do what is due of a file that was read to its end."""
        await self._flush_waiting(tail, now_ns)
        await self._let_go(tail)
        if not self._is_restless(tail):
            self._active.discard(tail.key)

    def _is_restless(self, tail: Tail) -> bool:
        """Return whether a file needs a look although nobody writes to it."""
        return tail.key in self._tails and (
            tail.orphaned_ns is not None
            or tail.lines.waits
            or (tail.joiner is not None and tail.joiner.start is not None)
            or bool(tail.catches_up_to)
            or isinstance(tail, CompressedTail)
        )

    def _is_behind(self, tail: Tail) -> bool:
        """Return whether records that the file had when it was opened are not in the log yet."""
        if tail.catches_up_to:
            done = self._sender.delivery.passed(tail.state.origin) >= tail.position
            if done and tail.lines.position >= tail.catches_up_to:
                tail.catches_up_to = 0
        return bool(tail.catches_up_to)

    async def _flush_waiting(self, tail: Tail, now_ns: int) -> None:
        """Hand out what waited for its other lines, or for its newline, for as long as it may."""
        section = self._section
        # Container runtimes write whole lines: what waits there is being written.
        if tail.lines.waits and section.format == "plain" and section.flush_partial_s is not None:
            if now_ns - tail.grew_ns >= section.flush_partial_s * 1e9:
                self._note("lines_flushed")
                await self._take(tail, *tail.flush_all())
            return
        waited_ns = int(section.join_timeout_s * 1e9)
        await self._take(tail, *tail.flush_events(now_ns - waited_ns))

    def _lose_again(self, tail: Tail) -> None:
        """Drop a file that cannot be read on, once its records are in the log, and look again."""
        position = self._sender.delivery.passed(tail.state.origin)
        if position < tail.position:
            return
        tail.state.position = position
        tail.close()
        del self._tails[tail.key]
        if isinstance(tail, CompressedTail):
            self._search.release(tail.stamp)
        self._generations.lost.append(tail.state)

    async def _take(self, tail: Tail, start: int, lines: Sequence[Line]) -> None:
        origin = tail.state.origin
        if lines:
            now_ns = self._clock.unix_ns()
            path = tail.state.path
            context = LineContext(
                self._resource_of(path, len(lines)),
                {"log.file.path": printable(path), "log.file.name": printable(Path(path).name)},
                self._rules,
            )
            lines = self._bounded(lines)
            self._ledger.read(self.name, len(lines))
            made, ended = self._decode_all(tail, lines, context, now_ns)
            ends = lines.ends if isinstance(lines, TextLines) else [line.end for line in lines]
            await self._pipeline.take(
                Chunk(
                    origin=origin,
                    source=self.name,
                    start=start,
                    sequences=ends,
                    lines=[*filter(None, made.lines)],
                    resource=b"",
                    observed_ns=now_ns,
                    verdicts=made.verdicts,
                    ended=ended,
                    parts=made.parts,
                )
            )
        if tail.joiner is not None and tail.joiner.malformed:
            self._ledger[self.name].notes["lines_malformed"] += tail.joiner.malformed
            tail.joiner.malformed = 0
        if tail.lines.replaced:
            self._ledger[self.name].notes["lines_bytes_replaced"] += tail.lines.replaced
            tail.lines.replaced = 0
        if tail.position != tail.reported:
            tail.reported = tail.position
            self._sender.handle(Read(origin, tail.position))

    def _facts_of(self, path: str) -> FileFacts | None:
        """Return what is known of a file's container; None while it is being asked for."""
        attributes: dict[str, Any] = {}
        is_whole = True
        for one in self._containers:
            found = one.facts(path)
            if found is None:
                return None
            attributes |= found.attributes
            is_whole &= found.is_whole
        return FileFacts(attributes, is_whole)

    def _resource_of(self, path: str, count: int) -> Mapping[str, Any]:
        """Return the resource of so many records of a file."""
        if not self._containers:
            return self._resource
        facts = self._facts_of(path)
        if facts is None or not facts.is_whole:
            self._ledger[self.name].notes["records_not_enriched"] += count
        attributes = {} if facts is None else facts.attributes
        own = {**self._resource, **attributes}
        if self._section.service == "from_container":
            own["service.name"] = service_of(attributes, path)
        return own

    def _bounded(self, lines: Sequence[Line]) -> Sequence[Line]:
        """Lines of which each is a record; those that were cut are counted."""
        truncated = 0
        if isinstance(lines, TextLines):
            texts = lines.texts
        else:
            texts = [line.text for line in lines]
            truncated = sum(line.truncated for line in lines)
        self._ledger[self.name].notes["lines_truncated"] += truncated
        return self._split(lines) if max(map(len, texts)) > LINE_BYTES_MAX else lines

    def _split(self, lines: Sequence[Line]) -> list[Line]:
        """Lines that no record can hold as several; structured ones are taken apart instead."""
        found: list[Line] = []
        for line in lines:
            size, whole = len(line.text), not (line.truncated or line.continued)
            fits = size <= LINE_BYTES_MAX or (whole and size <= STRUCTURED_BYTES_MAX)
            if fits and (size <= LINE_BYTES_MAX or is_structured(line.text, self._rules)):
                found.append(line)
            else:
                self._note("lines_split")
                found += parts_of(line, LINE_BYTES_MAX)
        return found

    def _decode_all(
        self, tail: Tail, lines: Sequence[Line], context: LineContext, now_ns: int
    ) -> tuple[MadeTogether, dict[int, OnError]]:
        """Lines as records, and what becomes of records without a time, by ends."""
        plain = PlainLines(context, now_ns)
        untried = None if isinstance(lines, TextLines) else plain
        made = together([None] * len(lines))
        if isinstance(lines, TextLines):
            with contextlib.suppress(Exception):  # decoded one by one, which counts and logs it
                made = plain.make_together(lines.texts)
        ended: dict[int, OnError] = {}
        are_all_made = all(made.lines)
        tail.ended = "pass" if are_all_made else tail.ended
        for place, line in () if are_all_made else enumerate(lines):
            end: OnError = "pass"
            if made.lines[place] is None:
                (record, verdict), end = self._decode(line, untried, context, now_ns)
                made.put(place, record, verdict)
            if not line.continued:
                tail.ended = end
            if tail.ended != "pass":
                ended[line.end] = tail.ended
        return made, ended

    def _decode(
        self, line: Line, plain: PlainLines | None, context: LineContext, now_ns: int
    ) -> tuple[Made, OnError]:
        """A line as a record, the verdict on it, if that is known, and what becomes of it.

        It stays as it is when it cannot be made one, for the validator to refuse.
        """
        try:
            if plain is not None and line.is_plain:
                made = plain.make(line.text)
                if made is not None:
                    return made, "pass"
            record, end = decode_line(
                line.text,
                context,
                now_ns,
                truncated=line.truncated,
                written_ns=line.time_ns,
                stream=line.stream,
                continued=line.continued,
                own=line.attributes,
                notes=self._ledger[self.name].notes,
            )
        except Exception:  # noqa: BLE001 - whatever fails, the next line goes on
            self._note("lines_undecodable")
            self._log.exception("line_decode_failed")
            return (line.text, None), "pass"
        return (record, None), end

    async def _let_go(self, tail: Tail) -> None:
        """Close a file without a name once all of it is in the log and its writer had time."""
        if tail.has_name(tail.state.path):
            tail.orphaned_ns = None
            if self._section.remove_after_s is not None:
                self._remove(tail, self._section.remove_after_s)
            return
        now_ns = self._clock.monotonic_ns()
        if tail.orphaned_ns is None:
            tail.orphaned_ns = now_ns
        if now_ns - tail.orphaned_ns < self._section.rotate_wait_s * 1e9:
            return
        start, lines = tail.flush_all()
        if lines:
            await self._take(tail, start, lines)
            return
        origin = tail.state.origin
        if self._sender.delivery.cursor(origin) >= tail.lines.position:
            self._log.info("rotated_file_finished", path=tail.state.path)
            self._pipeline.forget(origin)
            tail.close()
            del self._tails[tail.key]

    def _remove(self, tail: Tail, after_s: float) -> None:
        """Remove a file that nobody writes to any more once the log has all of it.

        It stays open for a while, like one that somebody else removed, in case that its writer
        still has it open.
        """
        path = Path(tail.state.path)
        try:
            status = tail.status()
            since_ns = self._clock.unix_ns() - int(after_s * 1e9)
            done = self._sender.delivery.cursor(tail.state.origin)
            if done < status.st_size or status.st_mtime_ns > since_ns or path.is_symlink():
                return
            tail.opened()
            path.unlink()
        except OSError as error:
            if path not in self._kept:
                self._kept.add(path)
                self._note("files_not_removed")
                self._log.warning("file_remove_failed", path=str(path), error=error.strerror)
            return
        self._note("files_removed")
        self._log.info("file_removed", path=str(path), position=done)

    def _retire(self) -> None:
        """Forget generations that ended, once they are delivered."""
        delivery = self._sender.delivery
        for origin, position in list(self._retiring.items()):
            if delivery.passed(origin) >= position:
                self._pipeline.forget(origin)
                del self._retiring[origin]
