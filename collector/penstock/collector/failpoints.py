"""Named places at which a test ends the process as `kill -9` would; nothing happens unless asked.

`PENSTOCK_COLLECTOR_FAILPOINT=NAME:N` ends it when the place is passed for the Nth time. Without the
variable a passage is a call of an empty function, and none lies on the way of a single record.

A `kill -9` at a random time nearly always meets a process that waits. These places are between a
write and its sync, between logd's ack and the cursor, between the checkpoint and the deletion that
it allows. A kill keeps the page cache, so missing syncs are found by `tests/sim/spool_world.py`.
"""

import itertools
import os
import signal
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "PENSTOCK_COLLECTOR_FAILPOINT"
NAMES: Final = (
    "spool_before_write",
    "spool_before_sync",
    "spool_after_sync",
    "spool_before_delete",
    "spool_after_delete",
    "spool-urgent_before_sync",
    "spool-urgent_after_sync",
    "quarantine_after_sync",
    "acked_before_answer",
    "publish_before_request",
    "publish_after_ack",
    "checkpoint_before_write",
    "checkpoint_after_write",
    "recovery_before_checkpoint",
    "recovery_after_checkpoint",
    "reload_before_exchange",
    "reload_after_exchange",
    "drain_begun",
    "drain_ended",
)


def _pass_by(_name: str) -> None:
    """The usual case."""


def arm(setting: str) -> Callable[[str], None]:
    """Return the function that is called at each place.

    Args:
        setting: ``NAME:N``; empty: nothing is asked for.

    Raises:
        ValueError: There is no such place, or N is no number.
    """
    if not setting:
        return _pass_by
    wanted, _, number = setting.partition(":")
    if wanted not in NAMES:
        msg = f"{VARIABLE}: {wanted!r} is none of {', '.join(NAMES)}"
        raise ValueError(msg)
    last, passages = int(number), itertools.count(1)

    def end_at_last(name: str) -> None:
        if name == wanted and next(passages) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    return end_at_last


passed: Final = arm(os.environ.get(VARIABLE, ""))
