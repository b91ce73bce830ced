"""A replay in a process of its own, as others see it, and how it is ended before its time.

The job does not run meanwhile, so its `admin` is free: the replay answers there, and
`penstock router status` and whoever else looks sees how far it is and what keeps it. SIGTERM,
Ctrl-C, or a POST with the token of actions end it between two batches, or as soon as the sink gives
its batch up; a second signal ends the process at once.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from types import FrameType
from typing import Any

from prometheus_client import CollectorRegistry
from py4j.protocol import Py4JError

from penstock.router.action_token import PATH, Answer, refusal
from penstock.router.bounded import BoundedRun
from penstock.router.clock import Clock
from penstock.router.telemetry import StatusCollector
from penstock.service import ExitCode, Health, Status, Visitor, admin_server

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def attended(run: BoundedRun, clock: Clock) -> Iterator[None]:
    """While the block replays, answer at the job's `admin` and to signals.

    To be called on the main thread, once Spark is there: it takes SIGINT for itself.

    Raises:
        UnavailableError: The address of `admin` is taken.
    """
    door = _Door(run, clock)
    registry = CollectorRegistry()
    registry.register(StatusCollector(door.status))
    actions = {PATH: door.answer}
    server = admin_server(door.status, registry, run.config.admin_access, actions)
    server.start(run.config.admin)
    before = {number: signal.signal(number, door.on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        server.close(quietly=True)


class _Door:
    """What is said, and what may be done. `status` and `answer` are for any thread."""

    def __init__(self, run: BoundedRun, clock: Clock) -> None:
        self._run = run
        self._clock = clock

    def status(self) -> Status:
        """The replay as if it were a job with one sink."""
        progress, config = self._run.progress, self._run.config
        problem = progress.problem
        reasons = [f"replay to {progress.sink}: {problem}"] if problem else []
        stage = progress.meter.stage(progress.sink, received=progress.records, lag=0)
        return Status(
            component="router",
            name=config.job,
            version=version("penstock"),
            health=Health.DEGRADED if problem else Health.READY,
            reasons=tuple(reasons),
            stages=(stage,) if progress.sink else (),
            info=self._info(),
        )

    def _info(self) -> dict[str, Any]:
        progress, now_ns = self._run.progress, self._clock.monotonic_ns()
        sink = {
            "committed": {},
            "restarts": 0,
            "records_per_s": 0,
            "problem": progress.problem,
            "circuit": progress.meter.circuit.as_json(now_ns),
        }
        replays = {
            "possible": False,
            "stoppable": self._run.config.actions_token_file is not None,
            "under_way": progress.sink,
            "progress": progress.as_json(now_ns),
            "last": None,
            "files": {},
            "process": os.getpid(),
        }
        return {
            "committed": {},
            "log": {},
            "sinks": {progress.sink: sink} if progress.sink else {},
            "replays": replays,
            "spark_ui": self._run.session.ui,
        }

    def answer(self, visitor: Visitor, body: bytes) -> Answer:
        """As `penstock.service.Action`."""
        refused = refusal(self._run.config, visitor)
        if refused is not None:
            return refused
        try:
            wanted = json.loads(body)
        except (ValueError, RecursionError):
            wanted = None
        if not isinstance(wanted, dict) or wanted.get("do") != "stop":
            return "409 Conflict", {"error": "a replay is under way, without the job; do: stop"}
        self._end()
        return "202 Accepted", {"done": f"the replay to {self._run.progress.sink} is to stop"}

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """The first one ends the replay in good order, the second one the process."""
        if self._run.stop.is_set():
            os._exit(ExitCode.TEMPORARY)
        name = signal.Signals(number).name
        os.write(2, f"{name}: the replay stops; once more ends it at once\n".encode())
        self._end()

    def _end(self) -> None:
        self._run.stop.set()
        # Elsewhere: this may be a signal's handler, in the middle of a call to Spark.
        threading.Thread(target=self._cancel, name="cancel", daemon=True).start()

    def _cancel(self) -> None:
        with suppress(Py4JError, OSError):  # Spark is ending, or has ended
            self._run.session.spark.sparkContext.cancelAllJobs()
