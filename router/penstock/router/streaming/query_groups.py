"""The queries of a job: which sinks read together, from the start and when one has caught up."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession

from penstock.base.clock import BlockingClock
from penstock.router.streaming.group_rules import ALONE_MIN_S, form_groups
from penstock.router.streaming.query import SinkQuery

GATHERING_S_MAX: Final = 5.0
"""Seconds in which queries end between two batches; else they go on as they are."""


class QueryGroups:
    """The queries of one job.

    Args:
        queries: One for each sink.
        max_records: Records of one batch, and so how far behind others a sink may be that returns.
        clock: Time.
    """

    def __init__(
        self, queries: Sequence[SinkQuery], max_records: int, clock: BlockingClock
    ) -> None:
        self._queries = {query.name: query for query in queries}
        self._max_records = max_records
        self._clock = clock
        self._gathering: list[str] = []
        self._since_ns = 0
        self._not_before_ns = 0

    def poll(self, spark: SparkSession) -> None:
        """Start queries that are due, notice what has become of others, and form groups."""
        now_ns = self._clock.monotonic_ns()
        self._gather(now_ns)
        if not self._gathering:
            due = [it for it in self._queries.values() if it.is_due(now_ns)]
            self._start_groups(spark, [it for it in due if it.may_share(now_ns)])
        for query in self._queries.values():
            # One that has ended for a group waits for the others, and so do those it has read for.
            if not (self._gathering and query.is_due(now_ns)):
                query.poll(spark)
        if not self._gathering and now_ns >= self._not_before_ns:
            self._look_for_returns(now_ns)

    def _start_groups(self, spark: SparkSession, queries: Sequence[SinkQuery]) -> None:
        for leader, *others in self._groups_of(queries):
            if others:
                self._queries[leader].lead(spark, [self._queries[name] for name in others])

    def _groups_of(self, queries: Sequence[SinkQuery]) -> list[list[str]]:
        if len(queries) < 2:
            return []
        return form_groups([query.candidate() for query in queries], self._max_records)

    def _look_for_returns(self, now_ns: int) -> None:
        """Begin to end queries whose sinks may read together from now on."""
        running = [it for it in self._queries.values() if it.may_gather(now_ns)]
        for names in self._groups_of(running):
            if len(names) > 1:
                self._gathering, self._since_ns = names, now_ns
                return

    def _gather(self, now_ns: int) -> None:
        """Go on with ending the queries; then they are due, and start as a group."""
        if not self._gathering:
            return
        self._gathering = [it for it in self._gathering if not self._queries[it].halt()]
        if self._gathering and now_ns - self._since_ns > GATHERING_S_MAX * 1e9:
            for name in self._gathering:
                self._queries[name].go_on()
            self._gathering = []
        self._not_before_ns = now_ns + int(ALONE_MIN_S * 1e9)
