"""The publisher for threads: an event loop in one separate thread does the work."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from penstock.logd.errors import UnavailableError
from penstock.logd.format.acks import PubAck
from penstock.logd.format.batch import Record
from penstock.logd.publisher.connecting import connected
from penstock.logd.publisher.publisher import (
    GIVEN_UP,
    Plain,
    PublishOptions,
    partition_subject,
)

Result = TypeVar("Result")

_NO_HEADERS: Final[Mapping[str, str]] = {}

_Handed = tuple[Plain, Future[PubAck]] | asyncio.Event
"""A message with the future of its ack; or what is set when all before it are sent."""

_OWN_THREAD: Final = "a future's callback cannot wait for its publisher; use a thread"
_FORKED: Final = "this publisher is the parent process's; make another one after the fork"

_END_S: Final = 5.0
"""Seconds that what is under way has to end when it is asked to."""


class BlockingPublisher:
    """`Publisher` for any number of threads; each thread's messages are sent in its order.

    Not for use after a fork: make it in the process that publishes. In a child every call raises
    RuntimeError, and `close` does nothing.

    Args:
        url: URL of the NATS server.
        options: Options of the publisher.
        login: The same as in `connected`.

    Raises:
        UnavailableError: No NATS server can be reached.
    """

    def __init__(self, url: str, options: PublishOptions | None = None, **login: Any) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="penstock-publisher", daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._closed = False
        self._lock = threading.RLock()
        self._slots = threading.Semaphore((options or PublishOptions()).max_in_flight)
        self._handed: deque[_Handed] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_sending = False
        try:
            entering = self._stack.enter_async_context(connected(url, options, **login))
            self._publisher = self._await(entering)
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Self:
        """Connected."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the answers and disconnect; give them up when the block failed."""
        self.close(flush=kind is None)

    def publish(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partitions: int = 1,
        headers: Mapping[str, str] = _NO_HEADERS,
        message_id: str | None = None,
    ) -> PubAck:
        """Publish one record and wait until it is stored; see `Publisher.publish`."""
        subject = partition_subject(subject, key, partitions)
        return self._await(
            self._publisher.publish(subject, value, key=key, headers=headers, message_id=message_id)
        )

    def submit(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partitions: int = 1,
        headers: Mapping[str, str] = _NO_HEADERS,
        message_id: str | None = None,
    ) -> Future[PubAck]:
        """`publish` without waiting for the answer; waits while `max_in_flight` have none."""
        self._check_caller()
        subject = partition_subject(subject, key, partitions)
        message = self._publisher.plain(
            subject, value, key=key, headers=headers, message_id=message_id
        )
        future: Future[PubAck] = Future()
        future.set_running_or_notify_cancel()
        self._slots.acquire()
        future.add_done_callback(lambda _: self._slots.release())
        try:
            self._hand((message, future))
        except UnavailableError as error:
            future.set_exception(error)
            raise
        return future

    def delete(self, subject: str, *, key: bytes, partitions: int = 1) -> PubAck:
        """Publish a tombstone; see `Publisher.delete`."""
        subject = partition_subject(subject, key, partitions)
        return self._await(self._publisher.delete(subject, key=key))

    def publish_batch(self, subject: str, records: Sequence[Record] | pa.RecordBatch) -> PubAck:
        """Publish many records as one batch; see `Publisher.publish_batch`."""
        return self._await(self._publisher.publish_batch(subject, records))

    def submit_batch(
        self, subject: str, records: Sequence[Record] | pa.RecordBatch
    ) -> Future[PubAck]:
        """`publish_batch` without waiting for the answer, as `submit`."""
        return self._await(_start(self._publisher.submit_batch(subject, records)))

    def flush(self) -> None:
        """Wait until everything submitted has its answer or is given up; futures hold which."""
        self._await(self._publisher.flush())

    def close(self, *, flush: bool = True) -> None:
        """Disconnect, after everything has its answer or, without `flush`, giving it up."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            _result_of(asyncio.run_coroutine_threadsafe(self._end(flush=flush), self._loop))
        except BaseException:  # also an interrupt: other threads wait for their futures
            with suppress(Exception):
                ending = asyncio.run_coroutine_threadsafe(self._end(flush=False), self._loop)
                ending.result(_END_S)
            raise
        finally:
            self._stop()

    async def _end(self, *, flush: bool) -> None:
        if flush:
            await self._all_sent()
            await self._publisher.flush()
        await self._publisher.close()
        await self._all_sent()
        await self._stack.aclose()

    async def _all_sent(self) -> None:
        while self._is_sending:
            if self._sending is None:
                await asyncio.sleep(0)  # it is about to begin
            else:
                await asyncio.wait({self._sending})

    def _check_caller(self) -> None:
        """Raise where a call would wait for ever."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(_OWN_THREAD)
        if self._process != os.getpid():
            raise RuntimeError(_FORKED)

    def _hand(self, item: _Handed) -> None:
        """Give something to the event loop, which is woken only where it does not send already."""
        with self._lock:  # so that closing meets what is under way, and the rest meets it closed
            if self._closed:
                raise UnavailableError("the publisher is closed")
            self._handed.append(item)
            wakes, self._is_sending = not self._is_sending, True
        if wakes:
            self._loop.call_soon_threadsafe(self._begin_sending)

    def _begin_sending(self) -> None:
        self._sending = self._loop.create_task(self._send_handed())

    async def _send_handed(self) -> None:
        """Send what was handed over, in order, until nothing is left."""
        while True:
            with self._lock:
                if not self._handed:
                    self._sending, self._is_sending = None, False
                    return
                item = self._handed.popleft()
            if isinstance(item, asyncio.Event):
                item.set()
                await asyncio.sleep(0)  # what waits for it begins before what comes behind it
                continue
            message, future = item
            try:
                ack = await self._publisher.submit_plain(message)
            except Exception as error:  # noqa: BLE001 - the caller's; those behind it go on
                future.set_exception(error)
            except BaseException:  # it is ended
                future.set_exception(UnavailableError(GIVEN_UP))
                raise
            else:
                ack.add_done_callback(partial(_copy, future))

    def _await(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do something when all messages that were handed over before are sent."""
        try:
            self._check_caller()
        except RuntimeError:
            work.close()
            raise
        reached = asyncio.Event()
        try:
            with self._lock:  # else the event loop may stop in between
                self._hand(reached)
                found = asyncio.run_coroutine_threadsafe(_after(reached, work), self._loop)
        except UnavailableError:
            work.close()
            raise
        return _result_of(found)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _stop(self) -> None:
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for item in self._handed:  # none, unless the end was cut short
            if not isinstance(item, asyncio.Event):
                item[1].set_exception(UnavailableError(GIVEN_UP))


def _result_of(future: Future[Result]) -> Result:
    try:
        return future.result()
    except CancelledError:
        raise UnavailableError(GIVEN_UP) from None
    except BaseException:  # also an interrupt of this thread: no caller waits any more
        future.cancel()
        raise


async def _end_all() -> None:
    """End what is still under way, so that no thread waits for a loop that has stopped."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_END_S)


async def _after(reached: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result:
    await reached.wait()
    return await work


async def _start(submitting: Coroutine[Any, Any, asyncio.Future[PubAck]]) -> Future[PubAck]:
    """The event loop's future of the answer as a future for threads."""
    ack = await submitting
    future: Future[PubAck] = Future()
    future.set_running_or_notify_cancel()
    ack.add_done_callback(partial(_copy, future))
    return future


def _copy(future: Future[PubAck], ack: asyncio.Future[PubAck]) -> None:
    if ack.cancelled():
        future.set_exception(UnavailableError(GIVEN_UP))
        return
    error = ack.exception()
    if error is None:
        future.set_result(ack.result())
    else:
        future.set_exception(error)
