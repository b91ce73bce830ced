"""Garbage collection in a process that makes much at its start and keeps it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Do without garbage collections while much is made that stays.

    Each full collection looks at everything there is, and there is one each time that a quarter has
    come to it: a third of the CPU time in which 5,000 logs are opened. Within another block of this
    process, or where collections are switched off anyway, it changes nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
