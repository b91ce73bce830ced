"""A store that one process works with: its lease, taken, renewed and let go.

terms/…     see `penstock.router.storage.lease`; a term's object is JSON that says who made it
"""

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import uuid4

import structlog

from penstock.base.clock import BlockingClock, text_now
from penstock.router.errors import UnavailableError as NotNowError
from penstock.router.storage.lease import (
    Answer,
    Beat,
    Claim,
    Lease,
    Look,
    Release,
    Sighting,
    Step,
    Steps,
    release,
    renew,
    take,
)
from penstock.router.storage.objects import Objects
from penstock.service import ConfigError, ServiceError, UnavailableError

_TERMS: Final = "terms"
_NAME: Final = re.compile(r"(?P<term>\d{8})(\.(?P<said>\d{12}|released))?")
_RELEASED: Final = "released"
_TAKE: Final = "take"
_TERMS_KEPT: Final = 5
_POLLS: Final = 10
"""Looks in the time of a lease, while somebody else has it."""

_TELL_S: Final = 10.0
_log = structlog.get_logger()


class StoreLease:
    """The lease of a store. `keep_renewing` and `repeat` start threads; all else is for any.

    Args:
        holder: A name that no other process has now, and that stays when this one starts again.
        location: Name of the store in messages: a key of the job file, or a URL.
    """

    def __init__(
        self,
        objects: Objects,
        holder: str,
        lease_s: float,
        clock: BlockingClock,
        *,
        location: str,
    ) -> None:
        self._objects = objects
        self._location = location
        self._holder = holder
        self._length_ns = round(lease_s * 1e9)
        self._clock = clock
        self._lease: Lease | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._told_ns: int | None = None
        self._known: dict[int, dict[str, Any]] = {}
        self._problems: dict[str, str | None] = {}
        """Description of the current problem, by operation; None: it works."""

    @property
    def term(self) -> int:
        """The lease's number."""
        assert self._lease is not None
        return self._lease.term

    @property
    def problem(self) -> str | None:
        """Why the lease is not taken yet, or was not renewed the last time; else None."""
        return next((it for it in list(self._problems.values()) if it is not None), None)

    def take(self, is_stopping: Callable[[], bool]) -> bool:
        """Take the lease; waits as long as somebody else has it.

        Args:
            is_stopping: Asked in between.

        Returns:
            False: it was to stop before.

        Raises:
            ConfigError: The store cannot be used so.
            UnavailableError: It cannot be reached.
        """
        steps = take(self._holder, self._length_ns)
        step = next(steps)
        while not is_stopping():
            try:
                step = steps.send(self._do(step))
            except StopIteration as end:
                self._lease, self._problems[_TAKE] = end.value, None
                self._require_exclusive_names()
                self._tidy()
                return True
        return False

    def require_held(self) -> None:
        """Nothing that others must not do at the same time is begun without it.

        Raises:
            penstock.router.errors.UnavailableError: The lease ran out; it may be renewed yet.
        """
        if self._lease is None or not self._lease.is_held(self._clock.elapsed_ns()):
            lost = self._lease is not None and self._lease.lost
            what = "was taken by another process" if lost else "was not renewed in time"
            raise NotNowError(
                f"the lease of {self._location} {what}"
                + (f": {self.problem}" if self.problem else "")
            )

    def require_newest(self) -> None:
        """Require that the lease is held and that no newer term exists, as after a suspension.

        Raises:
            penstock.router.errors.UnavailableError: A newer term exists, or the lease ran out.
            UnavailableError: The store cannot be reached.
        """
        lease = self._lease
        if (
            lease is not None
            and max((term for _, term, _ in self._names()), default=0) > lease.term
        ):
            lease.lost = True
        self.require_held()

    def require_not_lost(self) -> None:
        """The job ends where another process has its checkpoints.

        Raises:
            UnavailableError: That is so.
        """
        if self._lease is not None and self._lease.lost:
            raise UnavailableError(
                f"{self._location}: {self._who(self._sighting(0))} has taken over",
                fix="let only one run this job; started again, this one waits for the other's end",
            )

    def keep_renewing(self) -> None:
        """Renew the lease in time, from a thread."""
        lease = self._lease
        assert lease is not None
        self.repeat("lease", lambda: self._go(renew(lease)))

    def repeat(self, name: str, what: Callable[[], None]) -> None:
        """Do something now and then while the lease is ours, from a separate thread.

        An error of it is the problem until it succeeds.
        """
        thread = threading.Thread(
            target=self._repeat_until_end, args=(name, what), name=name, daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def close(self, *, let_go: bool = True) -> None:
        """End it; `let_go`: so that the next one need not wait."""
        self._stop.set()
        for thread in self._threads:
            thread.join(self._length_ns / 1e9)
        lease, self._lease = self._lease, None
        if lease is not None and not lease.lost and let_go:
            try:
                self._go(release(lease))
            except ServiceError as error:
                _log.warning("lease_not_released", store=self._location, reason=error.reason)

    def _repeat_until_end(self, name: str, what: Callable[[], None]) -> None:
        lease = self._lease
        assert lease is not None
        while not self._stop.wait(self._length_ns / 3e9) and not lease.lost:
            problem: str | None = None
            try:
                what()
            except ServiceError as error:
                problem = error.reason
            except Exception as error:  # noqa: BLE001 - a full disk, say: it is tried again
                problem = str(error) or type(error).__name__
            if problem is not None and self.problem is None:
                _log.warning("store_unavailable", store=self._location, reason=problem)
            self._problems[name] = problem

    def _go(self, steps: Steps) -> None:
        step = next(steps)
        while True:
            try:
                step = steps.send(self._do(step))
            except StopIteration:
                return

    def _do(self, step: Step) -> Answer:
        asked_ns = self._clock.elapsed_ns()
        found: Sighting | bool | None = None
        match step:
            case Look(term):
                found = self._sighting(term)
            case Claim():
                found = self._claim(step)
            case Beat(term, number):
                self._objects.put(f"{_TERMS}/{term:08d}.{number:012d}", b"")
                if number > 1:
                    self._objects.remove(f"{_TERMS}/{term:08d}.{number - 1:012d}")
            case Release(term):
                self._objects.put(f"{_TERMS}/{term:08d}.{_RELEASED}", b"")
            case _:
                self._wait()
        return Answer(found, asked_ns, self._clock.elapsed_ns())

    def _wait(self) -> None:
        now_ns = self._clock.elapsed_ns()
        if self._told_ns is None or now_ns - self._told_ns >= _TELL_S * 1e9:
            self._told_ns = now_ns
            holder = self._who(self._sighting(0))
            self._problems[_TAKE] = f"{self._location} is waited for: {holder} has it"
            lease_s = self._length_ns / 1e9
            _log.info("store_wait", store=self._location, held_by=holder, lease_s=lease_s)
        self._clock.sleep(self._length_ns / _POLLS / 1e9)

    def _claim(self, claim: Claim) -> bool:
        about = {
            "holder": claim.holder,
            "length_ns": claim.length_ns,
            "claim": uuid4().hex,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "time": text_now(self._clock),
        }
        data = json.dumps(about).encode()
        name = f"{_TERMS}/{claim.term:08d}"
        # Sent twice, because an answer was lost, it finds what it made itself.
        return self._objects.create(name, data) or self._objects.get(name) == data

    def _require_exclusive_names(self) -> None:
        """Some stores do not know the header that this rests on, and say nothing."""
        name = f"{_TERMS}/{self.term:08d}"
        data = self._objects.get(name) or b""
        if self._objects.create(name, data):
            raise ConfigError(
                f"{self._location}: the store makes an object though there is one of its name",
                fix="use one that knows `If-None-Match: *` for PUT, as S3, MinIO, R2 and GCS do",
            )

    def _tidy(self) -> None:
        for name, term, _ in self._names():
            if term <= self.term - _TERMS_KEPT:
                self._objects.remove(name)

    def _names(self) -> Iterator[tuple[str, int, str]]:
        """Yield the name, the term and the suffix of each term and beat in the store."""
        for name in self._objects.names(_TERMS):
            if found := _NAME.fullmatch(name.rpartition("/")[2]):
                yield name, int(found["term"]), found["said"] or ""

    def _sighting(self, term: int) -> Sighting:
        names = list(self._names())
        made = [number for _, number, said in names if not said]
        # A beat tells of a term as well, should somebody have removed that.
        wanted = term or max((number for _, number, _ in names), default=0)
        said = [it for _, number, it in names if number == wanted]
        beats = [int(it) for it in said if it.isdigit()]
        about = self._about(wanted) if wanted in made else {}
        holder, length = str(about.get("holder", "")), about.get("length_ns")
        length_ns = length if isinstance(length, int) else 0
        return Sighting(wanted, holder, max(beats, default=0), _RELEASED in said, length_ns)

    def _about(self, term: int) -> dict[str, Any]:
        """Return the description of a term's holder; empty where it is unknown."""
        if term not in self._known:
            data = self._objects.get(f"{_TERMS}/{term:08d}")
            try:
                found = json.loads(data or b"{}")
            except ValueError:
                found = {}
            if not isinstance(found, dict) or not found:
                return {}
            self._known = {term: found}
        return self._known[term]

    def _who(self, seen: Sighting) -> str:
        about = self._about(seen.term)
        return (
            f"process {about.get('process', '?')} on {about.get('host', '?')}"
            f" (since {about.get('time', '?')})"
        )
