"""What is bound to the running task: context and attributes that go onto every record."""

import contextvars
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from typing_extensions import override

from penstock.specs.models.attributes import clean_attributes, clean_text, encodable
from penstock.specs.models.envelope import Context


@dataclass(frozen=True, slots=True)
class Bound:
    """An immutable binding.

    Attributes:
        context: With the wire's keys (``user.id``).
        attributes: Clean, and encodable.
    """

    context: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


_BOUND: ContextVar[Bound] = ContextVar("penstock_bound", default=Bound())  # noqa: B039 - frozen
_KEYS: Final = {
    key: (field.alias or name)
    for name, field in Context.model_fields.items()
    for key in (name, field.alias or name)
}
_LENGTHS: Final = {
    field.alias or name: next(
        (rule.max_length for rule in field.metadata if hasattr(rule, "max_length")), 64
    )
    for name, field in Context.model_fields.items()
}


@contextmanager
def bind(**given: Any) -> Iterator[None]:
    """Add fields to every record made within the block, in this thread or asyncio task.

    Names of `Context` (``user_id``, ``request_id``, …) become context; all others attributes. Tasks
    and `asyncio.to_thread` inherit the binding; plain threads and executors start without it, hence
    `Executor` and `carry`.
    """
    before = _BOUND.get()
    context, attributes = dict(before.context), {}
    for name, value in given.items():
        key = _KEYS.get(name)
        if key is None:
            attributes[name] = value
        elif value is not None:
            context[key] = encodable(clean_text(value, _LENGTHS[key]))
    clean, _ = clean_attributes(attributes)
    merged = {**before.attributes, **encodable(clean)}
    token = _BOUND.set(replace(before, context=context, attributes=merged))
    try:
        yield
    finally:
        _BOUND.reset(token)


bound: Final = _BOUND.get
"""What is bound here and now."""


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
