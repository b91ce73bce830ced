"""What is bound to the running task: context and attributes that go onto every record."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.specs.attributes import clean_attributes, clean_text, encodable
from penstock.specs.envelope import Context


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
