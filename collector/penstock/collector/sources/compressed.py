"""Files that rotation compressed before they were read to their end, read on in what it left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from penstock.collector.core.compressed import Fit, Next, choose
from penstock.collector.core.files import FileState, Verdict
from penstock.collector.core.lines import Line
from penstock.collector.descriptors import Descriptors
from penstock.collector.errors import UndecodableError
from penstock.collector.source_sections import FileSource as FileSection
from penstock.collector.sources.tail import Tail, make_cutter
from penstock.collector.sources.unpacking import (
    ChangedError,
    Look,
    Stamp,
    Stream,
    compressed_in,
    homes,
)

Decided = list[tuple[FileState, Tail | None]]
"""Files for which it is known, each with what reads its rest, if there is any."""


class Search:
    """Looks for what is unread of files that are gone, a step at a time, in their directories.

    Args:
        note: Counts something of the source.
        complain: Says once that something cannot be read.
        log: A structlog logger.
        descriptors: What files may be open at once.
    """

    def __init__(
        self,
        section: FileSection,
        note: Callable[[str], None],
        complain: Callable[[str, OSError], None],
        log: Any,
        descriptors: Descriptors,
    ) -> None:
        self._descriptors = descriptors
        self._section = section
        self._note = note
        self._complain = complain
        self._log = log
        self._looks: dict[Path, Look] = {}
        self._open: Look | None = None
        self._taken: set[Stamp] = set()
        self._homes: dict[int, list[Path]] = {}
        self._by_home: dict[Path, list[Look]] = {}
        self._readable: set[Path] = set()
        self._listed_ns: int | None = None
        self._waits = False

    def seek(self, lost: Sequence[FileState], now_ns: int) -> tuple[Decided, bool]:
        """Take one step.

        Returns:
            What is decided, and whether the next step is worth taking at once.
        """
        if self._list(lost, now_ns):
            self._waits = False
        elif self._waits:
            return [], False
        decided: Decided = []
        alike: list[FileState] = []
        for state in sorted(lost, key=lambda state: -state.position):
            if not self._readable.issuperset(self._homes[state.generation]):
                continue
            todo, look = self._choose(state, now_ns)
            while todo is Next.LOOK:
                assert look is not None
                if self._step(look, lost):
                    return decided, True
                todo, look = self._choose(state, now_ns)
            if todo is Next.ALIKE:
                alike.append(state)
            else:
                decided += self._settle(todo, state, look)
        if not decided:  # else one of these may have been another's
            for state in alike:
                self._tell_alike(state)
                decided += self._settle(Next.GIVE_UP, state, None)
        self._waits = not decided
        return decided, False

    def release(self, stamp: Stamp) -> None:
        """A compressed file could not be read on: what is there now is looked at anew."""
        self._taken.discard(stamp)
        for path in [path for path, look in self._looks.items() if look.stamp == stamp]:
            self._looks.pop(path).close()
        self._listed_ns = None

    def close(self) -> None:
        """Nothing is looked for now."""
        self._open = None
        self._listed_ns = None
        for look in self._looks.values():
            look.close()
        self._looks.clear()
        self._by_home.clear()

    def _settle(self, todo: Next, state: FileState, look: Look | None) -> Decided:
        if todo is Next.GIVE_UP:
            self._give_up(state)
            return [(state, None)]
        if look is not None:
            try:
                return [(state, self._read_on(state, look))]
            except OSError as error:
                self._complain(str(look.path), error)
        return []

    def _list(self, lost: Sequence[FileState], now_ns: int) -> bool:
        """See which compressed files there are; false when that was seen just now."""
        generations = {state.generation for state in lost}
        if (
            self._listed_ns is not None
            and now_ns - self._listed_ns < self._section.poll_ms * 1_000_000
            and generations <= self._homes.keys()
        ):
            return False
        self._listed_ns = now_ns
        self._homes = {state.generation: homes(state) for state in lost}
        self._readable = set()
        found: dict[Path, Look] = {}
        self._by_home = {}
        for directory in sorted({home for some in self._homes.values() for home in some}):
            try:
                for path, stamp in compressed_in(directory, self._complain):
                    look = self._looks.get(path)
                    if look is None or look.stamp != stamp:
                        look = Look(path, stamp, now_ns)
                    elif look.again and now_ns >= look.not_before_ns:
                        look = look.renewed(now_ns)
                    found[path] = look
                    self._by_home.setdefault(directory, []).append(look)
                self._readable.add(directory)
            except OSError as error:
                self._complain(str(directory), error)
        for path, look in self._looks.items():
            if found.get(path) is not look:
                look.close()
        self._looks = found
        return True

    def _candidates(self, state: FileState) -> list[Look]:
        """Each file once, whatever its names, if it may be the one."""
        looks = {
            look.stamp: look
            for home in self._homes[state.generation]
            for look in self._by_home.get(home, ())
            if look.stamp not in self._taken and look.fit(state) is not Fit.OTHER
        }
        return list(looks.values())

    def _choose(self, state: FileState, now_ns: int) -> tuple[Next, Look | None]:
        wait_ns = self._section.rotate_wait_s * 1e9
        looks = self._candidates(state)
        found = {
            str(look.path): look.seen(fresh=now_ns - look.since_ns < wait_ns) for look in looks
        }
        todo, name = choose(state, found, {str(look.path): look.fit(state) for look in looks})
        if todo not in (Next.LOOK, Next.READ):
            for look in looks:
                broken = look.fit(state) in (Fit.BROKEN, Fit.UNKNOWN)
                if broken and not found[str(look.path)].fresh:
                    self._refuse(look, state)
        return todo, self._looks.get(Path(name))

    def _step(self, look: Look, lost: Sequence[FileState]) -> bool:
        """Look on in a file; false when nothing could be read of it now."""
        if self._open is not None and self._open is not look:
            self._open.close()
        self._open = look
        try:
            look.step(
                self._section.decompressed_bytes_max,
                {state.mark.span for state in lost if state.mark is not None},
            )
        except OSError as error:
            self._complain(str(look.path), error)
            look.refuse(error.strerror or str(error), again=True)
            return False
        return True

    def _refuse(self, look: Look, state: FileState) -> None:
        if look.told:
            return
        look.told = True
        self._note("compressed_refused")
        self._log.warning(
            "a compressed file that may have what is unread of another cannot be read; let it be"
            " read, put a whole one in its place, or remove it to give that up",
            path=str(look.path),
            reason=look.reason,
            file=state.path,
            position=state.position,
        )

    def _tell_alike(self, state: FileState) -> None:
        self._note("compressed_alike")
        self._log.warning(
            "several compressed files may have what is unread of another, and nothing tells them"
            " apart; none is read",
            paths=[str(look.path) for look in self._candidates(state)],
            file=state.path,
            position=state.position,
        )

    def _give_up(self, state: FileState) -> None:
        self._note("files_gone")
        self._log.warning(
            "a file is gone since the last run, and no compressed file beside it has its rest",
            path=state.path,
            position=state.position,
        )

    def _read_on(self, state: FileState, look: Look) -> Tail | None:
        if look.length == state.position:
            self._taken.add(look.stamp)
            self._log.info("rotated file is done", path=state.path)
            return None
        self._descriptors.make_room()
        stream = Stream(look.path, look.stamp)
        self._taken.add(look.stamp)
        self._note("compressed_read")
        self._log.info(
            "file goes on in a compressed one",
            path=state.path,
            compressed=str(look.path),
            generation=state.generation,
            position=state.position,
        )
        lines, joiner = make_cutter(self._section, state.position, look.head)
        tail = CompressedTail(
            state,
            stream.descriptor,
            lines,
            joiner,
            stream=stream,
            length=look.length,
            stamp=look.stamp,
            files=self._descriptors,
        )
        self._descriptors.admit(tail)
        return tail


@dataclass(slots=True)
class CompressedTail(Tail):
    """The rest of a file that is gone; its content cannot change.

    Attributes:
        stream: The whole content, from its beginning.
        length: Its bytes.
        stamp: Of the compressed file.
        offset: How many of them were read, or passed over.
    """

    stream: Stream = field(kw_only=True)
    length: int = field(kw_only=True)
    stamp: Stamp = field(kw_only=True)
    offset: int = 0
    failed: str = ""

    @property
    @override
    def key(self) -> tuple[int, int]:
        return -1, self.state.generation  # another file may have the device and inode by now

    @property
    @override
    def size(self) -> int:
        return self.length

    @override
    def verdict(self) -> Verdict:
        return Verdict.SAME

    @override
    def mark(self, end: int) -> None:
        """What the file was known by stays good."""

    @override
    def has_name(self, path: Path) -> bool:
        return False

    @override
    def read(self, now_ns: int) -> tuple[int, list[Line], bool]:
        """As any tail.

        Raises:
            OSError: It is not what it was; what is unread is to be looked for again.
        """
        if self.failed:
            raise ChangedError(self.failed)
        try:
            data, at_end = self.stream.read()
        except (UndecodableError, OSError) as error:
            self.failed = str(error)
            raise ChangedError(self.failed) from error
        passed_over = max(0, self.lines.position - self.offset)
        self.offset += len(data)
        return *self.feed(data[passed_over:], now_ns), at_end

    @override
    def close(self) -> None:
        if self.files is not None:
            self.files.release(self)
        self.stream.close()
