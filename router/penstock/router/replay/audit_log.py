"""`replays.ndjson` beside a job's dead letters: who had records delivered again, and how it ended.

One JSON object a line: `time`, `what`, `sink`, `to`, `by`, and counts. `what` is asked, then ended,
failed or stopped, with `records` as far as batches were delivered whole; or stop asked, by the user
who stopped it over the network. Before it stands `range ` where not dead letters but a range of the
log goes again. `by` is what they say of themselves, `peer` the address that the request came from.

The line `asked` is synced before anything is done, so what cannot be recorded is not done. After
a kill -9 it is the last one of its replay: no line says how that ended.
"""

import json
import os
import pwd
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.base.clock import BlockingClock, text_now
from penstock.base.pluralize import pluralize
from penstock.router.replay.progress import Progress
from penstock.service import UnavailableError

NAME: Final = "replays.ndjson"
BY_MAX: Final = 128
"""Characters of what somebody says of themselves."""


def append_audit(directory: Path, clock: BlockingClock, what: str, **about: Any) -> None:
    """Write a line.

    Raises:
        OSError: The disk failed.
    """
    line = json.dumps({"time": text_now(clock), "what": what, **about}) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / NAME).open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def who_types(user: int | None = None) -> str:
    """A user, as the machine knows them, by number; without one, that of this process.

    Whatever the environment says.
    """
    number = os.getuid() if user is None else user
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:  # of a container
        name = str(number)
    return f"command line, for {name}"


@contextmanager
def audited(
    directory: Path,
    clock: BlockingClock,
    progress: Progress,
    stop: threading.Event,
    kind: str = "",
    **about: Any,
) -> Iterator[None]:
    """Write down that somebody asks for a replay from the command line, and how it ended.

    It runs within the block. `kind` stands before the word for what was done.

    Raises:
        UnavailableError: It cannot be written; where that is so before, nothing is done.
    """
    about = {**about, "by": who_types()}
    _note(directory, clock, f"{kind}asked", about, "nothing was delivered")
    try:
        yield
    except BaseException as error:
        problem = str(error) or type(error).__name__
        about |= {"records": progress.records, "problem": problem}
        what = "stopped" if stop.is_set() else "failed"
        _note(directory, clock, f"{kind}{what}", about, problem)
        raise
    records = progress.records
    about |= {"records": records, "problem": ""}
    _note(directory, clock, f"{kind}ended", about, f"delivered: {pluralize(records, 'record')}")


def _note(
    directory: Path, clock: BlockingClock, what: str, about: dict[str, Any], so_far: str
) -> None:
    try:
        append_audit(directory, clock, what, **about)
    except OSError as error:
        raise UnavailableError(
            f"{directory / NAME}: {error.strerror}; {so_far}",
            fix="let this user write to that file: it says who had what delivered again",
        ) from None
