"""The journal of a sink's batches: where each ended, so that a replay makes the same ones again.

    CHECKPOINT_DIR/SINK/batches.ndjson      {"logs": {"0": 1200, "incarnation": "5f2c…"}}

A line is added before a batch is delivered. What a crash loses of it is cut anew by a replay. The
first line is where the first batch began, until older lines make room.
"""

import json
from pathlib import Path
from typing import Final

from penstock.router.core.offsets import Offsets, offsets_from_json
from penstock.router.errors import BadOptionError
from penstock.router.kept_lines import KeptLines

JOURNAL: Final = "batches.ndjson"
"""Its file, in a sink's directory."""

BATCHES_MAX: Final = 100_000
"""Lines that are kept; the older ones make room, half of them at a time."""


class BatchJournal:
    """One sink's.

    Args:
        state_dir: The sink's directory.
        batches_max: Lines that are kept.
    """

    def __init__(self, state_dir: Path, *, batches_max: int = BATCHES_MAX) -> None:
        self._lines = KeptLines(state_dir / JOURNAL, lines_max=batches_max)

    def begin(self, at: Offsets) -> None:
        """The next batch begins there; only the first one's beginning is news."""
        if not self._lines.count:
            self.note(at)

    def note(self, end: Offsets) -> None:
        """A batch that ends there is about to be delivered, perhaps again."""
        line = json.dumps(end.to_json())
        if line != self._lines.last:
            self._lines.add(line)

    def has(self, end: Offsets) -> bool:
        """Whether the newest batch that was about to be delivered ends there."""
        return self._lines.last == json.dumps(end.to_json())

    def ends(self) -> list[Offsets]:
        """Where batches ended, in their order; a line that a crash tore is left out."""
        found = []
        for line in self._lines.load():
            try:
                found.append(offsets_from_json(json.loads(line)))
            except (ValueError, BadOptionError):
                continue
        return found
