"""The thread that moves batches between the delivery core and a link."""

import contextlib
import os
import select
from collections import deque
from collections.abc import Callable
from typing import Any, Final, assert_never

from penstock.base import clock
from penstock.specs.emit.delivery import notices, unpatched
from penstock.specs.emit.delivery.core import (
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
from penstock.specs.emit.delivery.transport import LINK_ERRORS, Link, Report, jitter

_MS: Final = 1_000_000
_READ_BYTES: Final = 4096
_PERIODIC_TASKS_RETRY_MS: Final = 1000
_FAILURES_UNTIL_SAID: Final = 3
"""A connection that ends is nothing special: a collector was started again."""


class DeliveryWorker:
    """Runs `delivery` on `link` in a daemon thread that starts with the first record.

    Args:
        delivery: Decides. Shared with the emitter, hence only touched with `lock` held.
        link: Touched by the thread only.
        lock: A reentrant lock.
        report: What to tell the receiver of all records; called with `lock` held.
        periodic_tasks: Called now and then, without `lock`; returns in how many milliseconds they
            are due again at the latest, or None.
        start_thread: Has the flusher's loop run in another thread, at once or later.

    Attributes:
        is_started: Whether the thread runs, and was not told to end.
        is_inline: Whether it has ended for good, since the process ends: then those who `flush`
            do its work.
    """

    def __init__(
        self,
        delivery: Delivery,
        link: Link,
        lock: Any,
        report: Callable[[], Report],
        periodic_tasks: Callable[[], int | None] = lambda: None,
        *,
        start_thread: Callable[[Callable[[], None]], None] = unpatched.start_thread,
    ) -> None:
        self._delivery = delivery
        self._link = link
        self._lock = lock
        self._report = report
        self._periodic_tasks = periodic_tasks
        self._start_thread = start_thread
        self._waiters: list[Any] = []
        self._room_waiters: list[Any] = []
        self._running: Any = None
        self._ending: Any = None
        self._is_wanted_again = False
        self._thread_id = -1
        self._here = unpatched.reentrant_lock()
        self.is_started = False
        self.is_inline = False
        self._wake_in, self._wake_out = -1, -1

    @property
    def no_listener(self) -> bool:
        """True if no collector is there to answer, or everything is answered."""
        with self._lock:
            return self._delivery.idle or self._link.is_absent

    @property
    def is_own_thread(self) -> bool:
        return unpatched.thread_id() == self._thread_id

    def ensure_started(self) -> None:
        """Start the thread if it does not run; call with the lock held.

        One that was told to end, and is still held up, starts another when it does.
        """
        if self._running is not None or self.is_inline:
            return
        if self._ending is not None:
            self._is_wanted_again = True
            return
        running = unpatched.allocate_lock()
        running.acquire()
        try:
            self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._running, self.is_started = running, True
            self._start_thread(lambda: self._run(running))
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
            self._delivery.flush_now()
            self.ensure_started()
            settled = unpatched.allocate_lock()
            settled.acquire()
            if not self.is_inline:
                self._waiters.append(settled)
        if self.is_inline:
            return self._flush_here(timeout_s)
        self.wake()
        if settled.acquire(timeout=max(0.0, timeout_s)):
            return True
        with self._lock:
            if settled in self._waiters:
                self._waiters.remove(settled)
            return self._delivery.idle

    def room(self) -> Any:
        """A lock that is released when something was answered; call with the lock held."""
        self._delivery.flush_now()
        waiter = unpatched.allocate_lock()
        waiter.acquire()
        self._room_waiters.append(waiter)
        return waiter

    def stop(self, timeout_s: float) -> bool:
        """End the thread; what is queued stays there, and another record starts it again.

        A thread that is held up, by a standard output that nobody reads, is not waited for longer
        than `timeout_s`: it ends when it can, and keeps its descriptors until then.
        """
        with self._lock:
            running, self._running = self._running, None
            if running is None:
                return self._ending is None
            self._ending, self._is_wanted_again, self.is_started = running, False, False
        self.wake()
        ended: bool = running.acquire(timeout=timeout_s)
        return ended

    def end(self, timeout_s: float) -> None:
        """Let threads that emit send their records themselves; called at the end of the process.

        The interpreter stops threads before the last of the application's code has run.
        """
        self.is_inline = True
        if not self.stop(timeout_s):
            self.is_inline = False

    def after_fork(self) -> None:
        """Close this process's copies of the parent's descriptors; called in a forked child."""
        self._link.close()
        self._close_wake()

    def _run(self, running: Any) -> None:
        self._thread_id = unpatched.thread_id()
        while self._running is running:
            self._wait(self._run_periodic_tasks())
            self._try_step()
        if not self.is_inline:  # threads that emit go on with the connection
            self._link.close()
            with self._lock:
                self._delivery.handle(Lost(0.0), clock.monotonic_ns())
        with self._lock:
            self._close_wake()
            self._ending = None
            if self._is_wanted_again:
                self._is_wanted_again = False
                self.ensure_started()
        running.release()

    def _flush_here(self, timeout_s: float) -> bool:
        """Do the thread's work until all is answered; not where this thread is about it."""
        if self._here._is_owned() or not self._here.acquire(timeout=max(0.0, timeout_s)):  # noqa: SLF001 - as `threading` asks
            return False
        try:
            until_ns = clock.monotonic_ns() + int(timeout_s * 1e9)
            while True:
                self._try_step()
                with self._lock:
                    if self._delivery.idle:
                        return True
                left_ns = until_ns - clock.monotonic_ns()
                if left_ns <= 0:
                    return False
                self._wait(-(-left_ns // _MS))
        finally:
            self._here.release()

    def _try_step(self) -> None:
        try:
            self._step()
        except Exception:  # noqa: BLE001 - out of memory, say: reconnect, and send again
            self._link.close()
            with self._lock:
                self._delivery.handle(Lost(jitter()), clock.monotonic_ns())

    def _run_periodic_tasks(self) -> int | None:
        try:
            return self._periodic_tasks()
        except Exception:  # noqa: BLE001 - the thread must go on
            return _PERIODIC_TASKS_RETRY_MS

    def _wait(self, milliseconds: int | None) -> None:
        """Wait for a deadline, the link, or another thread that wakes this one."""
        with self._lock:
            deadline_ns = self._delivery.next_deadline_ns()
        poll = unpatched.poll()
        if self._wake_in >= 0:
            poll.register(self._wake_in, select.POLLIN)
        if interest := self._link.interest():
            poll.register(*interest)
        if deadline_ns is not None:
            wait_ms = -(-max(0, deadline_ns - clock.monotonic_ns()) // _MS)
            milliseconds = wait_ms if milliseconds is None else min(milliseconds, wait_ms)
        poll.poll(milliseconds)
        if self._wake_in < 0:
            return
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_in, _READ_BYTES)

    def _step(self) -> None:
        events: deque[Event] = deque([Tick()])
        self._pump(events)
        while events:
            with self._lock:
                effects = self._delivery.handle(events.popleft(), clock.monotonic_ns())
                report = self._report() if effects else Report()
                if self._delivery.idle:
                    _release(self._waiters)
                _release(self._room_waiters)
            for effect in effects:
                self._apply(effect, report, events)

    def _apply(self, effect: Effect, report: Report, events: deque[Event]) -> None:
        match effect:
            case Connect():
                is_up = self._link.connect()
                if not is_up:
                    self._complain()
                events.append(Connected() if is_up else Lost(jitter()))
            case Send(batch):
                events.extend(self._link.send(batch, report))
                self._pump(events)
            case Close():
                self._link.close()
            case _:
                assert_never(effect)

    def _pump(self, events: deque[Event]) -> None:
        try:
            events.extend(self._link.pump())
        except LINK_ERRORS as error:
            self._link.close()
            self._link.trouble = f"{self._link.peer}: {error}"
            if self._delivery.failures >= _FAILURES_UNTIL_SAID:
                self._complain()
            events.append(Lost(jitter()))

    def _complain(self) -> None:
        """One line: records do not leave the process, and why."""
        notices.say(
            f"link {self._link.peer}",
            f"{self._link.trouble}. Records wait in a queue; when it is full, the least important"
            f" are dropped. {self._link.advice}",
        )

    def _close_wake(self) -> None:
        for descriptor in (self._wake_in, self._wake_out):
            if descriptor >= 0:
                os.close(descriptor)
        self._wake_in, self._wake_out = -1, -1


def _release(waiters: list[Any]) -> None:
    for waiter in waiters:
        waiter.release()
    waiters.clear()
