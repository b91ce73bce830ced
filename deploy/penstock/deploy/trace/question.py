"""A question for records: what is looked for, where, and how much of it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from penstock.deploy.trace.find import Terms
from penstock.service.cli import Position

_POSITION: Final = re.compile(r"(.+)/(\d{1,9})/(\d{1,18})")


class ConditionError(click.UsageError):
    """A condition is not valid, or no job can read it.

    Attributes:
        reason: Why, for people.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"--where: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuestion:
    """What is looked for: ids, terms or both; or positions; or a condition.

    Attributes:
        trace_ids: Ids of traces.
        record_ids: Ids of records.
        positions: STREAM/PARTITION/OFFSET each.
        where: A condition in the language of routes.
        service: The records' service; empty: any.
        text: Text that the body or the name has, case counts; empty: any.
        severity: Least severity number; 0: any record, also one that has none.
        streams: Streams to look in; empty: all.
        start: Begin of the search in each partition.
        end: Its end.
        after: STREAM/PARTITION/OFFSET of the record behind which the search goes on; empty: it
            begins at the first stream.
        limit: Maximum records.
        with_ways: Whether jobs and collectors are asked what became of the records.
        job_files: Jobs whose files are read if they do not answer.
    """

    trace_ids: tuple[str, ...] = ()
    record_ids: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    where: str | None = None
    service: str = ""
    text: str = ""
    severity: int = 0
    streams: tuple[str, ...] = ()
    start: Position = "earliest"
    end: Position = "latest"
    after: str = ""
    limit: int = 20
    with_ways: bool = True
    job_files: tuple[Path, ...] = ()

    @property
    def terms(self) -> Terms:
        """Return the conditions on a record's service, text and severity."""
        return Terms(self.service, self.text, self.severity)

    def check(self) -> None:
        """Check that it says what is looked for, in one way.

        Raises:
            UsageError: It does not.
        """
        has_fields = bool(self.trace_ids or self.record_ids or self.terms)
        if sum((has_fields, bool(self.positions), bool(self.where))) != 1:
            raise click.UsageError(
                "say what to look for: --trace-id, --record-id, --service, --text or --severity;"
                " or --position, or --where"
            )
        for position in self.positions:
            if _POSITION.fullmatch(position) is None:
                raise click.UsageError(f"--position {position}: it looks like logs/0/4711")


def position_of(text: str) -> tuple[str, int, int] | None:
    """The stream, partition and offset that STREAM/PARTITION/OFFSET names; None: it names none."""
    found = _POSITION.fullmatch(text)
    return None if found is None else (found[1], int(found[2]), int(found[3]))
