"""Records that a collector dropped or refused: options that choose them, and how it is asked."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from penstock.collector.agent.admin import ask
from penstock.collector.cli.directories import is_running, of_workers, socket_of
from penstock.collector.drops.query import RecordQuery
from penstock.service import UnavailableError
from penstock.service.cli import POSITION, IntRange

Function = Callable[..., Any]
Facts = dict[str, Any]

socket_option = click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    help="The running collector's admin socket, where it is not in the data directory.",
)

_OPTIONS: Final = {
    "source": ("--source", "Only what this source received."),
    "reason": ("--reason", "Only what has a reason that begins so."),
    "service": ("--service", "Only records of this service."),
    "trace_id": ("--trace", "Only records of this trace."),
    "record_id": ("--record", "Only the record with this record_id."),
    "text": ("--text", "Only records in whose kept text this stands."),
}


def query_options(*, step: bool = False) -> Callable[[Function], Function]:
    """Add the options of a `RecordQuery`; the command gets it as `query`.

    Args:
        step: Whether `--step` is one of them.
    """
    options = {
        **_OPTIONS,
        **({"step": ("--step", "Only what this transform dropped.")} if step else {}),
    }

    def add(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, begin: Any, limit: int, **given: Any) -> Any:
            chosen = {name: given.pop(name) for name in options}
            query = RecordQuery(**chosen, from_ns=_time_of(begin), limit=limit)
            return function(*args, query=query, **given)

        command: Function = click.option(
            "--limit", type=IntRange(min=0), default=0, help="Only so many, the newest."
        )(call)
        command = click.option(
            "--from", "begin", type=POSITION, default="earliest",
            help="Only since then: a time, or how long ago, as 15m (s, m, h, d).",
        )(command)  # fmt: skip
        for name, (option, text) in reversed(options.items()):
            command = click.option(option, name, default="", help=text)(command)
        return command

    return add


def _time_of(begin: Any) -> int:
    """The Unix time in nanoseconds that `--from` says."""
    if begin == "earliest":
        return 0
    if not isinstance(begin, datetime):
        raise click.BadParameter(
            "give a time (2026-01-31T03:00:00Z) or 15m ago", param_hint="--from"
        )
    return int(begin.timestamp() * 1e9)


class Records:
    """The records of one data directory and of its workers.

    Args:
        directory: The journal.
        action: The action of the admin socket that finds its records.
        key: The key of the answer's lines that hold one.
        read: Reads the journal of a stopped collector.

    Attributes:
        others: Lines of answers that hold no record.
    """

    def __init__(
        self,
        directory: Path,
        action: str,
        key: str,
        read: Callable[[Path], Iterable[Facts]],
        socket_path: Path | None,
    ) -> None:
        self._directory = directory
        self._action = action
        self._key = key
        self._read = read
        self._socket_path = socket_path
        self.others: list[Facts] = []

    def find(self, query: RecordQuery) -> Iterable[Facts]:
        """Records that match, oldest first in each worker; with a limit the newest of all.

        A running collector is asked through its admin socket.

        Raises:
            UnavailableError: It does not answer as it should.
        """
        found = self._find(query)
        if not query.limit:
            return found
        ordered = sorted(found, key=lambda facts: int(facts["time_unix_nano"]))
        return deque(ordered, query.limit)

    def _find(self, query: RecordQuery) -> Iterator[Facts]:
        others = of_workers(self._directory)
        answered: set[int] = set()
        for facts in self._find_in(self._directory, query, self._socket_path, answered):
            yield {"worker": 0, **facts} if others else facts
        for index, other in others.items():
            if index not in answered:
                for facts in self._find_in(other, query, None, answered):
                    yield {"worker": index, **facts}

    def _find_in(
        self, directory: Path, query: RecordQuery, socket_path: Path | None, answered: set[int]
    ) -> Iterator[Facts]:
        """Find in one journal; numbers of workers that answered are added to `answered`."""
        if not is_running(directory):
            yield from (facts for facts in self._read(directory) if query.takes(facts))
            return
        socket_path = socket_path or socket_of(directory.resolve().parent)
        request = {"do": self._action, "follow": True, **query.as_request()}
        for answer in ask(socket_path, request):
            if self._key in answer:
                yield answer[self._key]
            elif answer.get("ok"):
                answered.update(answer.get("workers", ()))
                return
            elif "ok" in answer:
                raise UnavailableError(str(answer.get("error")), fix="look at the collector's log")
            else:
                self.others.append(answer)
        raise UnavailableError("the collector ended the connection", fix="look at its log")
