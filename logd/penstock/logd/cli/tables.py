"""Tables for people: aligned columns, cut to the width of the terminal they are shown on."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.logd.cli.text import cut, safe, width_of

_NOTHING: Final = ("-", "", "NULL")
_LAST_MIN: Final = 12
"""Columns that the last column keeps, however narrow the terminal is."""


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None: it is none, and nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None = None
) -> str:
    """Lay rows out in aligned columns; numbers to the right.

    Args:
        titles: Of the columns.
        rows: What is not text is shown as `str` has it; "-" stands for what is not known.
        width: Columns of the terminal: the last column is cut to it. None: that of standard output.
    """
    lines = [[safe(str(cell)) for cell in row] for row in rows]
    widths = [
        max([width_of(title), *(width_of(line[column]) for line in lines)])
        for column, title in enumerate(titles)
    ]
    right = [_are_numbers([row[column] for row in rows]) for column in range(len(titles))]
    room = width or terminal_width()
    last = None if room is None else max(_LAST_MIN, room - sum(widths[:-1]) - 2 * len(widths) + 2)
    return "\n".join(_line(line, widths, right, last) for line in [list(titles), *lines])


def facts(known: Mapping[str, Any]) -> str:
    """Names and values, one to a line."""
    width = max(map(len, known), default=0)
    return "\n".join(
        f"{name.ljust(width)}  {'none' if value is None else safe(str(value))}"
        for name, value in known.items()
    )


def _line(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], last: int | None
) -> str:
    padded = []
    for number, cell in enumerate(cells):
        if number == len(cells) - 1 and last is not None:
            cell = cut(cell, last)  # noqa: PLW2901 - the last one is what gives way
        space = " " * (widths[number] - width_of(cell))
        padded.append(space + cell if right[number] else cell + space)
    return "  ".join(padded).rstrip()


def _are_numbers(cells: Sequence[object]) -> bool:
    known = [cell for cell in cells if cell not in _NOTHING]
    return bool(known) and all(isinstance(cell, int) for cell in known)
