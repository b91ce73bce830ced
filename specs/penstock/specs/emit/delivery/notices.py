"""Messages of the library on standard error: where records are lost, and why.

An application that sees no records has nowhere else to look. A topic is said once a minute at most,
in a process and its forked children together.
"""

import os
import select
import sys
from typing import Final

from penstock.base import clock
from penstock.base.pluralize import pluralize
from penstock.specs.emit.delivery import unpatched

PERIOD_NS: Final = 60 * 10**9
DEBUG_VARIABLE: Final = "PENSTOCK_DEBUG"
_said_ns: Final[dict[str, int]] = {}


def say(topic: str, text: str) -> bool:
    """Write one line, unless this topic was said within the last minute; never waits or raises."""
    now = clock.monotonic_ns()
    last = _said_ns.get(topic)
    if last is not None and now - last < PERIOD_NS:
        return False
    _said_ns[topic] = now
    return write(f"penstock: {text}")


def write(text: str) -> bool:
    """Write a line to standard error; False when nobody can read it now."""
    try:
        descriptor = sys.__stderr__.fileno() if sys.__stderr__ is not None else -1
        poll = unpatched.poll()
        poll.register(descriptor, select.POLLOUT)
        if not any(state & select.POLLOUT for _, state in poll.poll(0)):
            return False
        os.write(descriptor, f"{text}\n".encode("utf-8", "replace"))
    except (OSError, ValueError, AttributeError, TypeError):
        return False  # it is closed, is no file, or the interpreter takes its modules apart
    return True


def is_debugging() -> bool:
    """PENSTOCK_DEBUG: ``1`` or ``true``."""
    return os.environ.get(DEBUG_VARIABLE, "").strip().lower() in ("1", "true")


def pluralized(records: int) -> str:
    """A number of records with its verb: ``1 record was`` or ``2 records were``."""
    return f"{pluralize(records, 'record')} {'was' if records == 1 else 'were'}"
