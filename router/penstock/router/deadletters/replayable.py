"""Dead letters of a job, found, shown, and put back as rows of the log.

DIR/SINK/NAME.ndjson            to be looked at
DIR/SINK/replaying/NAME.ndjson  being replayed, or left there by a replay that was killed
DIR/SINK/done/NAME.ndjson       replayed: a sink has the records, or refused them again

A file may be of any size, for other tools make some, too. It is read line by line and delivered in
pieces of bounded size: `DeadLetterLimits`. How far a file of several pieces is, and where it goes
to, is in DIR/SINK/replaying/NAME.position meanwhile, with a digest of what is before: so one of the
same name that comes later begins at its first dead letter, and what is corrected behind it goes on.

Small files of a sink are delivered in one batch. Which they are, and whether the batch is
delivered, is in DIR/SINK/replaying/batch.json until all of them are done:

    {"to": SINK, "files": [NAME, ...], "delivered": false}

So a replay that is killed delivers the same batch again, or marks what is left of it as done.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa

from penstock.base.files import atomic_write, sync_directories
from penstock.router.columns.projection import Projection, Projector
from penstock.router.columns.schema import view
from penstock.router.columns.spec_versions import known_versions
from penstock.router.deadletters.fields import (
    bytes_of,
    problem_with_position,
    problem_with_row,
    time_ns_of,
)
from penstock.router.job.permissions import owner_of
from penstock.router.read.offsets import Span
from penstock.service import ConfigError, UnavailableError

DeadLetter = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeadLetterLimits:
    """Bounds on how much of a file of dead letters is held at once.

    Attributes:
        chunk_records: Maximum dead letters that are delivered together.
        chunk_bytes: Bytes of their lines; a chunk ends with the dead letter that reaches them.
        line_bytes: Maximum bytes of one dead letter: logd takes messages of 32 MiB, and a byte
            is at most six of JSON.
    """

    chunk_records: int = 5000
    chunk_bytes: int = 32 * 1024 * 1024
    line_bytes: int = 256 * 1024 * 1024


LIMITS: Final = DeadLetterLimits()

_STATES: Final = ("replaying", "done")
_PATTERN: Final = "*.ndjson"
_blake2b: Final = partial(hashlib.blake2b, digest_size=16)

CODES_MAX: Final = 20
"""Codes that a summary tells apart; the rest are `others`."""


class MalformedDeadLetterError(ConfigError):
    """A file holds something else than dead letters, or one of which no row can be made."""


@dataclass(frozen=True, slots=True)
class DeadLetterFile:
    """One file of dead letters.

    Attributes:
        path: Path of the file now.
        state: `waiting`, `replaying` or `done`.
    """

    path: Path
    sink: str
    state: str
    limits: DeadLetterLimits = LIMITS

    @property
    def home(self) -> Path:
        """The sink's directory of dead letters."""
        return self.path.parent if self.state == "waiting" else self.path.parent.parent

    @property
    def name(self) -> str:
        """Name of the file on the command line: SINK/NAME."""
        return f"{self.sink}/{self.path.stem}"

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the file's dead letters, in the log's order.

        Raises:
            MalformedDeadLetterError: It holds something else.
        """
        at = 0
        for line in self._lines(0):
            yield self._dead_letter(line, at)
            at += len(line)

    def summary(self) -> dict[str, Any]:
        """Return counts and codes of the file's dead letters, up to the first bad line.

        `problem` is set if there is one.
        """
        codes: Counter[str] = Counter()
        first: DeadLetter = {}
        problem = None
        try:
            for dead_letter in self.dead_letters():
                first = first or dead_letter
                code = str(dead_letter.get("code", dead_letter.get("status")))
                codes[code if code in codes or len(codes) < CODES_MAX else "others"] += 1
        except (ConfigError, UnavailableError) as error:  # others are to be listed all the same
            problem = error.reason
        return {
            "name": self.name,
            "state": self.state,
            "dead_letters": codes.total(),
            "codes": dict(codes),
            "time": first.get("time"),
            "reason": first.get("reason"),
            "problem": problem,
        }

    def chunks(self, target: str) -> Iterator[list[DeadLetter]]:
        """Yield the dead letters that are still to be delivered to a sink; call it after `begin`.

        A chunk counts as delivered when the next one is requested. Dead letters that an earlier
        replay delivered to that sink are left out.

        Raises:
            MalformedDeadLetterError: A line is no dead letter, or no row can be made of it.
        """
        at, begun = self._delivered(target)
        chunk: list[DeadLetter] = []
        size = 0
        for line in self._lines(at):
            begun.update(line)
            chunk.append(self._deliverable(line, at + size))
            size += len(line)
            if self._is_full(len(chunk), size):
                yield chunk
                at += size
                self._keep(target, at, begun.hexdigest())
                chunk, size = [], 0
        if chunk:
            yield chunk

    def whole(self) -> list[DeadLetter] | None:
        """Return all dead letters; None if they are more than a chunk, or partly delivered.

        Raises:
            MalformedDeadLetterError: It holds something else, or of a dead letter no row can be
                made.
        """
        if self._position.exists():
            return None
        dead_letters: list[DeadLetter] = []
        size = 0
        for line in self._lines(0):
            dead_letters.append(self._deliverable(line, size))
            size += len(line)
            if self._is_full(len(dead_letters), size):
                return None
        return dead_letters

    def _is_full(self, dead_letters: int, size: int) -> bool:
        return dead_letters >= self.limits.chunk_records or size >= self.limits.chunk_bytes

    def require_subjects(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Require that every dead letter names its subject, for a sink that sends subjects.

        Raises:
            MalformedDeadLetterError: One has none.
        """
        for dead_letter in dead_letters:
            if dead_letter.get("subject") is None:
                raise self._cannot_go(
                    dead_letter, "says nothing as 'subject', which the sink sends along"
                )

    def _keep(self, target: str, at: int, digest: str) -> None:
        """Write down that what lies before this byte, which has that digest, is delivered."""
        with _writing(self._position.parent):
            found = {"to": target, "bytes": at, "digest": digest}
            atomic_write(self._position, json.dumps(found).encode(), parents=True)

    @property
    def _position(self) -> Path:
        return self.path.with_suffix(".position")

    def _delivered(self, target: str) -> tuple[int, hashlib.blake2b]:
        """Bytes of the lines that a replay which was ended early has delivered, and their digest.

        None where they are not these bytes any more: another file has the name now. Lines behind
        them may have been corrected.
        """
        try:
            position = json.loads(self._position.read_text())
            to, at, of = position["to"], max(0, int(position["bytes"])), position.get("digest")
        except FileNotFoundError:
            return 0, _blake2b()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._position} cannot be read: {type(error).__name__}: {error}",
                fix=f"remove it; then {self.name} is delivered again from its first letter",
            ) from None
        begun = self._digest(at)
        return (at, begun) if to == target and of == begun.hexdigest() else (0, _blake2b())

    def _digest(self, upto: int) -> hashlib.blake2b:
        digest, left = _blake2b(), upto
        with self._opened() as file:
            while left > 0 and (data := file.read(min(left, self.limits.chunk_bytes))):
                digest.update(data)
                left -= len(data)
        return digest

    def _lines(self, begin: int) -> Iterator[bytes]:
        with self._opened() as file:
            file.seek(begin)
            longest = self.limits.line_bytes
            while line := file.readline(longest + 1):
                if len(line) > longest:
                    raise self._is_none(f"a line is longer than {longest} bytes")
                yield line

    def _opened(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            raise self._is_gone() from None
        except OSError as error:
            raise ConfigError(
                f"{self.path}: cannot be read: {error.strerror}",
                fix="let this user read it, or move it out of there",
            ) from None

    def _dead_letter(self, line: bytes, at: int) -> DeadLetter:
        """Parse the line that begins at a byte of the file."""
        try:
            dead_letter = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._is_none(f"line {self._number(at)}: {error}") from None
        if not isinstance(dead_letter, dict):
            raise self._is_none(f"line {self._number(at)} is no JSON object")
        if (problem := problem_with_position(dead_letter)) is not None:
            raise self._is_none(f"line {self._number(at)} {problem}")
        return dead_letter

    def _deliverable(self, line: bytes, at: int) -> DeadLetter:
        """Parse the line that begins at a byte of the file, of which a row can be made."""
        dead_letter = self._dead_letter(line, at)
        if (problem := problem_with_row(dead_letter)) is not None:
            raise self._cannot_go(dead_letter, problem)
        return dead_letter

    def _number(self, at: int) -> int:
        count, size = 1, 0
        for line in self._lines(0):
            size += len(line)
            if size > at:
                break
            count += 1
        return count

    def _cannot_go(self, dead_letter: DeadLetter, problem: str) -> MalformedDeadLetterError:
        where = f"{dead_letter['stream']}/{dead_letter['partition']} offset {dead_letter['offset']}"
        return MalformedDeadLetterError(
            f"{self.path}: the dead letter of {where!r} {problem}",
            fix="correct that line, or move it out of there; then replay again",
        )

    def _is_gone(self) -> UnavailableError:
        return UnavailableError(
            f"{self.path} has been moved meanwhile",
            fix="ask again; a replay goes on from where the file is now",
        )

    def _is_none(self, why: str) -> MalformedDeadLetterError:
        return MalformedDeadLetterError(
            f"{self.path}: no file of dead letters: {why}",
            fix="correct that line, or move it out of there",
        )

    def begin(self, *, sync: bool = True) -> "DeadLetterFile":
        """Set it apart, so that dead letters of the same name can be written meanwhile.

        Args:
            sync: Whether the move is on disk at the end; else `sync_moves` brings it there.
        """
        return self._moved("replaying", sync)

    def end(self, *, sync: bool = True) -> "DeadLetterFile":
        """Mark it as replayed; `sync` is as in `begin`."""
        done = self._moved("done", sync)
        with _writing(self._position.parent):
            self._position.unlink(missing_ok=True)
        return done

    def _moved(self, state: str, sync: bool) -> "DeadLetterFile":
        if state == self.state:
            return self
        target = self.home / state / self.path.name
        with _writing(self.home):
            target.parent.mkdir(exist_ok=True)
            try:
                self.path.replace(target)
            except FileNotFoundError:
                raise self._is_gone() from None
            if state == "replaying":  # not before it is there: else another replay's would be lost
                target.with_suffix(".position").unlink(missing_ok=True)  # of one that went before
            if sync:
                sync_directories([target.parent, self.path.parent])
        return replace(self, path=target, state=state)


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Files of one sink that are delivered together.

    Attributes:
        home: The sink's directory of dead letters.
        target: The sink that gets them.
        names: The files' names, without their ending.
        delivered: Whether the target has them.
    """

    home: Path
    target: str
    names: tuple[str, ...]
    delivered: bool = False

    @classmethod
    def left_in(cls, home: Path) -> "FileBatch | None":
        """The one that a replay had in work when it was ended.

        Raises:
            ConfigError: The note of it cannot be read.
        """
        path = cls._path(home)
        try:
            note = json.loads(path.read_bytes())
            names = tuple(str(name) for name in note["files"])
            return cls(home, str(note["to"]), names, bool(note["delivered"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read: {type(error).__name__}: {error}",
                fix="remove it; then files that are in `replaying` are delivered again",
            ) from None

    def keep(self) -> None:
        """Write it down."""
        note = {"to": self.target, "files": self.names, "delivered": self.delivered}
        with _writing(self.home):
            atomic_write(self._path(self.home), json.dumps(note).encode(), parents=True)

    def remove(self) -> None:
        """Forget it: every file of it is done, or is delivered otherwise."""
        with _writing(self.home):
            self._path(self.home).unlink(missing_ok=True)

    def sync_moves(self) -> None:
        """Bring to disk which of its files are begun and ended."""
        homes = (self.home, *(self.home / state for state in _STATES))
        with _writing(self.home):
            sync_directories([it for it in homes if it.exists()])

    def files(self, limits: DeadLetterLimits = LIMITS) -> list[DeadLetterFile]:
        """Return the files that are not done."""
        paths = (self.home / "replaying" / f"{name}.ndjson" for name in self.names)
        return [
            DeadLetterFile(it, self.home.name, "replaying", limits) for it in paths if it.exists()
        ]

    @staticmethod
    def _path(home: Path) -> Path:
        return home / "replaying" / "batch.json"


def find_dead_letters(
    directory: Path,
    *,
    sink: str | None = None,
    names: tuple[str, ...] = (),
    done: bool = False,
    limits: DeadLetterLimits = LIMITS,
) -> list[DeadLetterFile]:
    """The files of a job, oldest name first.

    Of the same name, what a killed replay left comes before what was refused since, which would
    else take its place.

    Args:
        directory: The job's dead letters.
        sink: Only this sink's.
        names: Only these, as `DeadLetterFile.name` has them; all without.
        done: Also those that were replayed.
        limits: Bounds on how much of each is held at once.

    Raises:
        ConfigError: There is none of a name.
    """
    found = sorted(_all(directory), key=lambda file: (file.name, file.state))
    chosen = [
        replace(file, limits=limits)
        for file in found
        if (done or file.state != "done")
        and (sink is None or file.sink == sink)
        and (not names or file.name in names)
    ]
    for name in names:
        if name not in {file.name for file in chosen}:
            raise ConfigError(
                f"there are no dead letters {name!r} in {directory}",
                fix="penstock router dlq ls JOB lists them",
            )
    return chosen


_NAME: Final = re.compile(
    r"(?P<stream>.+)\.[^./]{1,8}(\.\d+)?-(?P<partition>\d+)"
    r"-(?P<first>\d{20})-(?P<last>\d{20})(\.[0-9a-f]+)?\.ndjson"
)
"""The name that the job gives to a file: see `penstock.router.deadletters.writer`."""


def dead_letters_at(
    directory: Path,
    sink: str,
    wanted: Collection[tuple[str, int, int]],
    stream_ids: Mapping[str, str],
) -> dict[tuple[str, int, int], tuple[DeadLetterFile, DeadLetter]]:
    """Find the dead letters of single records, of several of a record the one that waits.

    Files that another tool has named are not looked into.

    Args:
        directory: The job's dead letters.
        sink: The sink.
        wanted: Stream, partition and offset of each record.
        stream_ids: Id of each stream; dead letters of an earlier stream of that name do not count.

    Raises:
        ConfigError: A file cannot be read, or holds something else.
        UnavailableError: A replay moved a file meanwhile.
    """
    found: dict[tuple[str, int, int], tuple[DeadLetterFile, DeadLetter]] = {}
    files = [file for file in _all(directory) if file.sink == sink]
    order = ("done", "replaying", "waiting")  # a later one takes the place
    for file in sorted(files, key=lambda it: (order.index(it.state), it.name)):
        named = _NAME.fullmatch(file.path.name)
        if named is None:
            continue
        stream, partition = named["stream"], int(named["partition"])
        first, last = int(named["first"]), int(named["last"])
        inside = {it for it in wanted if it[:2] == (stream, partition) and first <= it[2] <= last}
        for dead_letter in file.dead_letters() if inside else ():
            at = (dead_letter["stream"], dead_letter["partition"], dead_letter["offset"])
            stream_id = str(dead_letter.get("incarnation") or "").partition(".")[0]
            known = stream_ids.get(stream, "")
            if at in inside and (not stream_id or not known or stream_id == known):
                found[at] = file, dead_letter
    return found


def _all(directory: Path) -> Iterator[DeadLetterFile]:
    for home in _entries(directory):
        if not home.is_dir():
            continue
        for path in _entries(home):
            if path.name in _STATES and path.is_dir():
                files = [it for it in _entries(path) if it.match(_PATTERN)]
                yield from (DeadLetterFile(it, home.name, path.name) for it in files)
            elif path.match(_PATTERN):
                yield DeadLetterFile(path, home.name, "waiting")


def _entries(directory: Path) -> list[Path]:
    """Return the visible entries of a directory; none if it does not exist."""
    try:
        return [path for path in directory.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(
            f"dead letters: {directory} cannot be read: {error.strerror}",
            fix=f"run this as {owner_of(directory)}, or correct the key `dead_letter_dir`",
        ) from None


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Within it, refusals of the file system say who can change them."""
    try:
        yield
    except PermissionError as error:
        raise ConfigError(
            f"dead letters: cannot write to {directory}: {error.strerror}",
            fix=f"run this as {owner_of(directory)}, or let this user write there",
        ) from None
    except OSError as error:
        raise UnavailableError(
            f"dead letters: cannot write to {directory}: {error.strerror}",
            fix="see what keeps its disk; the same replay, asked for again, goes on from there",
        ) from None


def as_rows(dead_letters: Sequence[DeadLetter]) -> pa.Table:
    """Letters of `DeadLetterFile.chunks` as rows of the view `records`, typed again.

    The records are as they were refused. A dead letter that does not say when the log got the
    record has the time of its refusal; one that does not say its subject has none.
    """
    shaper = Projector(Projection(_RECORDS, _RECORDS.columns, versions=known_versions()))
    places = {(dead_letter["stream"], dead_letter["partition"]) for dead_letter in dead_letters}
    batches = []
    for stream, partition in sorted(places):
        mine = [it for it in dead_letters if (it["stream"], it["partition"]) == (stream, partition)]
        log = {name: pa.array(map(of, mine), kind) for name, (kind, of) in _LOG.items()}
        span = Span(stream, partition, mine[0]["offset"], mine[-1]["offset"] + 1)
        batches.append(shaper.shape(span, pa.RecordBatch.from_pydict(log)))
    return pa.Table.from_batches(batches)


_RECORDS: Final = view("records")
_LOG: Final[Mapping[str, tuple[pa.DataType, Callable[[DeadLetter], Any]]]] = {
    "offset": (pa.int64(), itemgetter("offset")),
    "timestamp": (pa.timestamp("ns", tz="UTC"), time_ns_of),
    "subject": (pa.string(), lambda dead_letter: dead_letter.get("subject")),
    "key": (pa.binary(), lambda dead_letter: bytes_of(dead_letter, "key")),
    "value": (pa.binary(), lambda dead_letter: bytes_of(dead_letter, "value")),
}
"""The log's own columns: of which type, and what a dead letter has for them."""
