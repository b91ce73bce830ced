"""The gate of `penstock.specs`, its scrubber, and the subject that an admitted record goes to."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.collector.config import SensitiveSection
from penstock.specs.gate import Rejected, attach, check_line
from penstock.specs.scrub import Scrubber
from penstock.specs.sensitive import HashKey
from penstock.specs.subjects import subject_of


class Admitted(NamedTuple):
    """A record that keeps to its spec, as it goes into the log."""

    subject: str
    time_ns: int
    line: bytes
    scrubbed: bool = False


Admit = Callable[[bytes, bytes, int], Admitted | str]
"""Check a line after adding the resource (JSON; empty: the line is complete) and observed time that
it lacks; text is the reason why it is refused."""


def admission(prefix: str, scrubber: Scrubber | None = None) -> Admit:
    """The check for records whose subjects begin with `prefix`; `scrubber` treats what passes."""

    def admit(line: bytes, resource: bytes, observed_ns: int) -> Admitted | str:
        complete = attach(line, resource, observed_ns) if resource else line
        verdict = check_line(complete)
        if isinstance(verdict, Rejected):
            return f"{verdict.reason}: {verdict.detail}" if verdict.detail else verdict.reason
        treated = complete if scrubber is None else scrubber.scrub_line(complete)
        subject = subject_of(verdict.kind, verdict.service, prefix)
        return Admitted(subject, verdict.time_unix_nano, treated, treated is not complete)

    return admit


def scrubber_of(section: SensitiveSection) -> Scrubber | None:
    """What treats records, as configured; None when nothing does."""
    if not section.enabled:
        return None
    key = HashKey.parse(section.hash_key.get_secret_value()) if section.hash_key else None
    return Scrubber(
        key, keyless=section.without_key, values=section.search, actions=section.actions
    )
