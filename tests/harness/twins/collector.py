"""Collectors that are broken on purpose; the plan `crash` must find each out.

    python -m tests.harness.twins.collector NAME --config FILE

- ``acks-early``: what a source takes is called durable before it is written.
- ``forgets``: what a start finds in the spools is taken for delivered.
"""

import sys
import threading
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from penstock.collector import failpoints
from penstock.collector.checkpoint.state import State
from penstock.collector.cli.main import main
from penstock.collector.spool.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable

_LATE_S: Final = 1.0


def _acks_early() -> None:
    offer: Callable[..., Any] = Journal.offer
    passed: Callable[[str], None] = failpoints.passed

    def promise(self: Any, entry: Any, *, always: bool = False) -> Any:
        future = offer(self, entry, always=always)
        future.set_result(self.durable_offset)
        return future

    def write_late(name: str) -> None:
        if name.endswith("_before_write"):
            threading.Event().wait(_LATE_S)  # so that a kill comes in between
        passed(name)

    Journal.offer = promise  # type: ignore[method-assign]
    patch.object(failpoints, "passed", write_late).start()


def _forgets() -> None:
    fit: Callable[..., bool] = State.fit_to_spool

    def forget(self: Any, start: int, end: int, urgent: tuple[int, int] = (0, 0)) -> bool:
        foreign = fit(self, start, end, urgent)
        self.cursor, self.urgent_cursor = end, urgent[1]
        return foreign

    State.fit_to_spool = forget  # type: ignore[assignment,method-assign]


TWINS: Final = {"acks-early": _acks_early, "forgets": _forgets}

if __name__ == "__main__":
    TWINS[sys.argv.pop(1)]()
    main()
