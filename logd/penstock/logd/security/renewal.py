"""Files that are read again when they change: certificates, keys of tokens, API keys.

A file that has become unusable changes nothing: what was read before goes on, and the problem is
reported until the file is sound again. Two files that belong together may be replaced one after the
other: what does not fit is tried again at each look.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from penstock.logd.errors import LogdError

Value = TypeVar("Value")
_Seen = tuple[tuple[int, int, int] | None, ...]

_log = structlog.get_logger()


class Renewed(Generic[Value]):
    """Value of some files. `look` may be called on any thread; the value is replaced as a whole.

    Args:
        what: Name for people, as in `tls`.
        paths: The files.
        load: Makes the value of them.

    Raises:
        LogdError: `load` raised it the first time.

    Attributes:
        value: Value of the last valid content.
        problem: Why the current content is invalid; empty when it is not.
        loaded, failed: Number of replacements, and of failed ones.
    """

    def __init__(self, what: str, paths: tuple[Path, ...], load: Callable[[], Value]) -> None:
        self.what = what
        self.problem = ""
        self.loaded = self.failed = 0
        self._paths = paths
        self._load = load
        self._lock = threading.Lock()
        self._seen = self._state()
        self.value = load()

    def __call__(self) -> Value:
        return self.value

    def current(self) -> Value:
        """Return the value after a look: for rare callers, on a thread."""
        self.look()
        return self.value

    def look(self, *, anyway: bool = False) -> None:
        """Read the files if they have changed, or `anyway`."""
        with self._lock:
            state = self._state()
            if state == self._seen and not self.problem and not anyway:
                return
            fresh = state != self._seen
            self._seen = state
            try:
                self.value = self._load()
            except (LogdError, OSError) as error:
                self._fail(str(error), tell=fresh or anyway)
                return
            self.problem = ""
            self.loaded += 1
            files = [str(path) for path in self._paths]
            _log.info("credentials_reloaded", section=self.what, files=files)

    def _fail(self, problem: str, *, tell: bool) -> None:
        if tell or problem != self.problem:
            self.failed += 1
            _log.error(
                "credentials_reload_failed", section=self.what, reason=problem, kept="previous"
            )
        self.problem = problem

    def _state(self) -> _Seen:
        return tuple(_state_of(path) for path in self._paths)


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced, behind symbolic links too."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
