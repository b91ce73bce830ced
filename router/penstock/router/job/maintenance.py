"""Periodic tasks of sinks beside their batches, in threads of the driver."""

import threading
from collections.abc import Mapping
from typing import Final

import structlog

from penstock.router.sinks import Sink
from penstock.router.sinks.sink import Maintenance

_FIRST_S: Final = 60.0
"""Maximum seconds until the first run, so that a job that restarts often runs its tasks, too."""

_END_S: Final = 2.0
"""Seconds that the end of a job waits for the tasks, each of which can be interrupted anywhere."""


class MaintenanceThreads:
    """A thread for each sink that wants one.

    Args:
        sinks: Sinks by name.
    """

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._stop = threading.Event()
        self._problems: dict[str, str] = {}
        self._threads = []
        for name, sink in sinks.items():
            # A third party's sink, which need not derive from `Sink`, may lack it.
            wanted = getattr(sink, "maintenance", lambda: None)()
            if wanted is not None:
                thread = threading.Thread(
                    target=self._repeat, args=(name, wanted), name=f"maintain-{name}", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    @property
    def problem(self) -> str | None:
        """Error of the last run of one of the sinks; None: all succeeded."""
        return next(iter(list(self._problems.values())), None)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stop.set()

    def close(self) -> None:
        """End all."""
        self.stop()
        for thread in self._threads:
            thread.join(_END_S)

    def _repeat(self, sink: str, wanted: Maintenance) -> None:
        wait_s = min(_FIRST_S, wanted.interval_s)
        while not self._stop.wait(wait_s):
            wait_s = wanted.interval_s
            try:
                wanted.run(self._stop.is_set)
            except Exception as error:  # noqa: BLE001 - a sink goes on without; it is told and tried again
                reason = str(error).partition("\n")[0] or type(error).__name__
                self._problems[sink] = f"sink/{sink}: maintenance: {reason}"
                structlog.get_logger().warning("sink_maintenance_failed", sink=sink, reason=reason)
            else:
                self._problems.pop(sink, None)
