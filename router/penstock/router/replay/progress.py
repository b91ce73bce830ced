"""Progress of a replay and its problem; the deliverer updates it, any thread may read it.

A replay of a range also writes it down, so that one that was ended early goes on where it was:

    CHECKPOINT_DIR/SINK/replay.json   {"batches": 3, "first": OFFSETS, "done": OFFSETS,
                                       "last": OFFSETS}

`first` and `last` are the range, `done` is the position behind the last batch that was delivered.
OFFSETS are as in the journal of batches.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from penstock.base.files import atomic_write, sync_directories
from penstock.base.pluralize import pluralize
from penstock.router.errors import BadOptionError
from penstock.router.meter import Meter
from penstock.router.read.offsets import Offsets, offsets_from_json
from penstock.service import ConfigError

Unit = Literal["batches", "files"]


class Progress:
    """The progress of one replay.

    Attributes:
        sink: The sink; empty until it is known.
        unit: Unit of `done` and `of`.
        done: Delivered units.
        of: All units; 0 until their number is known.
        records: Records that the sink accepted.
        refused: Records that it refused; they are dead letters again.
        left_out: Records that transforms left out.
        meter: The sink's own meter.
    """

    def __init__(self, unit: Unit, sink: str = "") -> None:
        self.sink = sink
        self.unit = unit
        self.done = 0
        self.of = 0
        self.records = self.refused = self.left_out = 0
        self.meter = Meter()

    def start_over(self) -> None:
        """A run may have had a replay before."""
        self.done = self.records = self.refused = self.left_out = 0

    def took(self, routed: int, before: Counter[str]) -> None:
        """Count a batch of so many routed records, by what the meter has counted since `before`."""
        more = self.meter.counted() - before
        refused = more["dead_letters"]
        left_out = sum(count for name, count in more.items() if name.startswith("left_out_"))
        self.refused += refused
        self.left_out += left_out
        self.records += routed - refused - left_out

    def others(self) -> str:
        """Return the text on records that the sink did not get, to follow their number."""
        refused = f", {self.refused} refused again (dead letters)" if self.refused else ""
        left_out = f", {self.left_out} left out by transforms" if self.left_out else ""
        return refused + left_out

    @property
    def problem(self) -> str | None:
        """Description of what keeps the sink from delivering; None while it works."""
        return self.meter.problem

    def as_json(self, now_ns: int) -> dict[str, Any]:
        """Return the fields for `/status`."""
        return {
            "sink": self.sink,
            "unit": self.unit,
            "done": self.done,
            "of": self.of,
            "records": self.records,
            "problem": self.problem or "",
            "circuit": self.meter.circuit.as_json(now_ns),
        }

    @override
    def __str__(self) -> str:
        records = pluralize(self.records, "record")
        return f"{self.done} of {self.of} {self.unit}, {records}{self.others()}"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A replay of a range that was begun.

    Attributes:
        first: First offsets of the range.
        done: Offsets after the last delivered batch.
        last: End of the range.
        batches: Number of delivered batches.
    """

    first: Offsets
    done: Offsets
    last: Offsets
    batches: int = 0


class ReplayNote:
    """Keeps one sink's."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "replay.json"

    def load(self) -> Unfinished | None:
        """Return the replay that was interrupted; None: there is none.

        Raises:
            ConfigError: The file is damaged.
        """
        try:
            found = json.loads(self._path.read_text())
            first, done, last = (offsets_from_json(found[it]) for it in ("first", "done", "last"))
            return Unfinished(first, done, last, int(found["batches"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, BadOptionError) as error:
            raise ConfigError(
                f"{self._path} cannot be read: {error}", fix="remove it, and replay the range again"
            ) from None

    def keep(self, it: Unfinished) -> None:
        """Write it down."""
        document = {
            "batches": it.batches,
            "first": it.first.to_json(),
            "done": it.done.to_json(),
            "last": it.last.to_json(),
        }
        atomic_write(self._path, json.dumps(document).encode(), parents=True)

    def remove(self) -> None:
        """It came to its end, or is given up."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return
        sync_directories([self._path.parent])


Report = Callable[[str], None]
"""Takes a line, for people."""


def silent(_: str) -> None:
    """Nobody wants to know."""
