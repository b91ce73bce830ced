"""The thread that compacts the logs of a daemon, one after another.

Neither the event loop nor a log's writer waits for it. It works at a pace
(`penstock.logd.pace`), and leaves a log within milliseconds when that is to be closed: what it was
writing is thrown away.
"""

import heapq
import threading
from itertools import count
from typing import Final

import structlog

from penstock.base.clock import Clock
from penstock.logd.pace import Pace, StoppedError
from penstock.logd.upkeep import CompactionSettings, Upkeep

_NS_PER_S: Final = 1_000_000_000
_log = structlog.get_logger()


class Compactor:
    """Works on the logs that are added, each when it is due.

    Args:
        settings: Of the daemon.
        clock: For all of it.
    """

    def __init__(self, settings: CompactionSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._condition = threading.Condition()
        self._due: list[tuple[int, int, Upkeep]] = []
        self._numbers = count()
        self._added: dict[Upkeep, int] = {}
        self._current: Upkeep | None = None
        self._closing = False
        self._pace = Pace(
            settings.bytes_per_s_max, clock, wait=self._wait, stopped=self._is_stopped
        )
        self._thread = threading.Thread(target=self._run, name="compactor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits for the piece that it is at."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def add(self, upkeep: Upkeep) -> None:
        """Look after a log from now on."""
        with self._condition:
            self._push(upkeep)

    def wake(self, upkeep: Upkeep) -> None:
        """A log may be due sooner than it said."""
        with self._condition:
            if upkeep.due_ns < self._added.get(upkeep, 0):
                self._push(upkeep)

    def remove(self, upkeep: Upkeep) -> None:
        """Leave a log alone; on return nothing of it is touched any more."""
        with self._condition:
            self._added.pop(upkeep, None)
            self._condition.notify_all()
            while self._current is upkeep:
                self._condition.wait()

    def _push(self, upkeep: Upkeep) -> None:
        """Note when a log is due; an earlier note of it counts no more. The lock is held."""
        due_ns = self._added[upkeep] = upkeep.due_ns
        heapq.heappush(self._due, (due_ns, next(self._numbers), upkeep))
        self._condition.notify_all()

    def _run(self) -> None:
        while (upkeep := self._next()) is not None:
            try:
                upkeep.work(self._pace)
            except StoppedError:
                pass
            except Exception as error:  # noqa: BLE001 - a bug must not end the others' upkeep
                _log.exception("compaction met a bug", stream=upkeep.stream)
                upkeep.failed(error)
            with self._condition:
                self._current = None
                if upkeep in self._added:
                    self._push(upkeep)
                self._condition.notify_all()

    def _next(self) -> Upkeep | None:
        """The next log that is due, waiting for it; None when there will be none."""
        with self._condition:
            while not self._closing:
                if not self._due:
                    self._condition.wait()
                    continue
                due_ns, _, upkeep = self._due[0]
                wait_ns = due_ns - self._clock.monotonic_ns()
                if wait_ns > 0:
                    self._condition.wait(wait_ns / _NS_PER_S)
                    continue
                heapq.heappop(self._due)
                if self._added.get(upkeep) != due_ns:  # removed, or noted again
                    continue
                self._current = upkeep
                return upkeep
        return None

    def _wait(self, seconds: float) -> None:
        with self._condition:
            if not self._is_stopped():
                self._condition.wait(seconds)

    def _is_stopped(self) -> bool:
        return self._closing or self._current not in self._added
