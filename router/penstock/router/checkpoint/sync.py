"""A directory of this machine and what the store has of it.

    PLACE/manifests/00000007-000000000012   the directory when it was kept for the twelfth time
                                            under the seventh term; the highest name counts
    PLACE/pieces/00000007/SHA-256           of larger files; see
    `penstock.router.checkpoint.manifest`

The directory has a file `.stored`, which says what of the store it goes back to. That tells, when a
process comes to work with both, which is the later one: the directory, unless another machine has
kept something since.

Dead letters in the store, each file under its own name, as they lie beside the job.

    letters/SINK/NAME.ndjson            waits to be looked at
    letters/SINK/done/NAME.ndjson       was replayed

They come before the checkpoint that counts their records as done. A file that the store has under
its name is taken to be the same unless it was written since the marker was, as `make` does it.
"""

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from penstock.base.files import atomic_write, make_directories, sync_directories
from penstock.router.checkpoint.manifest import (
    PART,
    DamagedManifestError,
    LaterFormatError,
    Manifest,
    StoredFile,
    cut,
    decode,
    digest,
    encode,
)
from penstock.router.storage.objects import Objects
from penstock.service import ConfigError


def raise_unless_gone(error: OSError) -> None:
    """Raise an error of `os.walk`, which otherwise takes an unreadable directory for an empty one.

    Raises:
        OSError: The directory is there and cannot be read. One that is gone is no error.
    """
    if not isinstance(error, FileNotFoundError):
        raise error


_NOTE: Final = ".stored"
_COMING: Final = ".coming"
"""Suffix of the directory that receives a checkpoint until it is complete."""

_MANIFEST: Final = re.compile(r"\d{8}-\d{12}")
_LOOKED: Final = ".looked"
"""Name of the file whose modification time is that of the last scan, by the file system's clock."""

_Stat = tuple[int, int, int]
"""Inode, size and modification time in nanoseconds of a file."""

_UNSETTLED: Final[_Stat] = (0, -1, 0)


@dataclass(frozen=True, slots=True)
class _Note:
    """The manifest that the directory corresponds to.

    Attributes:
        manifest: Its name; empty: the store has none yet.
        lineage: The same as `Manifest.lineage`.
        boot: The boot id of the machine at that moment. Spark does not sync its files, so after a
            loss of power the store has the better state.
        whole: Whether the directory was restored completely.
    """

    manifest: str
    lineage: str
    boot: str
    whole: bool = True


class CheckpointSync:
    """One directory; its user holds the lease. For any thread.

    Args:
        location: Prefix of its names in the store.
        is_kept: Whether a path below `root`, relative to it, is kept; names that begin with a dot
            never are.
    """

    def __init__(
        self,
        objects: Objects,
        location: str,
        root: Path,
        *,
        job: str,
        boot: str,
        is_kept: Callable[[Path], bool],
    ) -> None:
        self._objects = objects
        self._location = location
        self._root = root
        self._job = job
        self._boot = boot
        self._is_kept = is_kept
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[_Stat, StoredFile]] = {}
        self._stored: dict[str, str] = {}
        """Names of pieces that are there and stay, by what these end with."""
        self._last: list[tuple[str, set[str]]] = []
        """Manifests that are there, with their pieces."""
        self._lineage = ""
        self._newest = ""
        """Name of the newest manifest that was in the store at the start."""
        self._count = 0
        self._is_ours = False
        """True if this process wrote the newest manifest, which it must have before it publishes.
        """

    def begin(self) -> bool:
        """Make out which is the later one, and bring what the store has, if that is.

        Returns:
            Whether the store's is here now; else the directory stays as it is.

        Raises:
            ConfigError: They do not go back to one beginning, or the store's is damaged.
            UnavailableError: The store cannot be reached now.
        """
        note = self._note()
        names = self._named("manifests", _MANIFEST)
        cut_off = len(f"{self._location}/pieces/")
        parts = {it[cut_off:] for it in self._named("pieces", PART)}
        if not names:
            self._last = [("", parts)]
            # Not that of another store: what is kept there must not look like what is kept here.
            self._lineage = uuid4().hex
            self._root.mkdir(parents=True, exist_ok=True)
            self._note_down("")  # so that what is stored next is known as ours
            return False
        newest = self._newest = names[-1]
        manifest = self._manifest(newest)
        if note is not None and not note.manifest and not any(self._paths()):
            note = None  # of a start that came to nothing
        self._require_related(manifest, note, newest)
        self._lineage = manifest.lineage
        self._stored = {it.rpartition("/")[2]: it for it in manifest.parts() & parts}
        self._last = [*((name, set()) for name in names[:-1]), (newest, parts)]
        if note is not None and note.whole and self._is_ahead(note, newest):
            return False
        self._bring(newest, manifest)
        return True

    def _is_ahead(self, note: _Note, newest: str) -> bool:
        return note.manifest > newest or (note.manifest == newest and note.boot == self._boot)

    def persist(self, term: int) -> None:
        """Store what the directory has now, if that is anything new.

        Raises:
            ConfigError: The store refuses it.
            UnavailableError: It cannot be stored now.
        """
        with self._lock:
            if not (self._root / _NOTE).exists():
                raise ConfigError(
                    f"checkpoint_dir: {self._root / _NOTE} was removed while the job runs, and"
                    " perhaps more with it",
                    fix="stop the job, empty checkpoint_dir, and start it: the store's is taken",
                )
            files, fresh = self._look(term)
            if fresh or not self._is_ours or files.keys() != self._seen.keys():
                self._store(files, term)

    def _store(self, files: dict[str, tuple[_Stat, StoredFile]], term: int) -> None:
        kept = {path: found for path, (_, found) in files.items()}
        manifest = Manifest(self._job, self._lineage, kept)
        self._count += 1
        name = f"{self._location}/manifests/{term:08d}-{self._count:012d}"
        if name <= self._newest:
            raise ConfigError(
                f"checkpoint_store: {self._newest} is of a later term than {term}: terms were"
                " removed",
                fix="make an object terms/NNNNNNNN of that term, with the text {}, and start again",
            )
        self._objects.put(name, encode(manifest))
        self._seen, self._is_ours = files, True
        self._last.append((name, manifest.parts()))
        self._note_down(name)
        self._tidy()

    def _tidy(self) -> None:
        """Remove what no manifest but the last two needs."""
        needed = {part for _, parts in self._last[-2:] for part in parts}
        while len(self._last) > 2:
            name, parts = self._last[0]
            for part in sorted(parts - needed):
                self._stored = {it: at for it, at in self._stored.items() if at != part}
                self._objects.remove(f"{self._location}/pieces/{part}")
            if name:
                self._objects.remove(name)
            del self._last[0]

    def _look(self, term: int) -> tuple[dict[str, tuple[_Stat, StoredFile]], bool]:
        """Store the directory's pieces; return its files, and whether any has changed."""
        found: dict[str, tuple[_Stat, StoredFile]] = {}
        fresh = False
        begun_ns = self._now_ns()
        for path in self._paths():
            name = path.relative_to(self._root).as_posix()
            try:
                stat = _stat(path)
                before = self._seen.get(name)
                if before is not None and before[0] == stat:
                    found[name] = before
                    continue
                data = path.read_bytes()
            except FileNotFoundError:  # Spark removes what is old meanwhile
                continue
            parts = tuple(self._stored_part(part, term) for part in cut(data))
            kept = StoredFile(None, parts) if parts else StoredFile(data)
            fresh = fresh or before is None or before[1] != kept
            # Written in the same tick once more, it would look the same.
            found[name] = (stat if stat[-1] < begun_ns else _UNSETTLED, kept)
        return found, fresh

    def _now_ns(self) -> int:
        path = self._root / _LOOKED
        path.touch()
        return path.stat().st_mtime_ns

    def _stored_part(self, part: bytes, term: int) -> str:
        """The name of a piece that is in the store."""
        name = digest(part)
        if name not in self._stored:
            at = f"{term:08d}/{name}"
            self._objects.put(f"{self._location}/pieces/{at}", part)
            self._stored[name] = at
        return self._stored[name]

    def _named(self, what: str, pattern: re.Pattern[str]) -> list[str]:
        """Names in the store, without what somebody else put there."""
        below = f"{self._location}/{what}"
        names = self._objects.names(below)
        return [name for name in names if pattern.fullmatch(name[len(below) + 1 :])]

    def _paths(self) -> Iterator[Path]:
        """Yield files, Spark's commits before its offsets, so that these are never behind."""
        for directory, below, names in os.walk(self._root, onerror=raise_unless_gone):
            at = Path(directory)
            below[:] = sorted(name for name in below if self._belongs(at / name))
            for name in below:
                if (at / name).is_symlink():
                    raise ConfigError(
                        f"checkpoint_dir: {at / name} is a link, and what it leads to would not be"
                        " in the store",
                        fix="put the directory itself there, or mount it there",
                    )
            yield from (at / name for name in sorted(names) if self._belongs(at / name))

    def _belongs(self, path: Path) -> bool:
        return not path.name.startswith(".") and self._is_kept(path.relative_to(self._root))

    def _bring(self, name: str, manifest: Manifest) -> None:
        """Put the store's in the place of what the directory has, once all of it is here."""
        coming = self._root / _COMING
        shutil.rmtree(coming, ignore_errors=True)
        for name_here, kept in manifest.files.items():
            if not all(self._belongs(it) for it in self._ways(name_here)):
                raise _damaged(name, f"it has a file {name_here!r}")
            atomic_write(coming / name_here, self._content(name, kept), parents=True)
        self._root.mkdir(parents=True, exist_ok=True)
        self._note_down(name, whole=False)
        for path in list(self._paths()):
            path.unlink(missing_ok=True)
        for directory in [it for it in self._root.iterdir() if it.is_dir()]:
            if self._belongs(directory):
                shutil.rmtree(directory)  # with Spark's checksums, of files that are no more
        changed = [self._root]
        for name_here in manifest.files:
            location = self._root / name_here
            changed += [*make_directories(location.parent), location.parent]
            (coming / name_here).replace(location)
        sync_directories(changed)
        shutil.rmtree(coming, ignore_errors=True)
        self._note_down(name)

    def _ways(self, name: str) -> Iterator[Path]:
        """Yield each directory on the way to a file, and the file."""
        at = self._root
        for part in name.split("/"):
            at = at / part
            yield at

    def _content(self, manifest: str, kept: StoredFile) -> bytes:
        if kept.whole is not None:
            return kept.whole
        parts = []
        for name in kept.parts:
            part = self._objects.get(f"{self._location}/pieces/{name}")
            if part is None or digest(part) != name.rpartition("/")[2]:
                raise _damaged(manifest, f"its part {name} is {'damaged' if part else 'gone'}")
            parts.append(part)
        return b"".join(parts)

    def _manifest(self, name: str) -> Manifest:
        data = self._objects.get(name)
        if data is None:
            raise _damaged(name, "it was there a moment ago, and is gone")
        try:
            return decode(data)
        except DamagedManifestError as error:
            raise _damaged(name, str(error)) from None
        except LaterFormatError as error:
            raise ConfigError(
                f"checkpoint_store: {name}: a later version wrote it: {error}",
                fix="run the job with that version",
            ) from None

    def _require_related(self, manifest: Manifest, note: _Note | None, name: str) -> None:
        if manifest.job != self._job:
            raise ConfigError(
                f"checkpoint_store: {name} is of the job {manifest.job!r}",
                fix="give each job its own store, by the URL's path",
            )
        if note is None and any(self._paths()):
            raise ConfigError(
                f"checkpoint_dir: {self._root} has a state, and the store has one at"
                f" {self._location}"
                " that does not come from there",
                fix="empty the directory, and the store's is taken; or name another store",
            )
        if note is not None and note.lineage != manifest.lineage:
            raise ConfigError(
                f"checkpoint_dir: {self._root} goes back to another beginning than {self._location}"
                " in the store",
                fix="name the store that this directory was kept in; or empty the directory, and"
                " the store's state is taken",
            )

    def _note_down(self, manifest: str, *, whole: bool = True) -> None:
        """Say what the directory goes back to."""
        note = _Note(manifest, self._lineage, self._boot, whole)
        atomic_write(self._root / _NOTE, json.dumps(asdict(note)).encode(), parents=True)

    def _note(self) -> _Note | None:
        try:
            return _Note(**json.loads((self._root / _NOTE).read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise ConfigError(
                f"checkpoint_dir: {self._root / _NOTE} is damaged",
                fix="empty that directory, and the store's state is taken",
            ) from None


def forget(root: Path) -> None:
    """Note that a directory went on without its store, which may have gone on without it."""
    (root / _NOTE).unlink(missing_ok=True)


def _stat(path: Path) -> _Stat:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _damaged(name: str, why: str) -> ConfigError:
    return ConfigError(
        f"checkpoint_store: {name} is damaged: {why}",
        fix="restore it from a version or backup of the store; or remove it, and the one before it"
        " is taken, from which the last batches come again, in sinks that know batches only twice",
    )


class DeadLetterSync:
    """One directory of dead letters; its user holds the lease.

    Args:
        location: Prefix of its names in the store.
        root: The directory; it need not be there.
        marker: A file that is as old as what is stored for certain.
        only: The only file in the directory that is meant; none: all.
    """

    def __init__(
        self, objects: Objects, location: str, root: Path, *, marker: Path, only: str | None = None
    ) -> None:
        self._objects = objects
        self._location = location
        self._root = root
        self._marker = marker
        self._only = only
        self._stored: dict[str, int] = {}
        """Names that the store has, with when these files were changed, in nanoseconds."""
        self._changed_ns: list[int] = []
        self._lock = threading.Lock()

    def begin(self, *, bring: bool) -> None:
        """See what the store has.

        Args:
            bring: Whether another machine kept it last: what it has is fetched, and what this one
                had stored and it has not is removed.
        """
        names = [it[len(self._location) + 1 :] for it in self._objects.names(self._location)]
        names = [name for name in names if self._only is None or name == self._only]
        try:
            before_ns = self._marker.stat().st_mtime_ns
        except FileNotFoundError:
            before_ns = 0
        if bring:
            self._bring(names, before_ns)
        here = dict(self._files())
        self._stored = {
            name: here[name] if here.get(name, before_ns) < before_ns else -1 for name in names
        }

    def _bring(self, names: list[str], before_ns: int) -> None:
        here = dict(self._files())
        for name, at_ns in here.items():
            if at_ns < before_ns and name not in names:
                (self._root / name).unlink(missing_ok=True)
        for name in names:
            if here.get(name, 0) < before_ns or name not in here:
                self._bring_one(name)

    def _bring_one(self, name: str) -> None:
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise ConfigError(
                f"checkpoint_store: {self._location}/{name} leads out of {self._root}",
                fix="remove it: no job has put it there",
            )
        data = self._objects.get(f"{self._location}/{name}")
        path = self._root / name
        if data is not None and not (path.exists() and path.read_bytes() == data):
            atomic_write(path, data, parents=True)

    def persist(self) -> None:
        """Store what is new, and remove what is no more."""
        with self._lock:
            self._persist()

    def _persist(self) -> None:
        if (changed := self._directories_changed_ns()) == self._changed_ns:
            return
        fresh = self._marker.with_name(f"{self._marker.name}.fresh")
        atomic_write(fresh, b"", parents=True)
        here = dict(self._files())
        for name, at_ns in here.items():
            if self._stored.get(name) == at_ns:
                continue
            try:
                data = (self._root / name).read_bytes()
            except FileNotFoundError:  # replayed meanwhile: the next look finds where it is now
                continue
            self._objects.put(f"{self._location}/{name}", data)
            self._stored[name] = at_ns
        for name in sorted(self._stored.keys() - here.keys()):
            self._objects.remove(f"{self._location}/{name}")
            del self._stored[name]
        # What is made in the same tick once more changes no time.
        is_settled = max(changed) < fresh.stat().st_mtime_ns
        fresh.replace(self._marker)
        self._changed_ns = changed if is_settled else []

    def _files(self) -> Iterator[tuple[str, int]]:
        for directory, below, names in os.walk(self._root, onerror=raise_unless_gone):
            below[:] = [] if self._only else sorted(below)
            for name in sorted(names):
                if name.startswith(".") or (self._only and name != self._only):
                    continue
                path = Path(directory) / name
                try:
                    yield path.relative_to(self._root).as_posix(), path.stat().st_mtime_ns
                except FileNotFoundError:
                    continue

    def _directories_changed_ns(self) -> list[int]:
        """Return when each directory, or the only file, was last modified, in ns."""
        found = []
        for path in (self._root, self._root / "replaying", self._root / "done"):
            at = path / self._only if self._only else path
            found.append(at.stat().st_mtime_ns if at.exists() else 0)
        return found
