"""Batches of several sinks that one streaming query reads for.

The query is that of one of them, the leader; its checkpoint is where the query is. A batch goes
this way, each sink's part in a thread of its own but for the middle:

    take over   the others note the batch as planned, each in its own checkpoint
    begin       each sink on its own; who is not ready in time is left out
    tasks       one read for all
    finish      each sink on its own; who is not done in time finishes alone

A sink that is left out, or fails, leaves the group, and its query repeats the batch or goes on
behind it. Where that is the leader, the others leave, for the query is the leader's.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from penstock.router.errors import StoppedError
from penstock.router.job.route_task import (
    PartFailure,
    RoutePart,
    SharedDeliverTask,
    SharedTask,
    TaskDelivery,
    TaskResult,
)
from penstock.router.job.routes import SharedRoutes
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.spark.heap_budget import HeapBudget
from penstock.router.spark.task_runs import run_in_tasks
from penstock.router.streaming.batches import (
    RunAgainError,
    SinkBatch,
    SinkBatches,
    is_larger_than_planned,
)
from penstock.router.streaming.group_rules import ApartError, waits_too_long

PATIENCE_S: Final = 2.0
"""Seconds for which a group waits for one sink before a batch's tasks, and after them."""


class PartFailedError(Exception):
    """The writer of a sink failed in a task that other sinks shared."""


class LeftGroupError(Exception):
    """The batch goes on without this sink, which repeats it alone."""


@dataclass(frozen=True, slots=True)
class Left:
    """Why a sink has left its group.

    Attributes:
        sink: The sink's name.
        reason: The reason, for people.
        error: What failed; None: it is slow, or others go on without it for another reason.
        is_own: Whether it is the sink's own doing, so that it stays alone for a while.
    """

    sink: str
    reason: str
    error: Exception | None = None
    is_own: bool = True


@dataclass(slots=True)
class _Part:
    """One sink's part of the batch in work."""

    sink: SinkBatches
    number: int
    begins: Mapping[StreamPartition, int]
    is_copy: bool
    begun: Future[SinkBatch] = field(default_factory=Future)
    ran: Future[tuple[Sequence[TaskResult], int]] = field(default_factory=Future)
    done: Future[None] = field(default_factory=Future)

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"batch-{self.sink.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            with self.sink.working():
                batch = self.sink.begin(self.number, self.begins)
                self.begun.set_result(batch)
                results, begun_ns = self.ran.result()
                received = self.sink.received_in_shared_tasks(results)
                self.sink.finish(batch, received, begun_ns)
                if self.is_copy:
                    self.sink.note_done(self.number)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the sink's, and told
            if not self.begun.done():
                self.begun.set_exception(error)
            self.done.set_exception(error)
        else:
            self.done.set_result(None)

    def give_up(self) -> None:
        """The tasks run without this sink."""
        with suppress(InvalidStateError):  # they have run
            self.ran.set_exception(LeftGroupError("the batch goes on without this sink"))

    @property
    def error(self) -> Exception | None:
        """What it failed with; None while it goes well."""
        for each in (self.begun, self.done):
            if each.done() and (error := each.exception()) is not None:
                assert isinstance(error, Exception), "no other is set"
                return error
        return None


class Group:
    """The sinks that one query reads for.

    Args:
        sinks: The sinks, the one whose query it is first.
        routes: The rows of all of them.
        budget: Heap budget of the job.
        directory: Directory for what goes to tasks and back.
        leaves: Called when a sink has left, and again with the error when the part of one that was
            late fails after that; from the thread of a batch.
        patience_s: Seconds to wait for one sink.

    Attributes:
        leader_failed: Whether the last batch failed for a reason of the leader's own.
    """

    def __init__(
        self,
        sinks: Sequence[SinkBatches],
        routes: SharedRoutes,
        budget: HeapBudget,
        directory: Path,
        leaves: Callable[[Left], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.leader_failed = False
        self._leader, *others = sinks
        self._others = others
        self._lock = threading.Lock()
        self._routes = routes
        self._budget = budget
        self._directory = directory
        self._leaves = leaves
        self._patience_s = patience_s

    @property
    def names(self) -> list[str]:
        """The sinks that are in it, the leader first."""
        return [self._leader.name, *(it.name for it in self._others)]

    def remove(self, name: str) -> bool:
        """Take a sink out, that is not in the middle of a batch; return whether it was there."""
        with self._lock:
            found = [it for it in self._others if it.name == name]
            self._others = [it for it in self._others if it.name != name]
        return bool(found)

    def deliver(self, frame: DataFrame, number: int) -> None:
        """Read a batch once, and deliver it to each sink.

        Raises:
            StoppedError: The leader rests, or the job stops.
            Exception: The batch fails for the leader, or for all.
        """
        self.leader_failed = False
        if self._leader.is_ending:
            raise StoppedError("the job stops, or the sink rests; this batch comes again")
        leader, *others = self._taken_over(number)
        parts = [leader, *others]
        for part in parts:
            part.start()
        try:
            self._deliver(frame, leader, others)
        except Exception as error:
            self.leader_failed = leader.error is not None
            if not self.leader_failed and is_larger_than_planned(error):
                self._replan(parts)
            raise
        finally:
            for part in parts:
                part.give_up()

    def _deliver(self, frame: DataFrame, leader: _Part, others: Sequence[_Part]) -> None:
        others = self._begun(leader, others)
        batch = leader.begun.result()
        taking = [leader, *others]
        clock = self._leader.context.clock
        with self._budget.holding(batch.size, lambda: self._leader.is_ending):
            begun_ns = clock.monotonic_ns()
            results = self._run(frame, leader.number, taking)
        for at, part in enumerate(taking):
            self._hand_over(part, [result[at] for result in results], begun_ns)
        self._finished(leader, others)
        for at, part in enumerate(taking):
            tasks = [it for result in results if isinstance(it := result[at], TaskResult)]
            waited_ns = sum(it.waited_ns for it in tasks)
            others_ns = sum(it.took_ns for it in tasks) - waited_ns
            if part.begun.result().publishes and waits_too_long(waited_ns, others_ns):
                self._leave(part.sink.name, "other sinks wait for its destination")

    def _taken_over(self, number: int) -> list[_Part]:
        """The parts of a batch; sinks that cannot have it leave."""
        leader = self._leader
        found = [_Part(leader, number, {}, is_copy=False)]
        start = leader.planned(number - 1)
        for sink in list(self._others):
            if sink.is_ending:
                self._leave_now(Left(sink.name, "it rests", is_own=False))
                continue
            try:
                taken = sink.take_over(leader, number)
            except (ApartError, OSError) as error:
                self._leave_now(Left(sink.name, str(error)))
                continue
            if taken is not None:
                at, known = taken
                found.append(_Part(sink, at, _ahead(known, start), is_copy=True))
        return found

    def _begun(self, leader: _Part, others: Sequence[_Part]) -> list[_Part]:
        """Those of the others that are ready in time."""
        wait([part.begun for part in (leader, *others)], self._patience_s)
        if not leader.begun.done():
            self._release(others, f"{leader.sink.name} is not ready for a batch")
            others = []
        ready = []
        for part in others:
            if part.begun.done() and part.error is None:
                ready.append(part)
                continue
            part.give_up()
            self._leave_with(part, "it is not ready for a batch in time")
        return ready

    def _run(
        self, frame: DataFrame, number: int, taking: Sequence[_Part]
    ) -> list[list[TaskResult | PartFailure]]:
        """Run the tasks of a batch; returns what each has for each of the sinks."""
        routes, parts = self._routes, dict[str, RoutePart]()
        for part in taking:
            batch = part.begun.result()
            assert batch.part is not None, "only sinks that write in tasks share them"
            parts[part.sink.name] = batch.part
        if (tasks := self._leader.log_tasks) is not None:
            deliveries = []
            for name, its in parts.items():
                route = routes.routes[name]
                assert route is not None, "else Spark decides"
                deliveries.append(TaskDelivery(route, routes.columns[name], its))
            return tasks.run(SharedDeliverTask(tuple(deliveries)), *self._leader.span(number))
        columns = tuple(routes.columns[name] for name in parts)
        by_verdict = {routes.verdicts[name]: its for name, its in parts.items()}
        return run_in_tasks(frame, SharedTask(routes.schema, columns, by_verdict), self._directory)

    def _hand_over(
        self, part: _Part, results: Sequence[TaskResult | PartFailure], begun_ns: int
    ) -> None:
        """Give a sink what tasks have written for it."""
        failed = [it for it in results if isinstance(it, PartFailure)]
        whole = [it for it in results if isinstance(it, TaskResult)]
        if failed:
            part.ran.set_exception(PartFailedError(failed[0].reason))
        elif part.begins and any(it.lost for it in whole):
            part.ran.set_exception(LeftGroupError("offsets are lost that the sink may have had"))
        else:
            part.ran.set_result((whole, begun_ns))

    def _finished(self, leader: _Part, others: Sequence[_Part]) -> None:
        """Wait for all that are done in time, and for the leader.

        Raises:
            Exception: The batch fails for the leader.
        """
        _, late = wait([part.done for part in (leader, *others)], self._patience_s)
        for part in others:
            if part.done in late or part.error is not None:
                self._leave_with(part, "it does not finish a batch in time")
        if leader.done in late:
            rest = [it for it in others if it.error is None and it.done not in late]
            self._release(rest, f"{leader.sink.name} does not finish a batch in time")
        leader.done.result()

    def _release(self, others: Sequence[_Part], reason: str) -> None:
        """Let the others go on without the leader, whose query this is."""
        for part in others:
            part.give_up()
            part.done.add_done_callback(partial(self._ended_late, part.sink.name))
        for sink in list(self._others):
            self._leave_now(Left(sink.name, reason, is_own=False))
        self._leaves(Left(self._leader.name, reason))

    def _leave(self, name: str, reason: str) -> None:
        """Have a sink go on alone; the leader does where the others leave."""
        if name == self._leader.name:
            self._release([], reason)
        else:
            self._leave_now(Left(name, reason))

    def _leave_with(self, part: _Part, if_late: str) -> None:
        """Have the sink of a part go on alone, because it is late or has failed."""
        left = _why_left(part, if_late)
        self._leave_now(left)
        if left.error is None:
            part.done.add_done_callback(partial(self._ended_late, left.sink))

    def _ended_late(self, name: str, done: Future[None]) -> None:
        error = done.exception()
        if isinstance(error, Exception) and not isinstance(error, _NO_FAILURES):
            self._leaves(_failed(name, error))

    def _leave_now(self, left: Left) -> None:
        if self.remove(left.sink):
            self._leaves(left)

    def _replan(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            if not part.sink.measures:
                part.sink.replan(part.number)


_NO_FAILURES: Final = (StoppedError, LeftGroupError, RunAgainError)
"""Errors by which a sink's part ends without a fault of the sink."""


def _why_left(part: _Part, if_late: str) -> Left:
    error, name = part.error, part.sink.name
    if error is None:
        return Left(name, if_late)
    if isinstance(error, RunAgainError):
        return Left(name, str(error))
    if isinstance(error, _NO_FAILURES):
        return Left(name, str(error), is_own=False)
    return _failed(name, error)


def _failed(name: str, error: Exception) -> Left:
    return Left(name, f"{type(error).__name__}: {error}", error)


def _ahead(known: Offsets, start: Offsets) -> dict[StreamPartition, int]:
    """Where a sink's part of a batch begins, in partitions of which it has more than others."""
    return {at: mine for at, mine in known.next.items() if mine > start.next.get(at, 0)}
