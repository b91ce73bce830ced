"""Sinks whose requests Spark's tasks send while all goes well; the rest is the driver's.

A task encodes its rows and cuts them into requests, as the driver would, and sends each once, some
at a time. What is taken needs nobody any more. What is not goes to the driver with the answer that
the task got: there the sink's one circuit breaker and `delivery.core` decide whether to wait, to
send again, in halves, or to lay a record aside. So it is with what a task did not send:

- A task sends no more after an answer that says nothing of its records (no connection, 429, 500),
  nor, for `SENDING_S_MAX`, to a destination that is slow: others want Spark's slots.
- Nor where the sink's rate limit would have it wait for long: the driver waits, and holds no slot.
- While the circuit is not closed tasks encode only.

With `max_in_flight: 1` one task has all that a batch has of a partition, and sends it in its order
up to the first request that is not taken.

A worker of Spark's keeps the connections of its tasks for those that come.
"""

import pickle
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import pyarrow as pa
from pyspark import TaskContext
from typing_extensions import override

from penstock.base.clock import BlockingClock, SystemClock
from penstock.router.delivery.batch_names import BatchNames, in_log_order
from penstock.router.delivery.rate_limiter import RateLimiter, TaskShare
from penstock.router.delivery.result import (
    Accepted,
    DeliveryResult,
    PartialFailure,
    Paused,
    Rejected,
    Retryable,
    Success,
    TooLarge,
)
from penstock.router.meter import Meter
from penstock.router.sinks.http.request_sink import (
    Faulty,
    HttpRequestSink,
    Request,
    RequestSink,
)
from penstock.router.sinks.http.settings import HttpTaskSettings, TaskRequestSettings
from penstock.router.sinks.sink import (
    PACED_MS,
    GatheringWriter,
    SinkContext,
    TaskSink,
    WriteResult,
)

SENDING_S_MAX: Final = 5.0
"""Seconds after which a task begins no further request."""

SHARED_SENDING_S_MAX: Final = 1.0
"""The same of a task that other sinks share, which wait for it."""

_ENDING_POLL_NS: Final = 100_000_000

_SINKS_MAX: Final = 16
"""Maximum sinks whose connections a worker keeps; the oldest ones are closed first."""


@dataclass(frozen=True, slots=True)
class WrittenRequests(WriteResult):
    """Requests that a task has sent, and what is left.

    Attributes:
        delivered: Number of records that the destination accepted.
        taken: The sink's names of the requests with those.
        unsettled: Requests without a final result; their rows are indexes into `left`.
        faulty: Rows that cannot be encoded, by index into `left`.
        counts: Increments of the sink's counters.
        note: What the sink's `note_for_driver` has returned.
        sent: Records of all requests that were sent, where there is a rate limit.
        sent_size: Bytes of them.
    """

    delivered: int = 0
    taken: tuple[str, ...] = ()
    unsettled: tuple[Request, ...] = ()
    faulty: tuple[Faulty, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    note: Any = None
    sent: int = 0
    sent_size: int = 0


class TaskRequestSink(RequestSink, TaskSink):
    """A sink whose requests Spark's tasks send; see the module's docstring.

    What a subclass's `encode` and `exchange` cache, each worker has for itself.
    """

    publishes_in_tasks: ClassVar[bool] = True
    sends_in_tasks: ClassVar[bool] = True
    """False if tasks only encode, and a worker never opens the sink."""
    repeats_in_tasks: ClassVar[bool] = True
    """False if a task that Spark runs again only encodes: its requests are doubtful."""
    _config: TaskRequestSettings

    def __init__(self, config: TaskRequestSettings, context: SinkContext) -> None:
        super().__init__(config, context)
        self._task_settings = config
        self.keeps_order = config.max_in_flight == 1
        self._policy = replace(self._policy, keeps_order=self.keeps_order)
        self.shares_tasks = self.sends_in_tasks

    def is_ready(self) -> bool:
        """Prepare the first request; return whether tasks may send."""
        return True

    def hold(self, rows: pa.Table) -> None:
        """The rows whose places are those of requests, until others are."""

    def name_of(self, request: Request) -> str:
        """Return a name that differs between the requests of a batch."""
        return request.key

    def has_doubt(self, request: Request, result: DeliveryResult) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a request may have come through in spite of its result."""
        return False

    def join_task(self, first: Self) -> None:
        """It sends in a task, beside `first`, which may be itself; the driver's is ready."""

    def note_for_tasks(self) -> Any:
        """Return what the tasks of the batch must know; it can be pickled."""
        return None

    def join_batch(self, note: Any) -> None:
        """It has the rows of a task; `note` is that of the driver's sink for the batch."""

    def exchange_in_task(self, request: Request) -> DeliveryResult | None:
        """Send a request in a task; None: it is not sent, and the driver must."""
        return self.exchange(request, 1)

    def note_for_driver(self, unsettled: Sequence[Request]) -> Any:  # noqa: ARG002 - for subclasses
        """Return what `commit` must know of the rows that were `encoded` last."""
        return None

    @override
    def begin(self) -> None:
        """Begin a batch; nothing is created before the requests."""

    @override
    def writer(self) -> "RequestWriter":
        context, circuit = self.context, self._breaker.circuit
        sends = (
            self.sends_in_tasks
            and circuit.state == "closed"
            and circuit.reason is None
            and self.is_ready()
        )
        return RequestWriter(
            type(self),
            self._task_settings,
            job=context.job,
            sink=context.sink,
            names=context.names(),
            sends=sends,
            note=self.note_for_tasks(),
            share=self.share,
            ending=context.ending,
        )

    @override
    def shared_writer(self) -> "RequestWriter":
        return replace(self.writer(), sends_for_s=SHARED_SENDING_S_MAX, waits_for_s=SENDING_S_MAX)

    @override
    def write(self, rows: pa.Table) -> None:
        """Send a batch from the driver, cut as its tasks had it when it was first delivered."""
        rows = in_log_order(rows)
        self.commit([self.encoded(part) for part in self.context.parts(rows)])

    def encoded(self, rows: pa.Table) -> WrittenRequests:
        """The rows of a task as requests, none of which is sent."""
        requests, faulty = self.to_requests(rows)
        note = self.note_for_driver(requests)
        return WrittenRequests(
            unsettled=tuple(requests), faulty=tuple(faulty), left=rows, note=note
        )

    @override
    def commit(self, results: Sequence[WrittenRequests]) -> None:
        """Settle what tasks have left."""
        meter = self.context.meter
        if self.rate_limiter is not None:
            self.rate_limiter.settle(
                records=sum(it.sent for it in results),
                size=sum(it.sent_size for it in results),
                now_ns=self.context.clock.monotonic_ns(),
            )
        taken = [name for it in results for name in it.taken]
        meter.count("requests", len(taken))
        for result in results:
            for what, number in result.counts.items():
                meter.count(what, number)
        rows = [it.left for it in results if it.left is not None]
        requests, faulty, begin = [], [], 0
        for result in results:
            requests += [_moved(it, begin) for it in result.unsettled]
            faulty += [replace(it, row=it.row + begin) for it in result.faulty]
            begin += 0 if result.left is None else result.left.num_rows
        requests = _told_once(requests)
        requests.sort(key=lambda it: it.result is None)  # first what the destination has said
        left = pa.concat_tables(rows) if rows else pa.table({})
        self.hold(left)
        self.prepare_to_settle(requests, taken)
        self.deliver(left, requests, faulty, delivered=sum(it.delivered for it in results))
        self.hold(left.slice(0, 0))

    def prepare_to_settle(self, requests: Sequence[Request], taken: Sequence[str]) -> None:
        """All requests of a batch are known: these, and by name those that were taken in tasks."""


class HttpTaskSink(TaskRequestSink, HttpRequestSink):
    """Base of sinks that send HTTP requests in tasks."""

    _config: HttpTaskSettings


def _told_once(requests: Sequence[Request]) -> list[Request]:
    """Requests of which one at most has the result that the destination takes none.

    Tasks got it several times at once, and it need not be waited for as often.
    """
    found, is_told = list[Request](), False
    for request in requests:
        takes_none = isinstance(request.result, Retryable | Paused)
        found.append(replace(request, result=None) if takes_none and is_told else request)
        is_told |= takes_none
    return found


def _moved(request: Request, begin: int) -> Request:
    """A request whose rows are behind others."""
    return replace(request, rows=tuple(it + begin for it in request.rows))


@dataclass(slots=True)
class RequestWriter(GatheringWriter):
    """The writer of one task; where one request ends depends on those before it.

    Attributes:
        made_of: The sink's class, of which each request in flight has an instance.
        sends: Whether requests are sent at all.
        note: What the sink's `note_for_tasks` has returned.
        sends_for_s: Seconds after which no further request is begun.
        waits_for_s: Seconds after which no answer is waited for any more; a request without one
            counts as not sent. None: each has its own time limit.
        share: What it may send; None: there is no rate limit.
        ending: The same as in `SinkContext`.
    """

    made_of: type[TaskRequestSink]
    config: TaskRequestSettings
    job: str = field(kw_only=True)
    sink: str = field(kw_only=True)
    names: BatchNames = field(kw_only=True)
    sends: bool = field(kw_only=True)
    note: Any = field(default=None, kw_only=True)
    clock: BlockingClock = field(default_factory=SystemClock, kw_only=True)
    sends_for_s: float = field(default=SENDING_S_MAX, kw_only=True)
    waits_for_s: float | None = field(default=None, kw_only=True)
    share: TaskShare | None = field(default=None, kw_only=True)
    ending: Path | None = field(default=None, kw_only=True)

    def close(self) -> WrittenRequests:
        """Encode the rows, and send what can be sent."""
        if not self._batches:
            return WrittenRequests()
        sinks = CONNECTIONS.sinks(self)
        for sink in sinks:
            sink.join_batch(self.note)
        before = sinks[0].context.meter.counted()
        rows = in_log_order(pa.Table.from_batches(self._batches))
        made = sinks[0].encoded(rows)
        for sink in sinks:
            sink.hold(rows)
        requests: Sequence[Request] = made.unsettled
        pace = self._pace()
        if not self.made_of.repeats_in_tasks and _runs_again():
            requests = [replace(it, is_doubtful=True) for it in requests]
        elif self.sends and requests:
            sending = Sending(sinks, requests, self.clock, self.sends_for_s, pace)
            try:
                requests = sending.run(self.waits_for_s)
            finally:
                if sending.is_unusable:
                    CONNECTIONS.give_up(self)
        left = _without_delivered(sinks[0], made, requests)
        for sink in sinks:
            sink.hold(rows.slice(0, 0))
        sinks[0].context.meter.count(PACED_MS, pace.waited_ns // 1_000_000)
        counts = sinks[0].context.meter.counted() - before
        return replace(
            left,
            counts=counts,
            note=sinks[0].note_for_driver(left.unsettled),
            sent=pace.sent,
            sent_size=pace.sent_size,
        )

    def _pace(self) -> "RequestPace":
        share = self.share
        if share is not None and _runs_again():
            share = share.without_saved()
        return RequestPace(share, self.clock, self.ending)


def _runs_again() -> bool:
    """Return whether Spark has begun this task before, so that its requests may have been sent."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def _without_delivered(
    sink: TaskRequestSink, made: WrittenRequests, requests: Sequence[Request]
) -> WrittenRequests:
    """Return the requests without a final result, and only the rows of those."""
    taken = [it for it in requests if isinstance(it.result, Success)]
    unsettled = [it for it in requests if not isinstance(it.result, Success)]
    places = sorted(
        {*(row for it in unsettled for row in it.rows), *(it.row for it in made.faulty)}
    )
    found = {row: place for place, row in enumerate(places)}
    assert made.left is not None
    return WrittenRequests(
        delivered=sum(len(it.items) for it in taken),
        taken=tuple(map(sink.name_of, taken)),
        unsettled=tuple(replace(it, rows=tuple(found[row] for row in it.rows)) for it in unsettled),
        faulty=tuple(replace(it, row=found[it.row]) for it in made.faulty),
        left=made.left.take(places) if places else None,
    )


class RequestPace:
    """The pace of one task's requests, and what was sent.

    Args:
        share: What the task may send; None: there is no limit.
        clock: Time.
        ending: The same as in `SinkContext`.

    Attributes:
        sent: Records of the requests that were begun.
        sent_size: Bytes of them.
        waited_ns: Time for which they had to wait.
    """

    def __init__(self, share: TaskShare | None, clock: BlockingClock, ending: Path | None) -> None:
        self.sent = self.sent_size = self.waited_ns = self._left_ns = 0
        self._clock = clock
        self._ending = ending
        self._limiter: RateLimiter | None = None
        if share is not None:
            self._left_ns = int(share.waits_for_s * 1e9)
            self._limiter = RateLimiter.of_task(share, clock.monotonic_ns())

    def admits(self, records: int, size: int) -> bool:
        """Wait until a request may go; return False if the driver is to wait in place of this."""
        if (limiter := self._limiter) is None:
            return True
        pause_ns = limiter.wait_ns(self._clock.monotonic_ns(), records=records, size=size)
        if pause_ns > self._left_ns:
            return False
        while pause_ns > 0:
            if self._ending is not None and self._ending.exists():
                return False
            step_ns = min(pause_ns, _ENDING_POLL_NS)
            self._clock.sleep(step_ns / 1e9)
            self.waited_ns += step_ns
            self._left_ns -= step_ns
            pause_ns = limiter.wait_ns(self._clock.monotonic_ns(), records=records, size=size)
        return True

    def book(self, records: int, size: int) -> None:
        """Take down a request that is begun."""
        if self._limiter is not None:
            now_ns = self._clock.monotonic_ns()
            self._limiter.book(records=records, size=size, now_ns=now_ns)
            self.sent += records
            self.sent_size += size


class Sending:
    """The requests of one task, each on its way once at most.

    Args:
        sinks: One for each request that may be in flight.
        requests: In the order of the log.
        sends_for_s: Seconds after which no further request is begun.
        pace: Makes them wait; None: nothing does.

    Attributes:
        is_unusable: Whether no other task may use the sinks: threads wait for answers with them, or
            one has failed in the middle of an exchange. They are closed when their threads end.
    """

    def __init__(
        self,
        sinks: Sequence[TaskRequestSink],
        requests: Sequence[Request],
        clock: BlockingClock,
        sends_for_s: float = SENDING_S_MAX,
        pace: RequestPace | None = None,
    ) -> None:
        self._pace = pace or RequestPace(None, clock, None)
        self._turn = threading.Lock()  # held while the next request waits for its time
        self._sinks, self._unneeded = sinks[: len(requests)], sinks[len(requests) :]
        self._requests = list(requests)
        self._clock = clock
        self._lock = threading.Lock()
        self._next = 0
        self._ends = False
        self._some_taken = False
        self._until_ns = clock.monotonic_ns() + int(sends_for_s * 1e9)
        self.is_unusable = False

    def run(self, waits_for_s: float | None = None) -> list[Request]:
        """Send them; returns each with what became of it.

        One without an answer is given up after `waits_for_s`; None: none is.

        Raises:
            Exception: That of a thread which a sink's fault has ended.
        """
        if len(self._sinks) == 1 and waits_for_s is None:
            try:
                self._send_by(self._sinks[0])
            except BaseException:
                self.is_unusable = True
                _close([*self._sinks, *self._unneeded])
                raise
            return self._requests
        pool = ThreadPoolExecutor(len(self._sinks))
        try:
            running = [pool.submit(self._send_by, sink) for sink in self._sinks]
            done, left = wait(running, waits_for_s)
            with self._lock:
                self._ends = True
                begun = range(self._next) if left else ()
                found = [
                    replace(it, is_doubtful=it.is_doubtful or number in begun)
                    if it.result is None
                    else it
                    for number, it in enumerate(self._requests)
                ]
            if left or any(it.exception() is not None for it in done):
                self._close_when_ended(running)
            for each in done:
                each.result()
        finally:
            pool.shutdown(wait=False)
        return found

    def _close_when_ended(self, running: Sequence[Future[None]]) -> None:
        self.is_unusable = True
        _close(self._unneeded)
        for each, sink in zip(running, self._sinks, strict=True):
            each.add_done_callback(partial(_close_when_done, sink))

    def _send_by(self, sink: TaskRequestSink) -> None:
        while (number := self._taken()) is not None:
            request = self._requests[number]
            result = sink.exchange_in_task(request)
            with self._lock:
                doubt = result is not None and sink.has_doubt(request, result)
                self._requests[number] = replace(request, result=result, is_doubtful=doubt)
                self._some_taken |= isinstance(result, Success | Accepted)
                self._ends |= not self._goes_on(result, in_order=sink.keeps_order)

    def _taken(self) -> int | None:
        """The number of the next request, once it may go; None: no more are sent."""
        with self._turn:
            with self._lock:
                if not self._goes_further():
                    return None
                request = self._requests[self._next]
            records, size = len(request.items), self._sinks[0].size_of(request)
            is_admitted = self._pace.admits(records, size)
            with self._lock:
                self._ends |= not is_admitted
                if not self._goes_further():
                    return None
                self._pace.book(records, size)
                self._next += 1
                return self._next - 1

    def _goes_further(self) -> bool:
        is_late = self._clock.monotonic_ns() >= self._until_ns
        return not (self._ends or is_late or self._next >= len(self._requests))

    def _goes_on(self, result: DeliveryResult | None, *, in_order: bool) -> bool:
        """Return whether other requests may follow: a success, or a fault of some records only."""
        match result:
            case Success() | Accepted():
                return True
            case PartialFailure():
                return not (in_order or result.failed or result.reason)
            case Rejected() | TooLarge():
                return self._some_taken and not in_order
            case _:
                return False


def _close_when_done(sink: TaskRequestSink, _: Future[None]) -> None:
    sink.close()


class Connections:
    """The sinks that a worker has open, from task to task."""

    def __init__(self) -> None:
        self._open: dict[bytes, list[TaskRequestSink]] = {}

    def sinks(self, writer: RequestWriter) -> list[TaskRequestSink]:
        """Return a writer's sinks, one for each request in flight, with the batch's names.

        Raises:
            ConfigError: The worker lacks what the sink needs.
        """
        key = self._key_of(writer)
        found = self._open.get(key)
        if found is None:
            while len(self._open) >= _SINKS_MAX:
                _close(self._open.pop(next(iter(self._open))))
            context = _context_of(writer)
            made_of = writer.made_of
            count = writer.config.max_in_flight if made_of.sends_in_tasks else 1
            found = [made_of(writer.config, context) for _ in range(count)]
            for sink in found if made_of.sends_in_tasks else ():
                sink.open()
                sink.join_task(found[0])
            self._open[key] = found
        context = found[0].context
        for kept, new in (
            (context.stream_ids, writer.names.stream_ids),
            (context.generations, writer.names.generations),
        ):
            _replace(kept, new)
        return found

    def give_up(self, writer: RequestWriter) -> None:
        """Open others for the next task: a writer's sinks are in use still, or in doubt."""
        self._open.pop(self._key_of(writer), None)

    @staticmethod
    def _key_of(writer: RequestWriter) -> bytes:
        return pickle.dumps((writer.made_of, writer.config, writer.job, writer.sink))

    def close(self) -> None:
        """Give all of them back."""
        for sinks in self._open.values():
            _close(sinks)
        self._open.clear()


CONNECTIONS: Final = Connections()
"""Connections of this process."""


def _replace(kept: dict[Any, Any], new: Mapping[Any, Any]) -> None:
    kept.clear()
    kept.update(new)


def _close(sinks: Sequence[TaskRequestSink]) -> None:
    for sink in sinks:
        sink.close()


def _context_of(writer: RequestWriter) -> SinkContext:
    """Return a sink's context in a worker, without a state directory or dead letters."""
    nowhere = Path("/nonexistent")
    return SinkContext(
        job=writer.job,
        sink=writer.sink,
        state_dir=nowhere,
        dead_letters=nowhere,
        meter=Meter(),
        stop=threading.Event(),
        clock=writer.clock,
        stream_ids={},
    )
