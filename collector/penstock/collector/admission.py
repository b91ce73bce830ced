"""The gate of `penstock.specs`, and the subject that an admitted record goes to."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.specs.gate import Rejected, attach, check_line
from penstock.specs.subjects import subject_of


class Admitted(NamedTuple):
    """A record that keeps to its spec, as it goes into the log."""

    subject: str
    time_ns: int
    line: bytes


Admit = Callable[[bytes, bytes, int], Admitted | str]
"""Check a line after adding the resource (JSON; empty: the line is complete) and observed time that
it lacks; text is the reason why it is refused."""


def admission(prefix: str) -> Admit:
    """The check for records whose subjects begin with `prefix`."""

    def admit(line: bytes, resource: bytes, observed_ns: int) -> Admitted | str:
        complete = attach(line, resource, observed_ns) if resource else line
        verdict = check_line(complete)
        if isinstance(verdict, Rejected):
            return f"{verdict.reason}: {verdict.detail}" if verdict.detail else verdict.reason
        subject = subject_of(verdict.kind, verdict.service, prefix)
        return Admitted(subject, verdict.time_unix_nano, complete)

    return admit
