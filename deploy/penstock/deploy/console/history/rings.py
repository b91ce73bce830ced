"""Figures over time in bounded memory: rows of 15 s, 5 minutes and 1 hour, each kept for its span.

A row is one slot of time and holds a value of each series; a series has the same column in all
rows. A row of 5 minutes is made of those of 15 s once its slot is over, and one of an hour of those
of 5 minutes: rates by their mean, levels by their maximum, free room by its minimum. What a row
lacks is NaN. The slot that goes on now is worked out when it is read, so nothing is lost when the
process ends between two rows.

    span   step   rows   made of
    15m    15 s     61   samples
    6h     300 s    73   15 s
    7d     3600 s  169   300 s

When there are more series than columns, a new one takes the column of the series that was not seen
for the longest time; while all are seen, it is left out and counted.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, NamedTuple

NOTHING: Final = math.nan


class Series(NamedTuple):
    """The type of a column.

    Attributes:
        kind: `pipeline`, `stream`, `collector`, `job` or `sink`.
        name: Name of the part; empty for the pipeline.
        figure: Figure of the series, see `penstock.deploy.console.history.samples`.
    """

    kind: str
    name: str
    figure: str


@dataclass(frozen=True, slots=True)
class Ring:
    """Rows of one step.

    Attributes:
        span: The span that was asked for.
        step_s: Seconds of a slot.
        rows: Number of rows: those of the span, and the current slot.
    """

    span: str
    step_s: int
    rows: int

    def slot_of(self, unix_s: int) -> int:
        """The time at which the slot of a time begins."""
        return unix_s - unix_s % self.step_s

    def place_of(self, start_s: int) -> int:
        """Return the position of a row in the ring."""
        return start_s // self.step_s % self.rows


RINGS: Final = (Ring("15m", 15, 61), Ring("6h", 300, 73), Ring("7d", 3600, 169))
"""Rings from the finest on; part of the format of `penstock.deploy.console.history.file`."""

ROWS: Final = sum(ring.rows for ring in RINGS)


@dataclass(frozen=True, slots=True)
class Row:
    """One slot.

    Attributes:
        start_s: Unix time of its beginning, in seconds.
        values: Values by column; there may be fewer values than columns.
    """

    start_s: int
    values: "array[float]"

    def at(self, column: int) -> float:
        """The value of a column; NaN when there is none."""
        return self.values[column] if column < len(self.values) else NOTHING


@dataclass(slots=True)
class Column:
    """The position of a series.

    Attributes:
        since_s: Time when it was given the column; rows from before were another series's.
        seen_s: Time when the series was last seen.
    """

    index: int
    since_s: int
    seen_s: int


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one sample.

    Attributes:
        columns: Whether a series was given a column.
        rows: Rows that are new or other than before, each with the index of its ring.
    """

    columns: bool
    rows: Sequence[tuple[int, Row]]


@dataclass(slots=True)
class History:
    """The rows of all rings.

    Attributes:
        max_series: Maximum number of columns.
        columns: Columns by series.
        left_out: Series of the last sample that had no column.
    """

    max_series: int
    columns: dict[Series, Column] = field(default_factory=dict)
    left_out: int = 0
    _settled_s: int = 0
    _rings: list[list[Row | None]] = field(
        default_factory=lambda: [[None] * ring.rows for ring in RINGS]
    )

    def restore(self, columns: Mapping[Series, Column], rows: Iterable[tuple[int, Row]]) -> None:
        """Take what was kept; what a row holds from before its column's time is left out."""
        self.columns = dict(columns)
        for number, row in rows:
            for column in self.columns.values():
                if row.start_s < column.since_s and column.index < len(row.values):
                    row.values[column.index] = NOTHING
            self._rings[number][RINGS[number].place_of(row.start_s)] = row

    def note(self, unix_s: int, sample: Mapping[Series, float]) -> Changes:
        """Take a sample. A second one of the same slot takes the place of the first."""
        start_s = RINGS[0].slot_of(unix_s)
        new = self._give_columns(sample, start_s)
        values = array("f", [NOTHING]) * len(self.columns)
        for series, value in sample.items():
            column = self.columns.get(series)
            if column is not None:
                values[column.index] = value
        settled = self._settle(unix_s)  # before the row takes the place of one that it needs
        row = Row(start_s, values)
        self._rings[0][RINGS[0].place_of(start_s)] = row
        return Changes(new, [*settled, (0, row)])

    def read(self, kind: str, name: str, span: str, unix_s: int) -> dict[str, Any] | None:
        """Figures of one thing over a span, oldest first; None: there is no such span.

        Returns:
            `step_s`, `start_s` of the first slot, and for each figure a value for each slot, None
            where there is none.
        """
        number = next((n for n, ring in enumerate(RINGS) if ring.span == span), None)
        if number is None:
            return None
        ring, wanted = RINGS[number], {
            series.figure: (series, column.index)
            for series, column in self.columns.items()
            if (series.kind, series.name) == (kind, name)
        }  # fmt: skip
        last_s = ring.slot_of(unix_s)
        first_s = last_s - (ring.rows - 1) * ring.step_s
        starts = range(first_s, last_s + 1, ring.step_s)
        return {
            "step_s": ring.step_s,
            "start_s": first_s,
            "figures": {
                figure: [_or_none(self._value(number, start, *held, unix_s)) for start in starts]
                for figure, held in sorted(wanted.items())
            },
        }

    def _row(self, number: int, start_s: int) -> Row | None:
        row = self._rings[number][RINGS[number].place_of(start_s)]
        return row if row is not None and row.start_s == start_s else None

    def _value(self, number: int, start_s: int, series: Series, column: int, unix_s: int) -> float:
        """A value of a slot, of finer rows while it has no row itself."""
        row = self._row(number, start_s)
        if row is not None:
            return row.at(column)
        ring, finer = RINGS[number], RINGS[number - 1]
        if not number or start_s + ring.step_s <= unix_s - finer.step_s * finer.rows:
            return NOTHING
        starts = range(start_s, min(unix_s + 1, start_s + ring.step_s), finer.step_s)
        found = [self._value(number - 1, start, series, column, unix_s) for start in starts]
        return combine(series.figure, found)

    def _settle(self, unix_s: int) -> list[tuple[int, Row]]:
        """Make the coarser rows of slots that are over."""
        now_s, before_s = RINGS[1].slot_of(unix_s), self._settled_s
        self._settled_s = now_s
        if now_s == before_s:
            return []
        made = []
        for number, ring in enumerate(RINGS[1:], 1):
            held = {ring.slot_of(row.start_s) for row in self._rings[number - 1] if row is not None}
            for start_s in sorted(held):
                if start_s < ring.slot_of(unix_s) and self._row(number, start_s) is None:
                    row = self._combined(number, start_s)
                    place = ring.place_of(start_s)
                    there = self._rings[number][place]
                    if there is None or there.start_s < start_s or there.start_s > unix_s:
                        self._rings[number][place] = row
                        made.append((number, row))
        return made

    def _combined(self, number: int, start_s: int) -> Row:
        """The row of a slot that is over, of the finer rows that there are."""
        finer = RINGS[number - 1].step_s
        starts = range(start_s, start_s + RINGS[number].step_s, finer)
        rows = [row for start in starts if (row := self._row(number - 1, start)) is not None]
        columns = list(zip_longest(*(row.values for row in rows), fillvalue=NOTHING))
        values = array("f", [NOTHING]) * len(columns)
        for series, column in self.columns.items():
            if column.index < len(columns):
                values[column.index] = combine(series.figure, columns[column.index])
        return Row(start_s, values)

    def _give_columns(self, sample: Mapping[Series, float], start_s: int) -> bool:
        new = [series for series in sample if series not in self.columns]
        changed = False
        for series in sample:
            column = self.columns.get(series)
            if column is not None:
                column.seen_s = start_s
                if start_s < column.since_s:  # the clock was ahead when it was given
                    column.since_s, changed = start_s, True
        self.left_out, used = 0, len(self.columns)
        gone = sorted(
            (column.seen_s, series)
            for series, column in self.columns.items()
            if new and series not in sample
        )
        for number, series in enumerate(new):
            if used < self.max_series:
                index, used = used, used + 1
            elif gone:
                index = self.columns.pop(gone.pop(0)[1]).index
                self._clear(index)
            else:
                self.left_out = len(new) - number
                return changed or number > 0
            self.columns[series] = Column(index, start_s, start_s)
        return changed or bool(new)

    def _clear(self, column: int) -> None:
        for rows in self._rings:
            for row in rows:
                if row is not None and column < len(row.values):
                    row.values[column] = NOTHING


def combine(figure: str, values: Sequence[float]) -> float:
    """One value for several: the mean of rates, the maximum of levels, the minimum of free room."""
    known = [value for value in values if value == value]  # noqa: PLR0124 - NaN is not; fast
    if not known:
        return NOTHING
    if figure == "free_bytes":
        return min(known)
    if figure.endswith("_bytes") or figure.startswith("waiting"):
        return max(known)
    return sum(known) / len(known)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.6g}")
