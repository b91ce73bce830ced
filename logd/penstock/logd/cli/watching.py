"""Stays with work that a cluster does in the background until it is done, and shows how far it is.

On a terminal one line on standard error is written over: partitions, bytes, how long it may take.
Elsewhere each step is a line there. With `--json` only the result is written. Ctrl-C ends the
watching, not the work.
"""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import click

from penstock.base.clock import Clock, SystemClock
from penstock.logd.cli.moving import (
    QUIET_S,
    STUCK_S,
    Course,
    IsLeft,
    Parts,
    Survey,
    standing_at,
    whole,
)
from penstock.logd.cli.text import human_bytes, on_terminal, safe
from penstock.logd.client import LogClient
from penstock.logd.errors import UnavailableError
from penstock.service import ExitCode, ServiceError

Function = TypeVar("Function", bound=Callable[..., object])

_LOOK_S: Final = 0.5
_AWAY_S: Final = 60.0
"""Seconds that nobody may answer, as while another node becomes the controller."""

wait_option = click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Stay until it is done and show how far it is, or only begin it.",
)


class StillUnderWayError(ServiceError):
    """Nobody watches any more; the work goes on (exit code 75)."""

    exit_code = ExitCode.TEMPORARY


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is watched.

    Attributes:
        label: What it is, in a word or two.
        is_left: Whether something is left to do of a partition.
        hint: What to do when nothing moves.
        lasting: Whether more may come when nothing is left; then it ends after a while of quiet.
        looked: Tells of each look; for who wants to know more than partitions.
    """

    label: str
    is_left: IsLeft
    hint: str
    lasting: bool = False
    looked: Callable[[Parts], None] | None = None


def watch(
    log: LogClient,
    work: Work,
    *,
    as_json: bool,
    clock: Clock | None = None,
    pause: Callable[[float], object] | None = None,
) -> Course:
    """Stay with work until it is done.

    Args:
        log: To ask.
        work: What.
        as_json: Whether nothing is to be shown.
        clock: For how long things last.
        pause: Waits between two looks.

    Raises:
        StillUnderWayError: Ctrl-C, or nothing has changed for long.
        UnavailableError: Nobody has answered for long.
    """
    shown = _Shown(work, quiet=as_json, clock=clock or SystemClock())
    wait = pause or threading.Event().wait
    survey = Survey(work.is_left)
    try:
        while True:
            course = _look(log, survey, work, shown)
            if course is not None and shown.is_over(course):
                return course
            wait(_LOOK_S)
    except KeyboardInterrupt:
        raise StillUnderWayError(
            f"{work.label}: no longer watched; the work goes on", fix="penstock logd cluster info"
        ) from None
    finally:
        shown.hide()


def _look(log: LogClient, survey: Survey, work: Work, shown: "_Shown") -> Course | None:
    try:
        parts = whole(log)
    except UnavailableError as error:
        shown.away(error)
        return None
    if work.looked is not None:
        work.looked(parts)
    course = survey.look(parts, lambda node: standing_at(log, node))
    shown.course(course)
    return course


class _Shown:
    """What is written meanwhile, and since when nothing has changed."""

    def __init__(self, work: Work, *, quiet: bool, clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._live = not quiet and on_terminal()
        self._lines = not quiet and not self._live
        self._begun_ns = self._changed_ns = self._heard_ns = clock.monotonic_ns()
        self._last: Course | None = None
        self._first_bytes = 0
        self._written = False

    def course(self, course: Course) -> None:
        now_ns = self._clock.monotonic_ns()
        self._heard_ns = now_ns
        if self._last is None:
            self._first_bytes = course.copied_bytes
        if self._last is None or course.steps or _moved(self._last, course):
            self._changed_ns = now_ns
        self._last = course
        if self._lines:
            for step in course.steps:
                click.echo(f"{safe(step)}; {self.line(course)}", err=True)
        elif self._live:
            self._written = True
            sys.stderr.write(f"\r{safe(self._work.label)}: {self.line(course)}\x1b[K")
            sys.stderr.flush()

    def line(self, course: Course) -> str:
        """How far it is, and how long it may take."""
        words = [f"{course.done} of {course.total} partitions"]
        if course.total_bytes:
            copied, total = human_bytes(course.copied_bytes), human_bytes(course.total_bytes)
            words.append(f"{copied} of {total}")
        seconds = (self._clock.monotonic_ns() - self._begun_ns) / 1e9
        came, left = course.copied_bytes - self._first_bytes, course.total_bytes
        if came > 0 and seconds > 0 and not course.is_done:
            words.append(f"some {_span((left - course.copied_bytes) * seconds / came)} left")
        return ", ".join(words)

    def is_over(self, course: Course) -> bool:
        """Whether it is done.

        Raises:
            StillUnderWayError: Nothing has changed for long.
        """
        quiet_s = (self._clock.monotonic_ns() - self._changed_ns) / 1e9
        if course.is_done:
            return not self._work.lasting or quiet_s >= QUIET_S
        if quiet_s >= STUCK_S:
            message = f"{self._work.label}: nothing has changed for {STUCK_S:.0f} s; "
            message += f"{course.total - course.done} of {course.total} partitions are left"
            raise StillUnderWayError(message, fix=self._work.hint)
        return False

    def away(self, error: UnavailableError) -> None:
        """Nobody answers.

        Raises:
            UnavailableError: For too long.
        """
        if (self._clock.monotonic_ns() - self._heard_ns) / 1e9 >= _AWAY_S:
            raise error

    def hide(self) -> None:
        """Wipe the line."""
        if self._written:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _moved(before: Course, now: Course) -> bool:
    return (before.done, before.total, before.copied_bytes) != (
        now.done,
        now.total,
        now.copied_bytes,
    )


def _span(seconds: float) -> str:
    """A time for people: 95 s, 12 min, 3 h."""
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
