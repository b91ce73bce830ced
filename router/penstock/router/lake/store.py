"""Storages of a lake: a file system, HDFS, or a bucket of S3; and how files are replaced there.

A reader that lists a directory sees a merged file and its sources never together:

- On a file system of Linux the directory is exchanged, in one step (`renameat2`), for another one
  that has the merged file and all others. Sinks publish under the same lock.
- Elsewhere, and where a file system cannot do that, the sources are removed first. Between that and
  the merged file's appearance such a reader misses their rows.
"""

import ctypes
import errno
import fcntl
import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

from typing_extensions import override

from penstock.base.files import atomic_write, atomic_writer, make_directories, sync_directories
from penstock.router.lake.layout import HIDDEN, INDEX, LakeFile
from penstock.router.lake.plan import Plan
from penstock.router.storage.hdfs import SCHEME, Hdfs, HdfsObjects, HdfsSettings
from penstock.router.storage.objects import Objects
from penstock.router.storage.range_input import RangeInput
from penstock.router.storage.s3 import S3Location, S3Objects
from penstock.service import ConfigError

_EXCHANGE: Final = 2
_AT_FDCWD: Final = -100
_NO_EXCHANGE: Final = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP)
_PART_BYTES: Final = 1024 * 1024
_MS_NS: Final = 1_000_000


class LakeStore(Protocol):
    """A lake's files; paths are relative to it. Errors are those of `Objects`.

    Attributes:
        url: URL of the lake, or its path.
        has_owner: Whether sinks' files have JOB.SINK in their names.
        objects: Objects in `_index`.
    """

    url: str
    has_owner: bool
    objects: Objects

    def _all(self, below: str) -> Iterable[LakeFile]:
        """The files in a directory and those in it."""
        ...

    def files(self, below: str = "") -> list[LakeFile]:
        """The Parquet files that readers by listing see, in a directory and those in it."""
        return [it for it in self._all(below) if is_seen(it.path)]

    def hidden(self) -> list[str]:
        """The merged files that are not shown, or still kept, and what a killed process left."""
        return [it.path for it in self._all(HIDDEN)]

    def open(self, path: str) -> BinaryIO:
        """A file to read, at any position.

        Raises:
            FileNotFoundError: It is not there.
        """
        ...

    def write(self, path: str, write: Callable[[BinaryIO], Any]) -> None:
        """Have a file written, durably; it appears whole, in place of one that is there."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Make another file with the same content.

        Raises:
            FileNotFoundError: The source is not there.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        ...

    def show(self, plan: Plan) -> None:
        """Put a plan's merged file, if there is one, in the place of its sources; perhaps again."""
        show_one_by_one(self, plan)

    def lock(self) -> AbstractContextManager[None]:
        """Keep others from publishing and from deciding, where the storage has such a thing."""
        return nullcontext()

    def locate(self, path: str) -> str:
        """A file's whole name, as readers want it."""
        return f"{self.url}/{path}"


def show_one_by_one(store: LakeStore, plan: Plan) -> None:
    """Put a plan's merged file in the place of its sources, one name after the other."""
    if plan.hidden is not None and plan.hidden not in store.hidden():
        return  # the plan was shown and forgotten by another process
    for path in plan.paths:
        store.remove(path)
    if plan.hidden is not None and plan.target is not None:
        with suppress(FileNotFoundError):
            store.copy(plan.hidden, plan.target)


def is_seen(path: str) -> bool:
    """Return whether readers of lakes take a path for a file with rows."""
    parts = path.split("/")
    return path.endswith(".parquet") and not any(it.startswith(("_", ".")) for it in parts)


class LocalObjects:
    """The files below a directory; see `Objects`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self, name: str, data: bytes) -> bool:
        try:
            atomic_write(self._path / name, data, exclusive=True, parents=True)
        except FileExistsError:
            return False
        return True

    def put(self, name: str, data: bytes) -> None:
        atomic_write(self._path / name, data, parents=True)

    def get(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, below: str) -> list[str]:
        try:
            found = [it.name for it in os.scandir(self._path / below) if it.is_file()]
        except FileNotFoundError:
            return []
        return sorted(f"{below}/{it}" for it in found if not it.startswith("."))

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is open."""


class LocalLake(LakeStore):
    """A directory of this machine, perhaps of a network volume."""

    has_owner = False

    def __init__(self, path: Path, *, exchanges: bool = True) -> None:
        """Nothing is made yet; `exchanges`: directories are exchanged where that can be."""
        self._path = path
        self._exchanges = exchanges
        self.url = str(path)
        self.objects = LocalObjects(path / INDEX)

    @override
    def _all(self, below: str) -> Iterator[LakeFile]:
        waiting = [self._path / below]
        while waiting:
            directory = waiting.pop()
            try:
                entries = sorted(os.scandir(directory), key=lambda it: it.name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        if not entry.name.startswith(("_", ".")):
                            waiting.append(directory / entry.name)
                        continue
                    about = entry.stat()
                    path = (directory / entry.name).relative_to(self._path).as_posix()
                    yield LakeFile(path, about.st_size, about.st_mtime_ns)

    @override
    def open(self, path: str) -> BinaryIO:
        return (self._path / path).open("rb")

    @override
    def write(self, path: str, write: Callable[[BinaryIO], Any]) -> None:
        with atomic_writer(self._path / path, parents=True) as file:
            write(file)

    @override
    def copy(self, source: str, target: str) -> None:
        """Make another file with the same content; the two share their bytes."""
        place = self._path / target
        changed = make_directories(place.parent)
        link = place.with_name(f".{place.name}")
        link.unlink(missing_ok=True)
        try:
            link.hardlink_to(self._path / source)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without hard links
            shutil.copyfile(self._path / source, link)
        link.replace(place)
        link.unlink(missing_ok=True)  # rename leaves it where both are one file already
        sync_directories([*changed, place.parent])

    @override
    def remove(self, path: str) -> None:
        """Remove a file, if it is there; directories that are empty then go, too."""
        place = self._path / path
        place.unlink(missing_ok=True)
        for directory in place.parents:
            if directory == self._path:
                return
            try:
                directory.rmdir()
            except OSError:
                if directory.exists():
                    sync_directories([directory])
                return

    @override
    def show(self, plan: Plan) -> None:
        with self.lock():
            self._clear_exchanged()
            if plan.hidden is None or not self._exchanged(plan):
                show_one_by_one(self, plan)

    def _exchanged(self, plan: Plan) -> bool:
        """Exchange the directory for one with the merged file; return False if impossible."""
        assert plan.hidden is not None
        assert plan.target is not None
        directory = self._path / plan.directory
        merged = self._path / plan.hidden
        if not self._exchanges or not merged.exists() or not directory.is_dir():
            return False
        fresh = self._path / HIDDEN / f".{plan.id}"
        fresh.mkdir(parents=True)
        sources = {path.rpartition("/")[2] for path in plan.paths}
        try:
            for entry in os.scandir(directory):
                if entry.is_dir(follow_symlinks=False):  # not one that a sink of ours makes
                    return False
                if entry.name not in sources:
                    (fresh / entry.name).hardlink_to(entry.path)
            target = fresh / plan.target.rpartition("/")[2]
            if not target.exists():
                target.hardlink_to(merged)
            sync_directories([fresh])
            _exchange(fresh, directory)
        except OSError as error:
            if error.errno not in _NO_EXCHANGE:
                raise
            return False
        finally:
            sync_directories([directory.parent])
            self._clear_exchanged()
        return True

    def _clear_exchanged(self) -> None:
        """Remove what was exchanged, or not yet."""
        with suppress(FileNotFoundError):
            for entry in list(os.scandir(self._path / HIDDEN)):
                if entry.name.startswith("."):
                    shutil.rmtree(entry.path, ignore_errors=True)

    @contextmanager
    @override
    def lock(self) -> Iterator[None]:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _exchange(one: Path, other: Path) -> None:
    """Exchange the names of two directories, in one step.

    Raises:
        OSError: The system or the file system cannot do that.
    """
    library = ctypes.CDLL(None, use_errno=True)
    rename = getattr(library, "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, "there is no renameat2")
    paths = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class HdfsLake(LakeStore):
    """A directory of HDFS."""

    has_owner = False

    def __init__(self, url: str, *, location: str, settings: HdfsSettings | None = None) -> None:
        """Nothing is connected yet; see `penstock.router.storage.hdfs.Hdfs`."""
        self._files = Hdfs(url, location=location, settings=settings)
        self.url = self._files.url
        self.objects = HdfsObjects(
            Hdfs(f"{url.rstrip('/')}/{INDEX}", location=location, settings=settings)
        )

    @override
    def _all(self, below: str) -> list[LakeFile]:
        prefix = f"{below}/" if below else ""
        return [
            LakeFile(prefix + path, size, modified_ms * _MS_NS)
            for path, size, modified_ms in self._files.sizes(below)
        ]

    @override
    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", self._files.reader(path))

    @override
    def write(self, path: str, write: Callable[[BinaryIO], Any]) -> None:
        self._files.replace_with(path, lambda file: write(cast("BinaryIO", file)))

    @override
    def copy(self, source: str, target: str) -> None:
        with self.open(source) as file:
            self.write(target, lambda to: shutil.copyfileobj(file, to, _PART_BYTES))

    @override
    def remove(self, path: str) -> None:
        self._files.remove(path)


class S3Lake(S3Objects, LakeStore):
    """A lake below a URL of S3."""

    has_owner = True

    def __init__(
        self,
        config: S3Location,
        *,
        location: str,
        storage_class: str = "STANDARD",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Nothing is connected yet; storage class and headers are those of merged files."""
        super().__init__(config, location=location, headers=headers)
        self._class = {} if storage_class == "STANDARD" else {"StorageClass": storage_class}
        self.url = config.url.rstrip("/")
        index = config.model_copy(update={"url": f"{self.url}/{INDEX}"})
        self.objects = S3Objects(index, location=location, headers=headers)

    @override
    def _all(self, below: str) -> list[LakeFile]:
        return [
            LakeFile(name, about["Size"], round(about["LastModified"].timestamp() * 1e9))
            for name, about in self.listed(below)
        ]

    @override
    def open(self, path: str) -> BinaryIO:
        size = self.size(path)
        if size is None:
            raise FileNotFoundError(path)

        def read(position: int, count: int) -> bytes:
            found = self.range(path, position, count)
            if found is None:
                raise FileNotFoundError(path)
            return found

        return cast("BinaryIO", io.BufferedReader(RangeInput(size, read), _PART_BYTES))

    @override
    def write(self, path: str, write: Callable[[BinaryIO], Any]) -> None:
        file = io.BytesIO()
        write(file)
        with self._telling(path):
            self._call("put_object", Key=self._key(path), Body=file.getvalue(), **self._class)

    @override
    def copy(self, source: str, target: str) -> None:
        origin = {"Bucket": self._config.bucket, "Key": self._key(source)}
        if self.size(source) is None:
            raise FileNotFoundError(source)
        with self._telling(target):
            self._call("copy_object", Key=self._key(target), CopySource=origin, **self._class)

    @override
    def close(self) -> None:
        super().close()
        self.objects.close()


def open_lake(place: str, *, endpoint: str | None = None, region: str | None = None) -> LakeStore:
    """A lake by the name that a person gives it: a directory, `hdfs://…` or `s3://BUCKET/PATH`.

    Raises:
        ConfigError: There is no such directory, or the name is none of these.
    """
    if place.startswith(SCHEME):
        return HdfsLake(place, location=place)
    if place.startswith(("s3://", "s3a://")):
        keys = {"endpoint": endpoint, "region": region}
        given = {name: value for name, value in keys.items() if value is not None}
        config = S3Location.model_validate({"url": place, **given})
        return S3Lake(config, location=place)
    path = Path(place)
    if not path.is_dir():
        raise ConfigError(
            f"{place} is no directory", fix="name a directory, hdfs://… or s3://BUCKET/PATH"
        )
    return LocalLake(path.absolute())
