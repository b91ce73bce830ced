"""A sink that is down half of the time, in one of four ways, while whatever else happens."""

import random
import threading
from types import TracebackType
from typing import Final, Self

from penstock.base.clock import SystemClock
from tests.support.fault_door import RESET, Answered, Asked, FaultDoor

_PERIOD_S: Final = (0.2, 4.0)
_SILENT_S: Final = 30.0
UP: Final = "up"
_WAYS: Final = ("reset", "taken", "silent", "busy")
"""Connections are reset, also after everything was taken; no answer comes; the answer is 503."""


class UnsteadySink:
    """From the start of the block to its end, or to `heal`.

    Args:
        door: In front of the sink.
        rng: Draws how long it is as it is.

    Attributes:
        requests: To the sink, refused ones included.
        seconds: That it was up, and down in each way.
    """

    def __init__(self, door: FaultDoor, rng: random.Random) -> None:
        self.requests = 0
        self.seconds: dict[str, float] = dict.fromkeys((UP, *_WAYS), 0.0)
        self._door, self._rng = door, rng
        self._over, self._changed = threading.Event(), threading.Event()
        self._way = UP
        self._thread = threading.Thread(target=self._run, daemon=True)
        door.rule = self._rule

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.heal()

    @property
    def down_share(self) -> float:
        """Of the time so far."""
        all_s = sum(self.seconds.values())
        return 1 - self.seconds[UP] / all_s if all_s else 0.0

    def heal(self) -> None:
        """It is well from now on."""
        self._over.set()
        self._thread.join()
        self._become(UP)

    def _run(self) -> None:
        clock = SystemClock()
        while not self._over.is_set():
            begun_ns = clock.monotonic_ns()
            self._become(self._rng.choice(_WAYS) if self._way == UP else UP)
            self._over.wait(self._rng.uniform(*_PERIOD_S))
            self.seconds[self._way] += (clock.monotonic_ns() - begun_ns) / 1e9

    def _become(self, way: str) -> None:
        self._way = way
        self._changed.set()
        self._changed.clear()

    def _rule(self, asked: Asked) -> Answered | None:
        self.requests += 1
        self._door.asked.clear()  # of many requests nobody wants to see each
        match self._way:
            case "up":
                return None
            case "taken":
                self._door.backend.handle(asked)
            case "silent":
                self._changed.wait(_SILENT_S)
            case "busy":
                return Answered(503, b"no room")
            case _:
                assert self._way == "reset"
        return RESET
