"""Rows of a history on disk: one file of fixed size that is written in place, and one of names.

`rows`, little-endian:

    offset   bytes   what
    0            8   b"PENSHIST"
    8            4   version, 1
    12           4   columns of a row, C
    16           4   CRC-32 (zlib) of the 16 bytes before
    20           4   0
    24         ...   rows: those of each ring of `rings.RINGS` in turn, by `Ring.place_of`

    a row, 16 + 4 C bytes:
    0            8   when its slot begins, in Unix seconds; 0: there is none
    8            4   values that were written, V
    12           4   CRC-32 of bytes 0 to 12 and of the V values
    16         4 V   values, IEEE 754 binary32; NaN: none
                     (what follows up to 4 C was never written: a hole in the file)

`names.json`: {"version": 1, "columns": [[kind, name, figure, column, since_s], ...]}. It is written
before a row that needs it. Values of a row from before `since_s` were another series'.

A write that is cut off leaves one row whose CRC does not fit: that row is left out, the others
stay. A file of another version or width, and one whose names are missing or damaged, begins again.
"""

import fcntl
import json
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.base.files import atomic_write
from penstock.deploy.console.history.rings import (
    RINGS,
    ROWS,
    Changes,
    Column,
    History,
    Row,
    Series,
)

_MAGIC: Final = b"PENSHIST"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sII")
_HEADER_BYTES: Final = 24
_ROW: Final = struct.Struct("<qI")
_ROW_BYTES: Final = 16


class HistoryInUseError(Exception):
    """Another process keeps its history in the directory."""


class HistoryFile:
    """The history of one console; one process at a time has it.

    Args:
        directory: Made when it is not there.
        max_series: Columns of a row.

    Raises:
        HistoryInUseError: Another process has it.
        OSError: The directory or the file cannot be made or opened.
    """

    def __init__(self, directory: Path, max_series: int) -> None:
        self._names = directory / "names.json"
        self._width = max_series
        self._names_due = False
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(directory / "rows", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise HistoryInUseError(f"another console keeps its history in {directory}") from None

    def load(self, history: History) -> bool:
        """Give what is kept to a history; false: there was none that can be used, it begins again.

        Raises:
            OSError: The disk failed.
        """
        head = _HEADER.pack(_MAGIC, VERSION, self._width)
        head += zlib.crc32(head).to_bytes(4, "little") + bytes(4)
        columns = self._columns()
        if columns is None or os.pread(self._fd, _HEADER_BYTES, 0) != head:
            was = os.fstat(self._fd).st_size
            os.ftruncate(self._fd, 0)
            os.ftruncate(self._fd, _HEADER_BYTES + ROWS * self._row_bytes)
            os.pwrite(self._fd, head, 0)
            return was == 0
        history.restore(columns, self._rows())
        return True

    def write(self, history: History, changes: Changes) -> None:
        """Keep what changed.

        Raises:
            OSError: The disk failed, or is full.
        """
        self._names_due = self._names_due or changes.columns
        if self._names_due:
            told = [[*series, one.index, one.since_s] for series, one in history.columns.items()]
            document = {"version": VERSION, "columns": told}
            atomic_write(self._names, json.dumps(document), mode=0o600)
            self._names_due = False
        for number, row in changes.rows:
            values = _little_endian(row.values).tobytes()
            fixed = _ROW.pack(row.start_s, len(row.values))
            crc = zlib.crc32(values, zlib.crc32(fixed)).to_bytes(4, "little")
            place = self._place(number, RINGS[number].place_of(row.start_s))
            os.pwrite(self._fd, fixed + crc + values, place)

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._fd)

    @property
    def _row_bytes(self) -> int:
        return _ROW_BYTES + 4 * self._width

    def _place(self, number: int, place: int) -> int:
        before = sum(ring.rows for ring in RINGS[:number])
        return _HEADER_BYTES + (before + place) * self._row_bytes

    def _columns(self) -> dict[Series, Column] | None:
        try:
            document = json.loads(self._names.read_text())
            if document["version"] != VERSION:
                return None
            found = {
                Series(str(kind), str(name), str(figure)): Column(
                    int(index), int(since), int(since)
                )
                for kind, name, figure, index, since in document["columns"]
            }
        except (OSError, ValueError, KeyError, TypeError):
            return None
        indexes = sorted(column.index for column in found.values())
        return found if indexes == list(range(len(found))) and len(found) <= self._width else None

    def _rows(self) -> Iterator[tuple[int, Row]]:
        for number, ring in enumerate(RINGS):
            for place in range(ring.rows):
                row = self._row(os.pread(self._fd, self._row_bytes, self._place(number, place)))
                if row is not None and ring.place_of(row.start_s) == place:
                    yield number, row

    def _row(self, data: bytes) -> Row | None:
        if len(data) < _ROW_BYTES:
            return None
        start_s, count = _ROW.unpack_from(data)
        values = data[_ROW_BYTES : _ROW_BYTES + 4 * count]
        crc = zlib.crc32(values, zlib.crc32(data[: _ROW.size])).to_bytes(4, "little")
        if start_s <= 0 or len(values) != 4 * count or data[_ROW.size : _ROW_BYTES] != crc:
            return None
        held = array("f")
        held.frombytes(values)
        return Row(start_s, _little_endian(held))


def _little_endian(values: "array[float]") -> "array[float]":
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped
