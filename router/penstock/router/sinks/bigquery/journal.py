"""Journal of the BigQuery sink: the rows of the current batch that were or may have been appended.

A file of JSON, written whole and synced before the tasks of a batch run, and before each append of
the driver:

    {"stream": "projects/…/streams/S",   where the driver's next append goes; null: to a new one
     "rows": 120,                        how many rows that stream has, but for those being sent
     "sent": [["logs.5f2c19aa-0", [[100, 139]]]],   what was about to be appended, and nobody knows
     "done": {"logs.5f2c19aa-0": [[20, 99]]},       of the batch, what is there
     "rules": "9d0c…",                   which rows of the log tasks append: SinkContext.rules
     "lent": {"logs.5f2c19aa-0": ["projects/…/streams/T", 7000, 140]}}
                                         a stream for tasks: its rows, and the batch's first offset

Offsets are those of the log, as runs with both ends included. A batch that has none of what is done
or sent is another batch, and so is one that begins at another offset than tasks had.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from penstock.base.files import atomic_write
from penstock.router.sinks.sink import persist_nothing
from penstock.service import ConfigError

Record = tuple[str, int]
"""A partition of the log, and an offset in it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An append that nobody has answered yet.

    Attributes:
        at: The stream's offset of its first row.
        records: In the order of the rows.
    """

    at: int
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Lent:
    """A stream to which tasks append the rows of one partition of the log.

    Attributes:
        rows: Number of rows that it had before the batch.
        start: The batch's first offset in the partition.
        appended: Number of rows of the batch, all of which are there; None: it is not known yet.
    """

    stream: str
    rows: int
    start: int
    appended: int | None = None


class Journal:
    """The progress of a batch.

    Attributes:
        lent: Streams of tasks, by the partition of the log.
        stream: The stream of the next append; None: there is none.
        rows: Number of rows that it certainly has.
        sent: Rows that it may have beside these.
        is_left: Whether an earlier process wrote to the stream and may have a request in flight.
    """

    def __init__(self, path: Path, persist: Callable[[], None] = persist_nothing) -> None:
        self._path = path
        self._keep = persist
        self._done: set[Record] = set()
        self._rules = ""
        self.lent: dict[str, Lent] = {}
        self.stream: str | None = None
        self.rows = 0
        self.sent: Sent | None = None
        self.is_left = False

    def read(self) -> None:
        """Take up what an earlier life has left.

        Raises:
            ConfigError: The file is damaged.
        """
        try:
            found = orjson.loads(self._path.read_bytes())
            self.stream, self.rows = found["stream"], found["rows"]
            records = tuple(_records(found["sent"]))
            self._done = set(_records(found["done"].items()))
            self._rules = found.get("rules", "")
            self.lent = {it: Lent(*lent) for it, lent in found.get("lent", {}).items()}
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._path} is damaged: {type(error).__name__}",
                fix="remove it; the batch in work may then be in BigQuery twice",
            ) from None
        self.is_left = self.stream is not None
        self.sent = Sent(self.rows, records) if records else None

    def begin(self, records: Iterable[Record]) -> None:
        """A batch comes: this one again, or another one."""
        known = self._done | set(self.sent.records if self.sent else ())
        if known.isdisjoint(records):
            self._done = set()

    def comes_again(self, starts: Mapping[str, int]) -> bool:
        """Return whether something may be there of a batch with these first offsets."""
        known = self._done | set(self.sent.records if self.sent else ())
        return any(offset >= starts.get(place, 0) for place, offset in known) or any(
            lent.start == starts.get(place) and lent.appended != 0
            for place, lent in self.lent.items()
        )

    def lend(self, starts: Mapping[str, int], rules: str, create: Callable[[], str]) -> None:
        """Note a stream for each partition of a batch of which nothing is there.

        The query persists it before tasks run.
        """
        lent = {}
        for place, start in starts.items():
            found = self.lent.get(place)
            if found is None or found.appended is None:
                lent[place] = Lent(create(), 0, start)
            else:
                lent[place] = Lent(found.stream, found.rows + found.appended, start)
        self.lent, self._rules, self._done = lent, rules, set()
        self._write()

    def settle_lent(
        self, place: str, count: int, records: Sequence[Record], rules: str | None
    ) -> bool:
        """A stream of tasks is at its end.

        Args:
            place: The partition of the log.
            count: Number of its rows beyond those that tasks have reported.
            records: The records that tasks may have appended beyond these, in order.
            rules: The rules that chose them; None: some are lost.

        Returns:
            Whether it is known which rows are there.
        """
        self._done.update(records[:count] if rules == self._rules else ())
        del self.lent[place]
        return count == 0 or rules == self._rules

    def end_batch(self, appended: Mapping[str, int] | None) -> None:
        """The batch is delivered.

        Args:
            appended: Number of rows that tasks have appended, by the partition of the log; None:
                the driver has appended all.
        """
        if appended is None:
            self.lent.clear()
        for place, lent in self.lent.items():
            self.lent[place] = replace(lent, appended=(appended or {}).get(place, 0))

    def has(self, place: str, offset: int) -> bool:
        return (place, offset) in self._done

    def start(self, stream: str) -> None:
        """A new stream takes the next rows; it has none."""
        self.stream, self.rows = stream, 0

    def send(self, sent: Sent) -> None:
        """Note what is about to be appended, durably."""
        self.sent = sent
        self._write()
        self._keep()

    def taken(self) -> None:
        """Note that the rows that were sent are stored."""
        assert self.sent is not None
        self._done.update(self.sent.records)
        self.rows += len(self.sent.records)
        self.sent = None

    def refused(self) -> None:
        """Nothing of what was sent is there."""
        self.sent = None

    def settle(self, count: int | None) -> None:
        """The stream is at its end, with so many rows; None where nobody knows any more."""
        if count is not None and self.sent is not None and count > self.sent.at:
            self._done.update(self.sent.records)
        self.stream, self.rows, self.sent, self.is_left = None, 0, None, False

    def _write(self) -> None:
        sent = self.sent.records if self.sent else ()
        found: dict[str, Any] = {
            "stream": self.stream,
            "rows": self.rows,
            "sent": list(_runs(sent).items()),
            "done": _runs(self._done),
            "rules": self._rules,
            "lent": {it: [lent.stream, lent.rows, lent.start] for it, lent in self.lent.items()},
        }
        atomic_write(self._path, orjson.dumps(found), parents=True)


def _runs(records: Iterable[Record]) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for place, offset in sorted(records):
        runs = found.setdefault(place, [])
        if runs and runs[-1][1] == offset - 1:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset])
    return found


def _records(places: Iterable[Any]) -> Iterable[Record]:
    return (
        (place, offset)
        for place, runs in places
        for first, last in runs
        for offset in range(first, last + 1)
    )
