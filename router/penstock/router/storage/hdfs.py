"""Files in HDFS: made exclusively, replaced in one step, durable before they are named; errors.

The library `hdfs-native` speaks Hadoop's protocols itself, without a JVM. What it leaves open is
settled here:

- HDFS shows a file from its first byte on. So every file is written under its own dot-name,
  synced (hsync: on the disks of its datanodes), closed, and only then renamed to its place.
- The library repeats a call of which the answer got lost, and a rename that was done the first time
  then finds no source. `create` and `replace` look what is there before they believe that.
- It tries again for minutes where nobody listens, and waits without end for a namenode that takes
  connections and is silent. Its tries are limited by its own configuration; each call has at most
  `timeout_s` besides, on its own thread. A call that is given up may still be done later: so
  no two attempts share a dot-name.
- Its errors are texts, mostly in the form that Rust prints; where the namenode refused, that is
  `RPCError`, with the class of Java's exception, its words and its stack. They become `ConfigError`
  where somebody must change something, and else `UnavailableError`.

The user is Kerberos' principal; without Kerberos that of the process, or `HADOOP_USER_NAME`.
"""

import io
import posixpath
import re
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import model_validator
from typing_extensions import Buffer, override

from penstock.router.job.config_errors import MissingLibraryError, needed
from penstock.router.job.settings import Seconds, Settings
from penstock.router.storage.range_input import RangeInput
from penstock.service import ConfigError, ServiceError, UnavailableError

_REFUSED: Final = re.compile(r'(?:Fatal)?RPCError\("(?P<kind>[^"]+)", "(?P<said>.*)"\)', re.DOTALL)
_OTHER: Final = re.compile(r"(?P<kind>[A-Z][A-Za-z]+)\((?P<said>.*)\)", re.DOTALL)

_PERMISSION: Final = (
    "let the job's user write there, or run the job as one who may: HADOOP_USER_NAME, or Kerberos'"
    " principal"
)
_SPACE: Final = "raise the quota of the directory, or remove what is not needed"
_KERBEROS: Final = (
    "check principal and keytab, or the user's ticket (klist); the library needs libgssapi_krb5,"
    " and config_dir a core-site.xml with hadoop.security.authentication"
)
_CORRECT_SITES: Final = "correct the URL, or the core-site.xml and hdfs-site.xml that are used"
_DIRECTORY: Final = "name another directory"

_TO_CHANGE: Final = {
    "AccessControlException": _PERMISSION,
    "AuthorizationException": _PERMISSION,
    "NSQuotaExceededException": _SPACE,
    "DSQuotaExceededException": _SPACE,
    "QuotaByStorageTypeExceededException": _SPACE,
    "SASLError": _KERBEROS,
    "GSSAPIError": _KERBEROS,
    "NoSASLMechanism": _KERBEROS,
    "InvalidToken": _KERBEROS,
    "XmlParseError": _CORRECT_SITES,
    "UrlParseError": _CORRECT_SITES,
    "InvalidArgument": _CORRECT_SITES,
    "InvalidPathException": _DIRECTORY,
    "ParentNotDirectoryException": _DIRECTORY,
    "PathComponentTooLongException": _DIRECTORY,
    "MaxDirectoryItemsExceededException": _DIRECTORY,
    "FileExistsError": _DIRECTORY,
    "IsADirectoryError": _DIRECTORY,
    "NotImplementedError": _DIRECTORY,
    "UnsupportedErasureCodingPolicy": _DIRECTORY,
}
"""Fix by the kind of an error that an operator must act on; any other kind may pass."""

_NO_NAMENODE: Final = "No NameNode hosts found"
_WAYS: Final = (
    (r"SafeMode|safe mode", "see why the namenode is in safe mode: hdfs dfsadmin -safemode get"),
    (r"replicated to|DataTransfer|BlocksNotFound|datanode", "see whether the datanodes run"),
    (r"lookup address", "check the name of the namenode, and this machine's DNS"),
    (
        r"listener disconnected|reset by peer",
        "see whether the namenode runs, and whether the port is its RPC's, which mostly is 8020",
    ),
    (r"", "see whether the namenode and the datanodes run"),
)
"""Hint by the text of an error that may pass; the first pattern that matches counts."""


def translated(error: Exception, about: str) -> ServiceError:
    """An error of the library, as the router raises it.

    `about` is the key of the job file, and what was done.
    """
    kind, said = _parsed(error)
    reason = f"{about}: {said}"
    if said == _NO_NAMENODE:
        return ConfigError(
            reason,
            fix="write the port (hdfs://namenode:8020/…), or name the directory that has the"
            " nameservice's hdfs-site.xml as config_dir",
        )
    if kind in _TO_CHANGE:
        return ConfigError(reason, fix=_TO_CHANGE[kind])
    fix = next(fix for pattern, fix in _WAYS if re.search(pattern, f"{kind} {said}"))
    return UnavailableError(reason, fix=fix)


def _parsed(error: Exception) -> tuple[str, str]:
    """Return an error's kind, and the first line of its message, without Java's stack."""
    text = str(error)
    found = _REFUSED.fullmatch(text) or _OTHER.fullmatch(text)
    if found is None:
        return text if text == "NoSASLMechanism" else type(error).__name__, _first_line(text)
    said = found["said"].replace(r"\n", "\n").replace(r"\"", '"').removeprefix('"')
    return re.split(r"[.$]", found["kind"])[-1], _first_line(said).removesuffix('"')


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]


PART_BYTES: Final = 1024 * 1024
"""Bytes that one call passes to the library, or reads from it."""


class _Nothing:
    """Takes the place of a file in the library's object, whose finalizer closes what it has."""

    def close(self) -> None:
        pass


class HdfsOutput(io.RawIOBase):
    """A file of the library's that is written to.

    A file that nobody closes stays unfinished. Python closes files when it collects them, in any
    thread, which would wait without end for a namenode that is silent.
    """

    def __init__(self, file: Any, bounded: Callable[..., Any], path: str) -> None:
        self._file, file.inner = file.inner, _Nothing()
        self._bounded, self._path = bounded, path
        self._position = 0
        self._failure: Exception | None = None

    @override
    def __del__(self) -> None:
        pass

    @override
    def writable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def write(self, data: Buffer, /) -> int:
        taken = bytes(data)
        self._do(lambda: self._file.write(taken))
        self._position += len(taken)
        return len(taken)

    def sync(self) -> None:
        """Bring what it got to the disks of the datanodes."""
        self._do(self._file.hsync)

    @override
    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._failure is None:
                self._do(self._file.close)
        finally:
            super().close()

    def _do(self, function: Callable[[], Any]) -> None:
        """After a failure nothing is done any more, and the same is said."""
        if self._failure is not None:
            raise self._failure
        try:
            self._bounded(function, self._path)
        except Exception as error:
            self._failure = error
            raise


class HdfsWriter(io.BufferedWriter):
    """A file that is being written: `sync` makes what it has durable, `close` ends it.

    After a call has failed, `close` asks nothing any more: the file stays unfinished.
    """

    def __init__(self, raw: HdfsOutput) -> None:
        super().__init__(raw, PART_BYTES)
        self._output = raw

    @override
    def __del__(self) -> None:
        pass  # as of `HdfsOutput`

    def sync(self) -> None:
        """Bring everything written so far to the disks of the datanodes."""
        self.flush()
        self._output.sync()


SCHEME: Final = "hdfs://"

_T = TypeVar("_T")
Expected = type[Exception] | tuple[type[Exception], ...]
_DIRECTORY_PERMISSION: Final = 0o755
_SITES: Final = ("core-site.xml", "hdfs-site.xml")
_TRIES: Final = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "250",
    "dfs.client.failover.sleep.max.millis": "2000",
}
"""Enough to find the active one of two namenodes; a job tries again later anyway."""


class HdfsSettings(Settings):
    """Settings of the connection to HDFS.

    Attributes:
        config_dir: Directory of `core-site.xml` and `hdfs-site.xml`; else `HADOOP_CONF_DIR` or
            `HADOOP_HOME/etc/hadoop`, if it is set.
        principal: Kerberos principal, with `keytab`; else the user's ticket is used.
        keytab: File of the principal's keys.
        timeout_s: Maximum seconds of one call.
    """

    config_dir: Path | None = None
    principal: str | None = None
    keytab: Path | None = None
    timeout_s: Seconds = 60.0

    @model_validator(mode="after")
    def _keys_are_somebodys(self) -> Self:
        if (self.principal is None) != (self.keytab is None):
            raise ValueError("principal and keytab: one without the other is of no use")
        return self


class Hdfs:
    """Files below one directory of HDFS; paths are relative to it, with `/` between names."""

    def __init__(self, url: str, *, location: str, settings: HdfsSettings | None = None) -> None:
        """Nothing is connected yet.

        Args:
            url: `hdfs://NAMENODE:PORT/BASE`, or `hdfs://NAMESERVICE/BASE`, which Hadoop's
                configuration files explain.
            location: The key of the job file that has the URL, for messages.
            settings: Settings of the connection.

        Raises:
            ConfigError: The URL is none of HDFS, a file of the settings is missing, or the library.
        """
        self._settings = settings or HdfsSettings()
        self._location = location
        self._authority, self._base = _parts(url, location)
        self._library = _library(location)
        self._client: Any = None
        for path in (self._settings.config_dir, self._settings.keytab):
            if path is not None and not path.exists():
                raise ConfigError(
                    f"{location}: {path} of its `hdfs` does not exist", fix="name the one that does"
                )
        if (home := self._settings.config_dir) and not any((home / it).exists() for it in _SITES):
            raise ConfigError(
                f"{location}: {home} has neither {' nor '.join(_SITES)}",
                fix="name the directory of Hadoop's configuration files as config_dir",
            )

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings without the connection: another process makes its own."""
        return partial(Hdfs, location=self._location, settings=self._settings), (self.url,)

    @property
    def url(self) -> str:
        """The directory that paths are relative to."""
        return SCHEME + self._authority + self._base

    def create(self, path: str, data: bytes) -> bool:
        """Make a file, whole and durable, unless there is one already.

        Returns:
            False if there is one; it is left as it is.
        """
        aside = self._write_aside(path, data)
        try:
            self._rename(aside, path, overwrite=False)
        except FileExistsError:
            self.remove(aside)
            return False
        except FileNotFoundError:
            self._must_be_done(aside, path, data)
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Write a file, whole and durable, in the place of one that may be there."""
        aside = self._write_aside(path, data)
        try:
            self._rename(aside, path, overwrite=True)
        except FileNotFoundError:
            self._must_be_done(aside, path, data)

    def replace_with(self, path: str, write: Callable[[HdfsWriter], Any]) -> None:
        """Have a file written, whole and durable, in the place of one that may be there.

        Raises:
            UnavailableError: It was written, and is gone.
        """
        aside = f"{path}.{uuid.uuid4().hex}.unfinished"
        with self.writer(aside) as file:
            write(file)
            file.sync()
        self.rename(aside, path)

    def read(self, path: str) -> bytes | None:
        """A file's content; None: there is no such file."""
        try:
            with self.reader(path) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def size(self, path: str) -> int | None:
        """A file's size in bytes; None: there is no such file."""
        try:
            status = self._call("get_file_info", path, expected=FileNotFoundError)
        except FileNotFoundError:
            return None
        found: int = status.length
        return found

    def names(self, directory: str = "", recursive: bool = False) -> list[str]:
        """The files in a directory, sorted, relative to it; not those with a dot-name in the path.

        There are none where there is no such directory.
        """
        return [it for it, _ in self._files(directory, recursive=recursive)]

    def sizes(self, directory: str = "") -> list[tuple[str, int, int]]:
        """The files below a directory: relative to it, bytes, milliseconds of Unix time.

        Without those that have a dot-name in their path.
        """
        found = self._files(directory, recursive=True)
        return [(it, status.length, status.modification_time) for it, status in found]

    def directories(self, directory: str = "") -> list[str]:
        """The names of the directories in a directory, sorted."""
        return [it for it, status in self._listed(directory, recursive=False) if status.isdir]

    def make_directory(self, path: str = "") -> None:
        """Make a directory and those above it, where they are missing."""
        self._call("mkdirs", path, _DIRECTORY_PERMISSION, True)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        self._call("delete", path, False)

    def remove_directory(self, path: str) -> None:
        """Remove a directory with all that is in it, files that a killed writer has open, too."""
        self._call("delete", path, True)

    def rename(self, source: str, target: str) -> None:
        """Move a file, in one step, to a place where another one may be; makes the directories.

        Raises:
            UnavailableError: The source is not there, perhaps because it was moved already.
        """
        try:
            self._rename(source, target, overwrite=True)
        except FileNotFoundError:  # the directory is missing, or the source
            self.make_directory(posixpath.dirname(target))
            try:
                self._rename(source, target, overwrite=True)
            except FileNotFoundError:
                raise self._lost(source) from None

    def writer(self, path: str) -> HdfsWriter:
        """A new file to write to, in the place of one that may be there; see `HdfsWriter`."""
        options, full = self._library.WriteOptions(overwrite=True), self._full(path)

        def created() -> HdfsOutput:
            return HdfsOutput(self.connected().create(full, options), self._bounded, path)

        return HdfsWriter(self._bounded(created, path))

    def reader(self, path: str) -> io.BufferedReader:
        """A file to read from, at any position.

        Raises:
            FileNotFoundError: It is not there.
        """
        found = self._call("read", path, expected=FileNotFoundError)

        def read(position: int, count: int) -> bytes:
            data: bytes = self._bounded(lambda: found.read_range(position, count), path)
            return data

        return io.BufferedReader(RangeInput(len(found), read), PART_BYTES)

    def _write_aside(self, path: str, data: bytes) -> str:
        directory, name = posixpath.split(path)
        aside = posixpath.join(directory, f".{name}.{uuid.uuid4().hex}")
        with self.writer(aside) as file:
            file.write(data)
            file.sync()
        return aside

    def _rename(self, source: str, target: str, *, overwrite: bool) -> None:
        expected = (FileNotFoundError, FileExistsError) if not overwrite else FileNotFoundError
        self._call("rename", source, self._full(target), overwrite, expected=expected)

    def _must_be_done(self, aside: str, path: str, data: bytes) -> None:
        """Check that a rename whose source was missing had succeeded before its answer was lost."""
        if self.read(path) != data:
            raise self._lost(aside)

    def _lost(self, path: str) -> UnavailableError:
        return UnavailableError(
            f"{self._location}: {self.url}/{path} was there and is gone",
            fix="let nothing else write there; what was in it is written again",
        )

    def _files(self, directory: str, *, recursive: bool) -> list[tuple[str, Any]]:
        found = self._listed(directory, recursive=recursive)
        return [(it, about) for it, about in found if not about.isdir and not _is_hidden(it)]

    def _listed(self, directory: str, *, recursive: bool) -> list[tuple[str, Any]]:
        full = self._full(directory)

        def listed() -> list[tuple[str, Any]]:
            found = self.connected().list_status(full, recursive)
            return sorted(
                ((posixpath.relpath(it.path, full), it) for it in found), key=lambda it: it[0]
            )

        try:
            return self._bounded(listed, directory, FileNotFoundError)
        except FileNotFoundError:
            return []

    def _full(self, path: str) -> str:
        assert not path.startswith("/"), path
        return posixpath.join(self._base or "/", path) if path else self._base or "/"

    def _call(self, name: str, path: str, *arguments: Any, expected: Expected = ()) -> Any:
        full = self._full(path)
        return self._bounded(
            lambda: getattr(self.connected(), name)(full, *arguments), path, expected
        )

    def connected(self) -> Any:
        """The client; made again after a call was given up, for its connection may be of no use."""
        client = self._client
        if client is None:
            given = self._settings
            client = self._client = self._library.Client(
                SCHEME + self._authority,
                _TRIES,
                str(given.config_dir) if given.config_dir else None,
                kerberos_principal=given.principal,
                kerberos_keytab=str(given.keytab) if given.keytab else None,
            )
        return client

    def _bounded(self, function: Callable[[], _T], path: str, expected: Expected = ()) -> _T:
        """Do something that asks HDFS, but do not wait for it without end.

        Errors that are `expected` are raised as they are.

        Raises:
            ConfigError: Somebody must change something.
            UnavailableError: It cannot be done now.
        """
        call = Future[_T]()

        def run() -> None:
            try:
                call.set_result(function())
            except Exception as error:  # noqa: BLE001 - it is raised to the caller
                call.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - a panic of the library is no Exception
                call.set_exception(RuntimeError(f"the library gave up: {error}"))

        threading.Thread(target=run, name="hdfs-call", daemon=True).start()
        wait([call], self._settings.timeout_s)
        about = f"{self._location}: {SCHEME}{self._authority}"
        if not call.done():
            self._client = None
            raise UnavailableError(
                f"{about} has not answered for {self._settings.timeout_s:g} s",
                fix="look at the logs of the namenode and the datanodes",
            )
        try:
            return call.result()
        except expected:
            raise
        except Exception as error:
            raise translated(error, about + self._full(path)) from error


class HdfsObjects:
    """The files of a directory; see `Objects`."""

    def __init__(self, files: Hdfs) -> None:
        self._files = files

    def create(self, name: str, data: bytes) -> bool:
        return self._files.create(name, data)

    def put(self, name: str, data: bytes) -> None:
        self._files.replace(name, data)

    def get(self, name: str) -> bytes | None:
        return self._files.read(name)

    def names(self, below: str) -> list[str]:
        return sorted(f"{below}/{name}" for name in self._files.names(below, recursive=True))

    def remove(self, name: str) -> None:
        self._files.remove(name)

    def close(self) -> None: ...


def _is_hidden(name: str) -> bool:
    return any(it.startswith(".") for it in name.split("/"))


def _library(location: str) -> Any:
    try:
        return needed("hdfs_native", extra="hdfs")
    except MissingLibraryError as error:
        raise ConfigError(f"{location}: {error.reason}", fix=error.fix) from error


def _parts(url: str, location: str) -> tuple[str, str]:
    """Authority, and directory without a slash at its end, of a URL."""
    if wrong := wrong_url(url):
        raise ConfigError(f"{location}: {wrong}", fix="write hdfs://namenode:8020/directory")
    parts = urlsplit(url)
    base = posixpath.normpath(parts.path or "/")
    return parts.netloc, "" if base in {"/", "//"} else base


def wrong_url(url: str) -> str | None:
    """Return what is wrong with the URL of a directory of HDFS; None: nothing."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"{url!r} is no URL: {error}"
    if parts.scheme != "hdfs" or not parts.hostname:
        return (
            f"{url!r} does not say which namenode, or nameservice, as in hdfs://namenode:8020/lake"
        )
    if "@" in parts.netloc:
        return f"{url!r} names a user, whom HDFS is told by Kerberos or HADOOP_USER_NAME"
    if parts.query or parts.fragment or ":" in parts.path:
        return (
            f"{url!r} has a character that HDFS allows in no name, or a reader would misread: ? # :"
        )
    return None
