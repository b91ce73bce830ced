"""Bindings and traces across threads, where Python does not carry them by itself."""

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from typing_extensions import override

P = ParamSpec("P")
R = TypeVar("R")


class Executor(ThreadPoolExecutor):
    """A thread pool whose work has the bindings and the trace of whoever submitted it.

    For `asyncio`, too: ``loop.set_default_executor(Executor())``.
    """

    @override
    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return super().submit(carry(fn), *args, **kwargs)


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """The function, to be called elsewhere with the bindings and the trace of here and now.

    As in ``threading.Thread(target=carry(work))``. It may be called more than once, also at once.
    """
    here = contextvars.copy_context()

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        # A context runs in one thread at a time; a copy costs less than a microsecond.
        run: Any = here.copy().run
        result: R = run(function, *args, **kwargs)
        return result

    return called
