"""A replay in its own process, as others see it, and how it is ended before its time.

The job does not run meanwhile, so its `admin` is free: the replay answers there, and
`penstock router status` and others see how far it is and what keeps it; where that
address cannot be had, it goes on unseen. SIGTERM, Ctrl-C, the end of its terminal, or a POST with
the token of actions end it between two batches, or as soon as the sink gives its batch up; a second
SIGTERM or Ctrl-C, a second after the first signal or later, ends the process at once. Sooner it is
the same stop told twice: the end of a terminal is told by the shell and by the kernel, and
`timeout` tells the process, then its group.

A signal's handler runs in the middle of whatever the main thread does, which may hold the lock of
the very event that is to be set, and not before a call into C returns. So it does nothing: Python
writes the signal's number into a pipe as it comes, and a thread does the rest.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

import click
import structlog
from prometheus_client import CollectorRegistry
from py4j.protocol import Py4JError

from penstock.base.clock import BlockingClock
from penstock.router.job.permissions import PATH, Answer, refusal
from penstock.router.replay.audit_log import BY_MAX, append_audit
from penstock.router.replay.bounded_run import BoundedRun
from penstock.router.telemetry import StatusCollector
from penstock.service import (
    AdminServer,
    ExitCode,
    Health,
    Requester,
    Status,
    UnavailableError,
    admin_server,
    release,
)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOHUP: Final = (signal.SIGHUP, signal.SIG_IGN)
"""A process started under nohup is to outlast the terminal."""

_STOP: Final = 0
"""Byte in the pipe for a stop requested over the network; any other is a signal's number."""

_AGAIN_NS: Final = 10**9
_END_S: Final = 5.0
_log = structlog.get_logger()


@contextmanager
def attended(
    run: BoundedRun, clock: BlockingClock, *, exit_now: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """While the block replays, answer at the job's `admin` and to signals.

    To be called on the main thread, once Spark is there: it takes SIGINT for itself.

    Raises:
        ConfigError: A file of `admin_access` cannot be used.
    """
    endpoint = _AdminEndpoint(run, clock, exit_now)
    server = _served(run, endpoint)
    taken = [it for it in _SIGNALS if (it, signal.getsignal(it)) != _NOHUP]
    woken = signal.set_wakeup_fd(endpoint.pipe, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _on_signal) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        if server is not None:
            server.close(quietly=True)
        endpoint.close()


def _served(run: BoundedRun, endpoint: "_AdminEndpoint") -> AdminServer | None:
    """Start the replay's admin server; None: it cannot listen, and the reason is printed."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(endpoint.status))
    actions = {PATH: endpoint.answer}
    config = run.config
    server = admin_server(
        endpoint.status, registry, config.admin_access, actions, hosts=config.admin_hosts
    )
    try:
        server.start(run.config.admin)
    except UnavailableError as error:
        said = f"{error}; so no `status` shows this replay, and signals alone stop it"
        click.echo(said, err=True)
        return None
    return server


def _on_signal(_: int, __: FrameType | None) -> None:
    """See above."""


class _AdminEndpoint:
    """Status and admin actions of the replay. `status` and `answer` are for any thread.

    Attributes:
        pipe: Receives the signals.
    """

    def __init__(
        self, run: BoundedRun, clock: BlockingClock, exit_now: Callable[[int], object]
    ) -> None:
        self._run = run
        self._clock = clock
        self._exit_now = exit_now
        self._signalled_ns: int | None = None
        reading, self.pipe = os.pipe()
        os.set_blocking(self.pipe, False)
        self._pipe = os.fdopen(self.pipe, "wb", buffering=0)
        self._thread = threading.Thread(
            target=self._listen, args=(reading,), name="stop", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Nothing is to be stopped any more."""
        self._pipe.close()
        self._thread.join(_END_S)

    def status(self) -> Status:
        """The replay as if it were a job with one sink."""
        progress, config = self._run.progress, self._run.config
        problem = progress.problem
        reasons = [f"replay to {progress.sink}: {problem}"] if problem else []
        stage = progress.meter.stage(progress.sink, received=progress.records, lag=0)
        return Status(
            component="router",
            name=config.job,
            version=release(),
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
            "batch_s": None,
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

    def answer(self, visitor: Requester, body: bytes) -> Answer:
        refused = refusal(self._run.config, visitor)
        if refused is not None:
            return refused
        try:
            wanted = json.loads(body)
        except (ValueError, RecursionError):
            wanted = None
        if not isinstance(wanted, dict) or wanted.get("do") != "stop":
            return "409 Conflict", {"error": "a replay is under way, without the job; do: stop"}
        progress = self._run.progress
        if wanted.get("sink") not in (None, progress.sink):
            return "409 Conflict", {"error": f"the replay under way is one to {progress.sink}"}
        by = str(wanted.get("by") or visitor.peer)[:BY_MAX]
        kind = "range " if progress.unit == "batches" else ""
        about = {"to": progress.sink, "by": by, "peer": visitor.peer}
        try:
            append_audit(self._run.config.dead_letters, self._clock, f"{kind}stop asked", **about)
        except OSError as error:  # it stops all the same, and says so where it ends
            _log.warning("replay_stop_audit_failed", reason=str(error), **about)
        self._run.stop.set()
        with suppress(ValueError):  # it is closed: the replay has just ended
            self._pipe.write(bytes([_STOP]))
        return "202 Accepted", {"done": f"the replay to {progress.sink} is to stop"}

    def _listen(self, reading: int) -> None:
        """Stop the replay, and what Spark does for it, or the process."""
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while told := pipe.read(1):
                number = told[0]
                if number in _SIGNALS and not self._is_first(number):
                    continue
                if number not in (_STOP, *_SIGNALS):
                    continue  # another one, with its own handler
                self._run.stop.set()
                # On a separate thread: Spark may not answer, and a second signal is handled.
                threading.Thread(target=self._cancel, name="cancel", daemon=True).start()

    def _is_first(self, number: int) -> bool:
        """The first one ends the replay in good order, a later one the process."""
        now_ns = self._clock.monotonic_ns()
        if self._signalled_ns is not None:
            if number != signal.SIGHUP and now_ns - self._signalled_ns >= _AGAIN_NS:
                self._exit_now(ExitCode.TEMPORARY)
            return False
        self._signalled_ns = now_ns
        name = signal.Signals(number).name
        with suppress(OSError):  # the terminal may be gone
            os.write(2, f"{name}: the replay stops; again, after 1 s, ends it at once\n".encode())
        return True

    def _cancel(self) -> None:
        with suppress(Py4JError, OSError):  # Spark is ending, or has ended
            self._run.session.spark.sparkContext.cancelAllJobs()
