"""The journal of a sink's batches: where each ended, so that a replay makes the same ones again.

    CHECKPOINT_DIR/SINK/batches.ndjson      {"logs": {"0": 1200, "incarnation": "5f2c…"}}

A line is added before a batch is delivered. What a crash loses of it is cut anew by a replay. The
first line is where the first batch began, until older lines make room.
"""

import json
import os
from collections import deque
from pathlib import Path
from typing import Final

from penstock.router.core.offsets import Offsets, offsets_from_json
from penstock.router.durable import write_whole
from penstock.router.errors import BadOptionError

JOURNAL: Final = "batches.ndjson"
"""Its file, in a sink's directory."""

BATCHES_MAX: Final = 100_000
"""Lines that are kept; the older ones make room, half of them at a time."""


class BatchJournal:
    """One sink's."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / JOURNAL
        lines = self._lines()
        self._count = len(lines)
        self._last = lines[-1] if lines else ""
        self._may_be_torn = True

    def begin(self, at: Offsets) -> None:
        """The next batch begins there; only the first one's beginning is news."""
        if not self._count:
            self.note(at)

    def note(self, end: Offsets) -> None:
        """A batch that ends there is about to be delivered, perhaps again."""
        line = json.dumps(end.to_json())
        if line == self._last:
            return
        if self._count >= BATCHES_MAX:
            kept = self._lines()[-BATCHES_MAX // 2 :]
            write_whole(self._path, "".join(f"{it}\n" for it in kept).encode())
            self._count = len(kept)
        with self._path.open("ab") as file:
            # Behind what a full disk or a crash left of a line, a whole one begins on its own.
            torn = self._may_be_torn and file.tell() and not self._ends_whole()
            self._may_be_torn = True
            file.write((b"\n" if torn else b"") + line.encode() + b"\n")
        self._may_be_torn = False
        self._last = line
        self._count += 1

    def ends(self) -> list[Offsets]:
        """Where batches ended, in their order; a line that a crash tore is left out."""
        found = []
        for line in self._lines():
            try:
                found.append(offsets_from_json(json.loads(line)))
            except (ValueError, BadOptionError):
                continue
        return found

    def _ends_whole(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"

    def _lines(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open(errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=BATCHES_MAX)]
