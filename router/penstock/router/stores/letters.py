"""Dead letters in the store, each file under its own name, as they lie beside the job.

    letters/SINK/NAME.ndjson            waits to be looked at
    letters/SINK/done/NAME.ndjson       was replayed

They come before the checkpoint that counts their records as done. A file that the store has under
its name is taken to be the same unless it was written since the marker was, as `make` does it.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from penstock.base.files import atomic_write
from penstock.router.stores.objects import Objects
from penstock.router.stores.walking import raise_unless_gone
from penstock.service import ConfigError


class LetterMirror:
    """One directory of letters; whoever uses it holds the lease.

    Args:
        objects: The store.
        place: What its names there begin with.
        root: The directory; it need not be there.
        marker: A file that is as old as what is stored for certain.
        only: The only file in the directory that is meant; none: all.
    """

    def __init__(
        self, objects: Objects, place: str, root: Path, *, marker: Path, only: str | None = None
    ) -> None:
        self._objects = objects
        self._place = place
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
        names = [it[len(self._place) + 1 :] for it in self._objects.names(self._place)]
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
                f"checkpoint_store: {self._place}/{name} leads out of {self._root}",
                fix="remove it: no job has put it there",
            )
        data = self._objects.get(f"{self._place}/{name}")
        path = self._root / name
        if data is not None and not (path.exists() and path.read_bytes() == data):
            atomic_write(path, data, parents=True)

    def keep(self) -> None:
        """Store what is new, and remove what is no more."""
        with self._lock:
            self._keep()

    def _keep(self) -> None:
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
            self._objects.put(f"{self._place}/{name}", data)
            self._stored[name] = at_ns
        for name in sorted(self._stored.keys() - here.keys()):
            self._objects.remove(f"{self._place}/{name}")
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
        """When directories, or the only file, were changed: files are made and renamed there."""
        found = []
        for path in (self._root, self._root / "replaying", self._root / "done"):
            at = path / self._only if self._only else path
            found.append(at.stat().st_mtime_ns if at.exists() else 0)
        return found
