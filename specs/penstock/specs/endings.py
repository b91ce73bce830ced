"""Processes that end without `atexit`: those of `multiprocessing` and of billiard, Celery's own.

Its children, also those of a `ProcessPoolExecutor`, call what is registered with `multiprocessing`
itself and are gone. A child that is forked forgets even what its parent had registered, hence the
detour: what is to be called after a fork is kept.

billiard shares that registry. But a worker of its pool ends by `os._exit` before it comes to that;
it calls its own ``on_exit`` first.
"""

import contextlib
import sys
from collections.abc import Callable
from typing import Any, Final

_LAST: Final = -100
"""After finalizers of the application, which may say something."""
_FLUSHES: Final[list[Callable[[], object]]] = []


class _Owner:
    """Of what is called after a fork; `multiprocessing` forgets it with its owner."""


_OWNER: Final = _Owner()
_is_kept = False
_has_begun = False


def flush_first(flush: Callable[[], object]) -> None:
    """Have something called where a child of `multiprocessing` ends, before what was given."""
    if flush not in _FLUSHES:
        _FLUSHES.insert(0, flush)


def has_begun() -> bool:
    """Whether this is a child that ends."""
    return _has_begun


def see_to_child() -> None:
    """Called in a child that was just forked, by whomever, and in whoever may become one."""
    global _is_kept  # noqa: PLW0603 - once; children inherit it with what is kept
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None and not _is_kept:
        _is_kept = True
        util.register_after_fork(_OWNER, lambda _: _call_at_end(util))


def see_to_process() -> None:
    """Called in a process that may emit: its end is seen to if it is one's child."""
    process: Any = sys.modules.get("multiprocessing.process")
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None and process is not None and process.parent_process() is not None:
        _call_at_end(util)
    else:
        _see_to_billiard()


def _call_at_end(util: Any) -> None:
    util.Finalize(None, _flush, exitpriority=_LAST)
    _see_to_billiard()


def _see_to_billiard() -> None:
    """Where this process is a worker of a pool of billiard's, flush when it ends."""
    pool: Any = sys.modules.get("billiard.pool")
    process: Any = sys.modules.get("billiard.process")
    if pool is None or process is None:
        return
    worker = getattr(process.current_process(), "_target", None)
    if isinstance(worker, pool.Worker) and not isinstance(worker.on_exit, _OnExit):
        worker.on_exit = _OnExit(worker.on_exit)


class _OnExit:
    """What a worker calls when it ends: what it had, then our flush."""

    def __init__(self, before: Callable[[int, int], object] | None) -> None:
        self._before = before

    def __call__(self, pid: int, code: int) -> None:
        try:
            if self._before is not None:
                self._before(pid, code)
        finally:
            _flush()


def _flush() -> None:
    global _has_begun  # noqa: PLW0603 - once in the life of a child
    _has_begun = True
    for flush in _FLUSHES:
        with contextlib.suppress(Exception):
            flush()
