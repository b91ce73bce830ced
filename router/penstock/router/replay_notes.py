"""`replays.ndjson` beside a job's dead letters: who had records delivered again, and how it ended.

One JSON object a line: `time`, `what` (asked, ended, failed; with `range ` before it where not
letters but a range of the log goes again), `sink`, `to`, `by`, and counts. A line is synced before
anything is done, so what cannot be taken down is not done.
"""

import json
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from penstock.router.clock import Clock
from penstock.service import UnavailableError

NAME: Final = "replays.ndjson"


def take_down(directory: Path, clock: Clock, what: str, **about: Any) -> None:
    """Write a line.

    Args:
        directory: Of the job's dead letters.
        clock: For the time.
        what: What was done.
        about: More about it.

    Raises:
        OSError: The disk failed.
    """
    line = json.dumps({"time": now_of(clock), "what": what, **about}) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / NAME).open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def now_of(clock: Clock) -> str:
    """The time as it is written, to the second."""
    return datetime.fromtimestamp(clock.unix_ns() // 10**9, UTC).isoformat()


def who_types() -> str:
    """The user of this process, as the machine knows them; whatever the environment says."""
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:  # of a container
        name = str(number)
    return f"command line, for {name}"


@dataclass(slots=True)
class Typed:
    """A replay from the command line, while it goes on.

    Attributes:
        records: How many were delivered, once that is known.
    """

    records: int = 0


@contextmanager
def typed(directory: Path, clock: Clock, kind: str = "", **about: Any) -> Iterator[Typed]:
    """Take down that somebody asks for it, and how it ended.

    Args:
        directory: As `take_down`.
        clock: As `take_down`.
        kind: Before the word for what was done.
        about: What was asked for.

    Raises:
        UnavailableError: It cannot be taken down; where that is so before, nothing is done.
    """
    about = {**about, "by": who_types()}
    _note(directory, clock, f"{kind}asked", about, "nothing was delivered")
    replay = Typed()
    try:
        yield replay
    except BaseException as error:
        problem = str(error) or type(error).__name__
        about |= {"records": 0, "problem": problem}
        _note(directory, clock, f"{kind}failed", about, problem)
        raise
    about |= {"records": replay.records, "problem": ""}
    _note(directory, clock, f"{kind}ended", about, f"{replay.records} records were delivered")


def _note(directory: Path, clock: Clock, what: str, about: dict[str, Any], so_far: str) -> None:
    try:
        take_down(directory, clock, what, **about)
    except OSError as error:
        raise UnavailableError(
            f"{directory / NAME}: {error.strerror}; {so_far}",
            fix="let this user write to that file: it says who had what delivered again",
        ) from None
