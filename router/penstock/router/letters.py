"""Dead letters of a job, found, shown, and put back as rows of the log.

DIR/SINK/NAME.ndjson            to be looked at
DIR/SINK/replaying/NAME.ndjson  being replayed, or left there by a replay that was killed
DIR/SINK/done/NAME.ndjson       replayed: a sink has the records, or refused them anew
"""

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.router.core.offsets import Span
from penstock.router.durable import sync_directories
from penstock.router.shaping import Shape, Shaper
from penstock.router.spec_versions import known_versions
from penstock.router.views import view
from penstock.service import ConfigError

Letter = dict[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_US: Final = 1000


@dataclass(frozen=True, slots=True)
class LetterFile:
    """One file of letters.

    Attributes:
        path: Where it lies now.
        sink: Whose it is.
        state: `waiting`, `replaying` or `done`.
    """

    path: Path
    sink: str
    state: str

    @property
    def name(self) -> str:
        """What commands call it: SINK/NAME."""
        return f"{self.sink}/{self.path.stem}"

    def letters(self) -> list[Letter]:
        """Its letters, in the log's order.

        Raises:
            ConfigError: It holds something else.
        """
        try:
            return [json.loads(line) for line in self.path.read_text().splitlines()]
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.path}: no file of dead letters: {error}", fix="move it out of there"
            ) from None

    def summary(self) -> dict[str, Any]:
        """What it holds, in a few words."""
        letters = self.letters()
        codes = Counter(str(letter.get("code", letter.get("status"))) for letter in letters)
        first = letters[0] if letters else {}
        return {
            "name": self.name,
            "state": self.state,
            "letters": len(letters),
            "codes": dict(codes),
            "time": first.get("time"),
            "reason": first.get("reason"),
        }

    def begin(self) -> "LetterFile":
        """Set it apart, so that letters of the same name can be written meanwhile."""
        return self._moved("replaying")

    def end(self) -> "LetterFile":
        """Mark it as replayed."""
        return self._moved("done")

    def _moved(self, state: str) -> "LetterFile":
        if state == self.state:
            return self
        home = self.path.parent if self.state == "waiting" else self.path.parent.parent
        target = home / state / self.path.name
        target.parent.mkdir(exist_ok=True)
        self.path.replace(target)
        sync_directories([target.parent, self.path.parent])
        return LetterFile(target, self.sink, state)


def find_letters(
    directory: Path, *, sink: str | None = None, names: tuple[str, ...] = (), done: bool = False
) -> list[LetterFile]:
    """The files of a job, oldest name first.

    Of the same name, what a killed replay left comes before what was refused since, which would
    else take its place.

    Args:
        directory: The job's dead letters.
        sink: Only this sink's.
        names: Only these, as `LetterFile.name` has them; all without.
        done: Also those that were replayed.

    Raises:
        ConfigError: There is none of a name.
    """
    found = sorted(_all(directory), key=lambda file: (file.name, file.state))
    chosen = [
        file
        for file in found
        if (done or file.state != "done")
        and (sink is None or file.sink == sink)
        and (not names or file.name in names)
    ]
    for name in names:
        if name not in {file.name for file in chosen}:
            raise ConfigError(
                f"there are no dead letters {name!r} in {directory}",
                fix="penstock router dlq ls JOB lists them",
            )
    return chosen


def _all(directory: Path) -> Iterator[LetterFile]:
    for path in directory.glob("*/*.ndjson"):
        yield LetterFile(path, path.parent.name, "waiting")
    for state in ("replaying", "done"):
        for path in directory.glob(f"*/{state}/*.ndjson"):
            yield LetterFile(path, path.parent.parent.name, state)


def as_rows(letters: Sequence[Letter]) -> pa.Table:
    """Letters as rows of the view `records`: the records as they were refused, typed anew.

    A letter that does not say when the log got the record has the time of its refusal.
    """
    shaper = Shaper(Shape(_RECORDS, _RECORDS.columns, versions=known_versions()))
    places = {(letter["stream"], letter["partition"]) for letter in letters}
    batches = []
    for stream, partition in sorted(places):
        mine = [it for it in letters if (it["stream"], it["partition"]) == (stream, partition)]
        log = {name: pa.array(map(of, mine), kind) for name, (kind, of) in _LOG.items()}
        span = Span(stream, partition, mine[0]["offset"], mine[-1]["offset"] + 1)
        batches.append(shaper.shape(span, pa.RecordBatch.from_pydict(log)))
    return pa.Table.from_batches(batches)


def _time_ns(letter: Letter) -> int:
    time_ns: int | None = letter.get("timestamp_ns")
    if time_ns is None:
        refused = datetime.fromisoformat(letter["time"])
        time_ns = (refused - _EPOCH) // timedelta(microseconds=1) * _NS_PER_US
    return time_ns


def _bytes(letter: Letter, name: str) -> bytes | None:
    if (coded := letter.get(f"{name}_base64")) is not None:
        return base64.b64decode(coded)
    text = letter.get(name)
    return None if text is None else str(text).encode()


_RECORDS: Final = view("records")
_LOG: Final[Mapping[str, tuple[pa.DataType, Callable[[Letter], Any]]]] = {
    "offset": (pa.int64(), itemgetter("offset")),
    "timestamp": (pa.timestamp("ns", tz="UTC"), _time_ns),
    "subject": (pa.string(), itemgetter("subject")),
    "key": (pa.binary(), lambda letter: _bytes(letter, "key")),
    "value": (pa.binary(), lambda letter: _bytes(letter, "value")),
}
"""The log's own columns: of which type, and what a letter has for them."""
