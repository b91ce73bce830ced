"""The thread that moves batches between the delivery core and a link."""

import contextlib
import os
import select
from collections import deque
from collections.abc import Callable
from typing import Any, Final, assert_never

from penstock.specs import clock, native
from penstock.specs.core.delivery import (
    Close,
    Connect,
    Connected,
    Delivery,
    Effect,
    Event,
    Lost,
    Send,
    Tick,
)
from penstock.specs.links import LINK_ERRORS, Dropped, Link

_MS: Final = 1_000_000
_READ_BYTES: Final = 4096
_CHORES_FAILED_MS: Final = 1000


class Flusher:
    """Runs `delivery` on `link` in a daemon thread that starts with the first record.

    Args:
        delivery: Decides. Shared with the emitter, hence only touched with `lock` held.
        link: Touched by the thread only.
        lock: A reentrant lock.
        dropped: The drop counters to report; called with `lock` held.
        chores: Called now and then, without `lock`; returns in how many milliseconds to do so again
            at the latest, None for whenever there is something else to do.

    Attributes:
        is_started: Whether the thread runs, or was ended.
    """

    def __init__(
        self,
        delivery: Delivery,
        link: Link,
        lock: Any,
        dropped: Callable[[], Dropped],
        chores: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._delivery = delivery
        self._link = link
        self._lock = lock
        self._dropped = dropped
        self._chores = chores
        self._waiters: list[Any] = []
        self._running: Any = None
        self.is_started = False
        self._was_up = False
        self._stopping = False
        self._wake_in, self._wake_out = -1, -1

    @property
    def is_vain(self) -> bool:
        """Whether to wait is in vain: nobody was ever there to answer, or nothing is unanswered."""
        with self._lock:
            return self._delivery.idle or (self._link.is_absent and not self._was_up)

    def ensure_started(self) -> None:
        """Start the thread if it does not run; call with the lock held."""
        if self._running is not None or self._stopping:
            return
        running = native.allocate_lock()
        running.acquire()
        try:
            self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._running, self.is_started = running, True
            native.start_thread(lambda: self._run(running))
        except (OSError, RuntimeError):
            # No descriptors, or the interpreter is ending: try again at the next record.
            self._close_wake()
            self._running, self.is_started = None, False

    def wake(self) -> None:
        """Make the thread look at the queue."""
        # Full: it will wake anyway. Closed: it has ended. The lock keeps it from being closed in
        # between, after which its number may mean another file of the application.
        with self._lock, contextlib.suppress(OSError):
            os.write(self._wake_out, b"w")

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that is queued is answered; False when that takes longer."""
        with self._lock:
            if self._delivery.idle:
                return True
            self.ensure_started()
            self._delivery.hurry()
            settled = native.allocate_lock()
            settled.acquire()
            self._waiters.append(settled)
        self.wake()
        if settled.acquire(timeout=max(0.0, timeout_s)):
            return True
        with self._lock:
            if settled in self._waiters:
                self._waiters.remove(settled)
            return self._delivery.idle

    def stop(self, timeout_s: float) -> None:
        """End the thread; what is queued stays there.

        A thread that is held up, by a standard output that nobody reads, is not waited for longer
        than `timeout_s`: it ends when it can, and keeps its descriptors until then.
        """
        with self._lock:
            self._stopping = True
            running, self._running = self._running, None
        if running is not None:
            self.wake()
            if running.acquire(timeout=timeout_s):
                with self._lock:
                    self._close_wake()

    def abandon(self) -> None:
        """In a forked child: close this process's copies of the parent's descriptors."""
        self._link.close()
        self._close_wake()

    def _run(self, running: Any) -> None:
        while not self._stopping:
            self._wait(self._next_chores_ms())
            try:
                self._step()
            except Exception:  # noqa: BLE001 - out of memory, say: reconnect, and send again
                self._link.close()
                with self._lock:
                    self._delivery.handle(Lost(clock.jitter()), clock.monotonic_ns())
        self._link.close()
        running.release()

    def _next_chores_ms(self) -> int | None:
        try:
            return self._chores()
        except Exception:  # noqa: BLE001 - the thread must go on
            return _CHORES_FAILED_MS

    def _wait(self, milliseconds: int | None) -> None:
        """Until a deadline, until the link can go on, or until somebody wakes us."""
        with self._lock:
            deadline_ns = self._delivery.next_deadline_ns()
        poll = native.poll()
        poll.register(self._wake_in, select.POLLIN)
        if interest := self._link.interest():
            poll.register(*interest)
        if deadline_ns is not None:
            wait_ms = -(-max(0, deadline_ns - clock.monotonic_ns()) // _MS)
            milliseconds = wait_ms if milliseconds is None else min(milliseconds, wait_ms)
        poll.poll(milliseconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_in, _READ_BYTES)

    def _step(self) -> None:
        events: deque[Event] = deque([Tick()])
        self._pump(events)
        while events:
            with self._lock:
                effects = self._delivery.handle(events.popleft(), clock.monotonic_ns())
                dropped = self._dropped() if effects else {}
                if self._delivery.idle:
                    self._release_waiters()
            for effect in effects:
                self._apply(effect, dropped, events)

    def _apply(self, effect: Effect, dropped: Dropped, events: deque[Event]) -> None:
        match effect:
            case Connect():
                is_up = self._link.connect()
                self._was_up = self._was_up or is_up
                events.append(Connected() if is_up else Lost(clock.jitter()))
            case Send(batch):
                events.extend(self._link.send(batch, dropped))
                self._pump(events)
            case Close():
                self._link.close()
            case _:
                assert_never(effect)

    def _pump(self, events: deque[Event]) -> None:
        try:
            events.extend(self._link.pump())
        except LINK_ERRORS:
            self._link.close()
            events.append(Lost(clock.jitter()))

    def _release_waiters(self) -> None:
        for settled in self._waiters:
            settled.release()
        self._waiters.clear()

    def _close_wake(self) -> None:
        for descriptor in (self._wake_in, self._wake_out):
            if descriptor >= 0:
                os.close(descriptor)
        self._wake_in, self._wake_out = -1, -1
