"""The search form: its fields as text become a question, or each field gets what is wrong with it.

service, text        as a record has them; the text's case counts
severity             least severity number
trace_id, record_id  32 hexadecimal digits each
where                a condition in the language of routes, instead of the five above
stopped              yes: the files of jobs that do not answer are read
stream               names, separated by commas or spaces; empty: all
from, to             earliest, latest, a time (2026-01-31T03:00:00Z), or how long ago (15m)
position             STREAM/PARTITION/OFFSET of one record, instead of all of the above
after                likewise: go on behind this record
limit                maximum records
ways                 no: jobs and collectors are not asked
"""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from penstock.deploy.trace.question import TraceQuestion, position_of
from penstock.service.cli import POSITION, Position

FIELDS: Final = (
    "service", "text", "severity", "trace_id", "record_id", "where", "stopped", "stream", "from",
    "to", "position", "after", "limit", "ways",
)  # fmt: skip
"""The fields, as they are called in the page's address and in a request."""

FIELD_CHARACTERS_MAX: Final = 256
WHERE_CHARACTERS_MAX: Final = 4000
"""Characters of a condition, as `penstock.router.trace.service` bounds them."""

STREAMS_MAX: Final = 16
"""Streams that one search may name."""

_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_RECORD_ID: Final = re.compile(r"[!-~]{1,64}")
_NUMBER: Final = re.compile(r"[0-9]{1,6}")
_MEANT: Final = "give a time, such as 2026-01-31T03:00:00Z, or how long ago, such as 15m, 6h or 7d"


class FormError(Exception):
    """A form that is not filled in well.

    Attributes:
        fields: What is wrong, by field.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = dict(fields)
        super().__init__("; ".join(f"{name}: {words}" for name, words in fields.items()))


def read_form(
    sent: Mapping[str, object],
    *,
    streams: Collection[str],
    max_records: int,
    job_files: Sequence[Path] = (),
) -> TraceQuestion:
    """Read the form.

    Args:
        sent: Its fields; a field that is missing is empty.
        streams: Names of the streams that there are; empty: they are not known.
        max_records: Maximum of the field `limit`, and what it is if empty.
        job_files: Jobs whose files may be read if they do not answer.

    Raises:
        FormError: A field is wrong, or nothing says what to look for.
    """
    form = _Form(sent)
    position = form.position("position")
    question = TraceQuestion(
        positions=(position,) if position else (),
        trace_ids=form.id_in("trace_id", _TRACE_ID, "a trace id is 32 hexadecimal digits"),
        record_ids=form.id_in(
            "record_id", _RECORD_ID, "a record id is up to 64 letters, digits and signs, no space"
        ),
        service=form.text("service"),
        text=form.text("text"),
        where=form.text("where", WHERE_CHARACTERS_MAX) or None,
        job_files=form.job_files(job_files),
        severity=form.number("severity", 0, 24, 0),
        streams=form.streams(streams),
        start=form.time("from", "earliest"),
        end=form.time("to", "latest"),
        after=form.position("after"),
        limit=form.number("limit", 1, max_records, max_records),
        with_ways=form.text("ways") != "no",
    )
    form.check(question)
    return question


class _Form:
    """The fields, and what was found wrong in them."""

    def __init__(self, sent: Mapping[str, object]) -> None:
        self._sent = sent
        self._wrong: dict[str, str] = {
            name: "there is no such field" for name in sent if name not in FIELDS
        }

    def text(self, name: str, most: int = FIELD_CHARACTERS_MAX) -> str:
        value = self._sent.get(name, "")
        if not isinstance(value, str) or len(value) > most:
            self._wrong[name] = f"text of at most {most} characters"
            return ""
        return value.strip()

    def id_in(self, name: str, pattern: re.Pattern[str], meant: str) -> tuple[str, ...]:
        value = self.text(name)
        if name == "trace_id":
            value = value.lower()
        if value and pattern.fullmatch(value) is None:
            self._wrong[name] = meant
        return (value,) if value else ()

    def number(self, name: str, least: int, most: int, default: int) -> int:
        value = self.text(name)
        if not value:
            return default
        if _NUMBER.fullmatch(value) is None or not least <= int(value) <= most:
            self._wrong[name] = f"a whole number from {least} to {most}"
            return default
        return int(value)

    def time(self, name: str, default: Position) -> Position:
        value = self.text(name)
        if not value:
            return default
        try:
            found: Position = POSITION.convert(value, None, None)
        except click.UsageError:
            found = 0
        if isinstance(found, int):  # an offset, which means another record in each partition
            self._wrong[name] = _MEANT
            return default
        return found

    def position(self, name: str) -> str:
        value = self.text(name)
        if value and position_of(value) is None:
            self._wrong[name] = "a position looks like logs/0/4711"
        return value

    def job_files(self, known: Sequence[Path]) -> tuple[Path, ...]:
        value = self.text("stopped")
        if value in ("", "no"):
            return ()
        if value != "yes":
            self._wrong["stopped"] = "yes or no"
        elif not known:
            self._wrong["stopped"] = "the console's search.job_files names no job file"
        return tuple(known)

    def streams(self, known: Collection[str]) -> tuple[str, ...]:
        named = tuple(dict.fromkeys(re.split(r"[,\s]+", self.text("stream"))))
        named = tuple(it for it in named if it)
        if len(named) > STREAMS_MAX:
            self._wrong["stream"] = f"at most {STREAMS_MAX} streams"
        elif known and (unknown := [it for it in named if it not in known]):
            self._wrong["stream"] = f"there is no stream {', '.join(unknown)}"
        return named

    def check(self, question: TraceQuestion) -> None:
        """Check the fields together.

        Raises:
            FormError: A field is wrong.
        """
        start, end = question.start, question.end
        if isinstance(start, datetime) and isinstance(end, datetime) and end <= start:
            self._wrong.setdefault("to", "it is not after the beginning of the range")
        if not self._wrong:
            try:
                question.check()
            except click.UsageError:
                words = "fill in one of service, text, severity, trace id, record id and condition"
                name = "service"
                if question.where is not None:
                    name = "where"
                    words = "a condition stands alone: say in it what the other fields say"
                self._wrong[name] = words
        if self._wrong:
            raise FormError(self._wrong)
