"""The journal of a sink's batches: where each ended, so that a replay makes the same ones again.

    CHECKPOINT_DIR/SINK/batches.ndjson      {"logs": {"0": 1200, "incarnation": "5f2c…",
                                                      "cuts": {"0": [600]}}}

A line is added before a batch is delivered. What a crash loses of it is cut again by a replay. The
first line is where the first batch began, until older lines make room. `cuts` are there where
several tasks wrote a partition's part of a batch: each but the first began at one of these offsets.
Where tasks send requests, they are those of the batch's first tasks, whatever others it gets later.
"""

import json
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.base.files import atomic_write
from penstock.router.errors import BadOptionError
from penstock.router.read.offsets import Offsets, StreamPartition, offsets_from_json

BATCHES_MAX: Final = 100_000
"""Lines that are kept; the older ones make room, half of them at a time."""


class KeptLines:
    """The file. What a crash, or a full disk, leaves of a line is no part of the next one.

    Args:
        max_bytes: Approximate maximum bytes; None: unlimited.
    """

    def __init__(
        self, path: Path, *, max_lines: int = BATCHES_MAX, max_bytes: int | None = None
    ) -> None:
        self._path = path
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        lines = self.load()
        self.count = len(lines)
        self.last = lines[-1] if lines else ""
        self._before_last = lines[-2] if len(lines) > 1 else ""
        self._may_be_torn = True

    def add(self, line: str) -> None:
        """Add one that has no line break in it."""
        if self.count >= self._max_lines or (self.count and self._is_large()):
            kept = self.load()[self.count // 2 :]
            atomic_write(self._path, "".join(f"{it}\n" for it in kept).encode(), parents=True)
            self.count = len(kept)
        with self._path.open("ab") as file:
            torn = self._may_be_torn and file.tell() and not self._ends_whole()
            self._may_be_torn = True
            file.write((b"\n" if torn else b"") + line.encode() + b"\n")
        self._may_be_torn = False
        self._before_last, self.last = self.last, line
        self.count += 1

    def take_back(self) -> None:
        """Remove the last one; not twice in a row."""
        written = self.last.encode() + b"\n"
        with self._path.open("rb+") as file:
            begin = max(file.seek(0, os.SEEK_END) - len(written), 0)
            file.seek(begin)
            if file.read() != written:  # a crash tore it, and it will be no line
                return
            file.truncate(begin)
        self.last = self._before_last
        self.count -= 1

    def load(self) -> list[str]:
        """Return the stored lines, oldest first."""
        if not self._path.exists():
            return []
        with self._path.open(errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=self._max_lines)]

    def _is_large(self) -> bool:
        return self._max_bytes is not None and self._path.stat().st_size >= self._max_bytes

    def _ends_whole(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"


JOURNAL: Final = "batches.ndjson"
"""Name of the journal in a sink's directory."""

Cuts = Mapping[StreamPartition, tuple[int, ...]]
"""Offsets at which tasks began in the middle of a batch, by partition."""

_CUTS: Final = "cuts"
_NONE: Final[Cuts] = MappingProxyType({})


class BatchJournal:
    """The ends of one sink's batches."""

    def __init__(self, state_dir: Path, *, max_batches: int = BATCHES_MAX) -> None:
        self._lines = KeptLines(state_dir / JOURNAL, max_lines=max_batches)

    def begin(self, at: Offsets) -> None:
        """The next batch begins there; only the first one's beginning is news."""
        if not self._lines.count:
            self.note(at)

    def note(self, end: Offsets, cuts: Cuts = _NONE) -> None:
        """A batch that ends there is about to be delivered, perhaps again."""
        document = end.to_json()
        for (stream, partition), offsets in sorted(cuts.items()):
            document[stream].setdefault(_CUTS, {})[str(partition)] = list(offsets)
        line = json.dumps(document)
        if line != self._lines.last:
            self._lines.add(line)

    def take_back(self, end: Offsets) -> None:
        """The batch that ends there, which was noted last, has nothing for the sink."""
        if self.has(end):
            self._lines.take_back()

    def has(self, end: Offsets) -> bool:
        return self.cuts_of(end) is not None

    def cuts_of(self, end: Offsets) -> Cuts | None:
        """Return the cuts of the batch that ends there; None: it was not noted last."""
        found = _parsed(self._lines.last)
        if found is None or found[0].to_json() != end.to_json():
            return None
        return found[1]

    def batches(self) -> list[tuple[Offsets, Cuts]]:
        """Return the end and the cuts of each batch, oldest first, without a torn line."""
        return [it for it in map(_parsed, self._lines.load()) if it is not None]


def _parsed(line: str) -> tuple[Offsets, Cuts] | None:
    try:
        document = json.loads(line)
        cuts = {
            StreamPartition(stream, int(partition)): tuple(map(int, offsets))
            for stream, told in document.items()
            for partition, offsets in told.pop(_CUTS, {}).items()
        }
        return offsets_from_json(document), cuts
    except (ValueError, TypeError, AttributeError, BadOptionError):
        return None
