"""Dead letters of a job, found, shown, and put back as rows of the log.

DIR/SINK/NAME.ndjson            to be looked at
DIR/SINK/replaying/NAME.ndjson  being replayed, or left there by a replay that was killed
DIR/SINK/done/NAME.ndjson       replayed: a sink has the records, or refused them anew
"""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from penstock.router.durable import sync_directories
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

    Args:
        directory: The job's dead letters.
        sink: Only this sink's.
        names: Only these, as `LetterFile.name` has them; all without.
        done: Also those that were replayed.

    Raises:
        ConfigError: There is none of a name.
    """
    found = sorted(_all(directory), key=lambda file: file.name)
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


def as_log_row(letter: Letter) -> tuple[Any, ...]:
    """A letter as a row of the data source: the record as it was refused.

    A letter that does not say when the log got the record has the time of its refusal.
    """
    time_ns = letter.get("timestamp_ns")
    if time_ns is None:
        refused = datetime.fromisoformat(letter["time"])
        time_ns = (refused - _EPOCH) // timedelta(microseconds=1) * _NS_PER_US
    moment = _EPOCH + timedelta(microseconds=time_ns // _NS_PER_US)
    return (
        letter["stream"],
        letter["partition"],
        letter["offset"],
        moment,
        time_ns,
        letter["subject"],
        _bytes(letter, "key"),
        _bytes(letter, "value"),
    )


def _bytes(letter: Letter, name: str) -> bytearray | None:
    if (coded := letter.get(f"{name}_base64")) is not None:
        return bytearray(base64.b64decode(coded))
    text = letter.get(name)
    return None if text is None else bytearray(text.encode())
