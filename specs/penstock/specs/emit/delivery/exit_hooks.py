"""Exit hooks: the emitters of a process that ends are flushed, within one budget of time.

Some processes end without `atexit`: those of `multiprocessing` and of billiard, Celery's own. Its
children, also those of a `ProcessPoolExecutor`, call what is registered with `multiprocessing`
itself and are gone. A child that is forked forgets even what its parent had registered, hence the
detour: what is to be called after a fork is kept.

billiard shares that registry. But a worker of its pool ends by `os._exit` before it comes to that;
it calls its own ``on_exit`` first.
"""

import contextlib
import sys
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol
from weakref import WeakSet

from penstock.base import clock
from penstock.specs import limits
from penstock.specs.emit.delivery import notices

_LAST: Final = -100
"""After finalizers of the application, which may say something."""
EXIT_EACH_S: Final = 0.2
"""Least time that each emitter is waited for, even where others have used the budget up."""


class ExitingEmitter(Protocol):
    """The part of an emitter that exit hooks use; `Emitter` documents each member."""

    @property
    def no_listener(self) -> bool: ...

    @property
    def trouble(self) -> str: ...

    def flush(self, timeout_s: float) -> bool: ...

    def remove_empty_journal(self) -> None: ...

    def end(self) -> None: ...

    def lost(self, *, waiting: bool = True) -> dict[str, int]: ...


class ProcessExit:
    """The end of one process: flushes its emitters, and says what is lost.

    Args:
        emitters: Those that are in use; looked at when the process ends.
        monotonic_ns: The clock.
        budget_s: Maximum seconds that the end waits for answers, for all emitters together.
    """

    def __init__(
        self,
        emitters: Collection[ExitingEmitter],
        *,
        monotonic_ns: Callable[[], int] = clock.monotonic_ns,
        budget_s: float = limits.EXIT_FLUSH_MS / 1000,
    ) -> None:
        self._emitters = emitters
        self._monotonic_ns = monotonic_ns
        self._left_s = budget_s
        self._has_begun = False
        self._child_flushes: list[Callable[[], object]] = []
        self._reports: list[Callable[[], None]] = []
        self._given_up: WeakSet[ExitingEmitter] = WeakSet()
        self._reported: WeakSet[ExitingEmitter] = WeakSet()

    @property
    def has_begun(self) -> bool:
        """True after emitters were flushed for the last time; a later record flushes at once."""
        return self._has_begun

    def flush_first(self, flush: Callable[[], object]) -> None:
        """Have something called where a child of `multiprocessing` ends, before what was given."""
        if flush not in self._child_flushes:
            self._child_flushes.insert(0, flush)

    def after_last_flush(self, report: Callable[[], None]) -> None:
        """Have something called when the process ends and its emitters were flushed; once."""
        if report not in self._reports:
            self._reports.append(report)

    def flush_last(self) -> None:
        """Flush every emitter, end their threads, then report; called by `atexit`."""
        self._has_begun = True
        flushed = self._flush_each(list(self._emitters))
        for emitter, _ in flushed:
            emitter.end()
        for emitter, was_answered in flushed:  # other threads may have emitted in between
            done = self.flush(emitter, at_least_s=EXIT_EACH_S if was_answered else 0.0)
            self._say_what_is_lost(emitter, is_delivered=done)
        for report in self._reports:
            report()

    def end_child(self) -> None:
        """Call what was registered; called where a child of `multiprocessing` ends."""
        self._has_begun = True
        for flush in self._child_flushes:
            with contextlib.suppress(Exception):
                flush()

    def flush_all(self) -> None:
        """Before the process ends: flush every emitter, and say what is lost."""
        for emitter, is_delivered in self._flush_each(list(self._emitters)):
            self._say_what_is_lost(emitter, is_delivered=is_delivered)

    def flush_late(self, emitter: ExitingEmitter) -> None:
        """Send what was emitted after the last flush of the process, with what time is left."""
        if not self.flush(emitter):
            self._say_what_is_lost(emitter, is_delivered=False)

    def flush(self, emitter: ExitingEmitter, *, at_least_s: float = 0.0) -> bool:
        """Flush one with what time is left; what others do meanwhile takes none of it.

        Little is waited where nobody is there: neither a command nor a pool's child, of which there
        may be one for each task, is to take seconds longer for it.
        """
        began_ns = self._monotonic_ns()
        try:
            left_s = max(self._left_s, at_least_s)
            slice_s = 0.0 if emitter in self._given_up else min(left_s, EXIT_EACH_S)
            while not emitter.flush(slice_s):
                if emitter.no_listener:
                    self._given_up.add(emitter)
                    return False
                if (left_s := left_s - slice_s) <= 0:
                    return False
                slice_s = min(left_s, EXIT_EACH_S)
            return True
        finally:
            took_s = (self._monotonic_ns() - began_ns) / 1e9
            self._left_s = max(0.0, self._left_s - took_s)

    def _flush_each(self, emitters: list[ExitingEmitter]) -> list[tuple[ExitingEmitter, bool]]:
        """Flush all; return with each whether all that it had was answered."""
        for emitter in emitters:
            emitter.flush(0.0)  # all send before one is waited for, which may get no answer
        done = []
        for emitter in emitters:
            done.append((emitter, self.flush(emitter, at_least_s=EXIT_EACH_S)))
            emitter.remove_empty_journal()
        return done

    def _say_what_is_lost(self, emitter: ExitingEmitter, *, is_delivered: bool) -> None:
        """One line on standard error, where something is; at most one of each emitter.

        Args:
            emitter: One that was flushed.
            is_delivered: All was answered. What waits now came later, and is not lost: the thread
                that emitted it sends it.
        """
        lost = emitter.lost(waiting=not is_delivered)
        if not lost or emitter in self._reported:
            return
        self._reported.add(emitter)
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(lost.items()))
        why = f": {emitter.trouble}" if emitter.trouble else ""
        records = notices.pluralized(sum(lost.values()))
        notices.write(f"penstock: {records} lost when the process ended ({reasons}){why}.")


class _Owner:
    """Owner of the call after a fork; `multiprocessing` drops calls whose owner is gone."""


_OWNER: Final = _Owner()
_is_kept = False


def register_child_exit(end: Callable[[], object]) -> None:
    """Have `end` called where a child ends: one just forked, or this process if it is one."""
    global _is_kept  # noqa: PLW0603 - once; children inherit it with what is kept
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None and not _is_kept:
        _is_kept = True
        util.register_after_fork(_OWNER, lambda _: _call_at_end(util, end))


def register_process_exit(end: Callable[[], object]) -> None:
    """Have `end` called where this process, which may emit, ends as a child of those libraries."""
    process: Any = sys.modules.get("multiprocessing.process")
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None and process is not None and process.parent_process() is not None:
        _call_at_end(util, end)
    else:
        _register_with_billiard(end)


def _call_at_end(util: Any, end: Callable[[], object]) -> None:
    util.Finalize(None, end, exitpriority=_LAST)
    _register_with_billiard(end)


def _register_with_billiard(end: Callable[[], object]) -> None:
    """Flush when this process ends, where it is a worker of billiard's pool."""
    pool: Any = sys.modules.get("billiard.pool")
    process: Any = sys.modules.get("billiard.process")
    if pool is None or process is None:
        return
    worker = getattr(process.current_process(), "_target", None)
    if isinstance(worker, pool.Worker) and not isinstance(worker.on_exit, _OnExit):
        worker.on_exit = _OnExit(worker.on_exit, end)


class _OnExit:
    """A worker's exit function: the one it had, then our flush."""

    def __init__(
        self, before: Callable[[int, int], object] | None, end: Callable[[], object]
    ) -> None:
        self._before = before
        self._end = end

    def __call__(self, pid: int, code: int) -> None:
        try:
            if self._before is not None:
                self._before(pid, code)
        finally:
            self._end()
