"""The Spark data source `format("logd")`: streams of a logd by offset, as they lie in the log.

    from penstock.router import LogDataSource

    spark.dataSource.register(LogDataSource)
    frame = (
        spark.readStream.format("logd")
        .option("logd", "127.0.0.1:9293")
        .option("subscribe", "logs,traces")
        .load()
    )

The options are those of `penstock.router.read.options`. Spark tells a data source written in Python
neither which columns a query needs nor, of a stream, its conditions. So both can be given as the
options `columns` and `filter`; `penstock.router.logs(spark, ...)` and its like do that.

Spark runs the planning side in one Python process beside the driver, and `read` in its workers.
This module is imported by both: it must not import the daemons' libraries.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from penstock.base.clock import BlockingClock, SystemClock
from penstock.router.columns.passthrough import PASSTHROUGH
from penstock.router.columns.projection import Projection
from penstock.router.columns.pushdown import pushed
from penstock.router.errors import (
    ACCEPTING,
    BadOptionError,
    DataLossError,
    LogUnavailableError,
)
from penstock.router.read.batch_sizes import TASK_BYTES, BatchSizes
from penstock.router.read.logd_reader import LogdReader, LogState
from penstock.router.read.offset_spec import OffsetSpec, Times
from penstock.router.read.offsets import (
    EARLIEST,
    LATEST,
    Generations,
    Offsets,
    Readable,
    Span,
    StreamPartition,
    admit,
    forgiven,
    offsets_from_json,
    resolve,
    spans_between,
    truncated,
    with_streams_not_read,
)
from penstock.router.read.options import SourceOptions, parse_options
from penstock.router.read.tasks import (
    OpenLog,
    Task,
    TaskRows,
    plan,
    read_task,
    subject_to_read,
)
from penstock.router.read.trigger import PAUSE_MIN_S, WAIT_S, Admission, BatchPace

_NOTHING: Final = Readable(0, 0)


class LogDataSource(DataSource):  # type: ignore[misc] # pyspark is untyped here
    """Streams of a logd.

    Attributes:
        open_log: Opens it; a subclass may have a log of another kind.
    """

    open_log: ClassVar[OpenLog] = SourceOptions.reading

    def __init__(self, options: dict[str, str]) -> None:
        """Check the options.

        Spark pickles this object once it is made. So the processes that plan and read look nothing
        up in the specs, whose import takes a fifth of a second.
        """
        super().__init__(options)
        self._parsed = parse_options(options)

    @classmethod
    @override
    def name(cls) -> str:
        return "logd"

    @override
    def schema(self) -> StructType:
        return self._parsed.struct(self._parsed.columns)

    @override
    def reader(self, schema: StructType) -> "LogBatchReader":
        options = parse_options(self.options, streaming=False, before=self._parsed)
        kind = PushingBatchReader if options.push_filters else LogBatchReader
        return kind(options, _shape(options, schema), type(self).open_log)

    @override
    def streamReader(self, schema: StructType) -> "LogStreamReader":
        options = parse_options(self.options, streaming=True, before=self._parsed)
        return LogStreamReader(options, _shape(options, schema), open_log=type(self).open_log)


class LogBatchReader(DataSourceReader):  # type: ignore[misc] # pyspark is untyped here
    """Reads a bounded range once."""

    def __init__(
        self, options: SourceOptions, shape: Projection, open_log: OpenLog = SourceOptions.reading
    ) -> None:
        self._options = options
        self._shape = shape
        self._open_log = open_log

    @override
    def partitions(self) -> Sequence[Task]:
        options = self._options
        with self._open_log(options, SystemClock()) as log:
            state = log.state(options.subscription)
            first = _resolved(log, options.starting, state.readable, missing=EARLIEST)
            last = _resolved(log, options.ending, state.readable, missing=LATEST)
            if options.starting != EARLIEST and options.ending != LATEST:  # both were asked for
                _check_order(first, last)
            begin, end = (
                Offsets(at, {**state.stream_ids, **_ids_of(spec)})
                for at, spec in ((first, options.starting), (last, options.ending))
            )
            spans = spans_between(begin, end)
            sizes = BatchSizes(None, options.task_bytes, subject_to_read(options, self._shape))
            return plan(spans, state.readable, options, sizes, log, ends=last)

    @override
    def read(self, partition: Task) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._options, self._shape, self._open_log)


class PushingBatchReader(LogBatchReader):
    """That, and takes conditions over from Spark.

    A separate class, for Spark refuses a reader that could unless its setting
    `spark.sql.python.filterPushdown.enabled` is on.
    """

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        only, left = pushed(filters, self._shape.view)
        self._shape = self._shape.narrowed(only)
        return left


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads on from a position, micro-batch by micro-batch.

    Where logd cannot be reached when a batch is planned, there is simply nothing new; only after
    `retryTimeoutSeconds` of that the query fails.

    With `batchInterval` the look for new records waits for them, some seconds at a time. The thread
    of the query in the JVM then waits for this process, which Spark ends when it stops the query.
    A batch that is as large as it may be, behind another one, waits for no interval.
    """

    def __init__(
        self,
        options: SourceOptions,
        shape: Projection,
        clock: BlockingClock | None = None,
        open_log: OpenLog = SourceOptions.reading,
    ) -> None:
        self._options = options
        self._shape = shape
        self._clock = clock or SystemClock()
        self._open_log = open_log
        self._log = open_log(options, self._clock)
        self._admission = Admission(options.min_rows, options.trigger_delay_ns)
        interval_ns = options.batch_interval_ns
        self._pace = None if interval_ns is None else BatchPace(interval_ns)
        self._is_full = False  # whether the last batch left records that were there
        self._parent = os.getppid()
        self._target: Mapping[StreamPartition, int] | None = None
        self._seen: LogState | None = None
        self._unreachable_since_ns: int | None = None
        self._answered: dict[tuple[StreamPartition, int, int, int], int] = {}
        if options.max_bytes is None and (
            options.plan_in or options.measures or options.first_bytes
        ):
            raise BadOptionError(
                "options planIn, measureSizes and maxBytesOfFirstTrigger need maxBytesPerTrigger"
            )
        self._sizes = BatchSizes(
            options.bytes_after(None),
            None if options.max_bytes is None else options.task_bytes or TASK_BYTES,
            subject_to_read(options, shape),
            measures=options.measures,
        )

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Executors get what `read` needs, and no connection."""
        kept = {"_options": self._options, "_shape": self._shape}
        return kept | {"_open_log": self._open_log}

    @override
    def initialOffset(self) -> dict[str, Any]:
        state = self._log.state(self._options.subscription)
        spec = self._options.starting
        at = _resolved(self._log, spec, state.readable, missing=EARLIEST)
        # Offsets that are of a stream's earlier life stay so: a batch finds out.
        return Offsets(at, {**state.stream_ids, **_ids_of(spec)}, state.epochs).to_json()

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.min_rows is not None:
            return ReadMinRows(options.min_rows)
        return ReadAllAvailable() if options.max_bytes is None else ReadMaxBytes(options.max_bytes)

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        pace = self._pace
        if pace is None or self._target is not None:
            return self._looked(start, limit)
        if pace.is_idle:
            self._wait_for_news(pace)
        elif self._is_full and (end := self._looked(start, limit, only_full=True)) != start:
            pace.looked(self._clock.monotonic_ns(), begins=True)
            return end
        if not self._wait_until(pace.due_ns):
            return start
        end = self._looked(start, limit)
        pace.looked(self._clock.monotonic_ns(), begins=end != start)
        return end

    def _wait_for_news(self, pace: BatchPace) -> None:
        """Wait until the log has more than it had at the last look, or some seconds."""
        asked_ns = self._clock.monotonic_ns()
        pause_s = min(max((self._options.batch_interval_ns or 0) / 1e9, PAUSE_MIN_S), WAIT_S)
        state = self._seen if self._unreachable_since_ns is None else None
        # Records that are too few for a batch, and there already, are nothing to wait for.
        if state is not None and self._admission.min_rows is None:
            ends = {at: span.end for at, span in state.readable.items()}
            subject = subject_to_read(self._options, self._shape)
            if self._log.news.wait(ends, WAIT_S, subject=subject, is_useless=self._is_orphan):
                pace.news(self._clock.monotonic_ns())
                return
        self._wait_until(asked_ns + int(pause_s * 1e9))

    def _wait_until(self, time_ns: int) -> bool:
        """Wait until a monotonic time, some seconds at most; True if it has come."""
        until_ns = min(time_ns, self._clock.monotonic_ns() + int(WAIT_S * 1e9))
        while (left_ns := until_ns - self._clock.monotonic_ns()) > 0 and not self._is_orphan():
            self._clock.sleep(min(left_ns / 1e9, PAUSE_MIN_S))
        return self._clock.monotonic_ns() >= time_ns

    def _is_orphan(self) -> bool:
        """True if the JVM that this process plans for has ended without a word."""
        return os.getppid() != self._parent

    def _looked(
        self, start: dict[str, Any], limit: ReadLimit, *, only_full: bool = False
    ) -> dict[str, Any]:
        asked_ns = self._clock.monotonic_ns()
        try:
            end = self._latest(start, limit, only_full=only_full)
        except LogUnavailableError:
            since_ns = self._unreachable_since_ns = self._unreachable_since_ns or asked_ns
            late = asked_ns - since_ns > self._options.retry_timeout_s * 1e9
            if late or self._target is not None:  # nothing new would be the end of the query
                raise
            return start
        self._unreachable_since_ns = None
        return end

    def _latest(
        self, start: dict[str, Any], limit: ReadLimit, *, only_full: bool
    ) -> dict[str, Any]:
        """The end of the next batch; `start` where none begins, or it is not full and must be."""
        state = self._state_of_trigger()
        known = offsets_from_json(start)
        self._check_streams(known, state)
        generations = self._generations(known, state)
        first = self._still_there(known, state, generations)
        last = {where: max(span.end, first[where]) for where, span in state.readable.items()}
        if self._target is not None:
            last = {
                where: max(min(end, self._target.get(where, 0)), first[where])
                for where, end in last.items()
            }
        elif not isinstance(limit, ReadAllAvailable):
            waiting = sum(max(end - first[where], 0) for where, end in last.items())
            if not self._admission.admits(waiting, self._clock.monotonic_ns()):
                return start
        there = last
        if isinstance(limit, ReadMaxRows) and limit.max_rows > 0:
            last = admit(first, last, limit.max_rows)
        if not isinstance(limit, ReadAllAvailable):
            patiently = self._target is not None
            last = self._sizes.cut(self._log, first, last, patiently=patiently)
        self._is_full = last != there
        if only_full and not self._is_full:
            return start
        end = Offsets(last, state.stream_ids, state.epochs, generations)
        end = with_streams_not_read(end, known)
        if (end.next, end.stream_ids, end.generations) == (
            known.next,
            known.stream_ids,
            known.generations,
        ):
            return start  # though leaders may have changed
        self._admission.begun(self._clock.monotonic_ns())
        self._sizes.max_bytes = self._options.bytes_after(self._sizes.max_bytes)
        return end.to_json()

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        state = self._seen  # of `latestOffset` just now
        if state is None:
            return None
        last = {where: span.end for where, span in state.readable.items()}
        return Offsets(last, state.stream_ids).to_json()

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        state = self._state()
        self._target = {where: span.end for where, span in state.readable.items()}

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Task]:
        known, last = offsets_from_json(start), offsets_from_json(end)
        # A batch planned before a restart may hold a stream that is not read any more.
        of_batch = {
            at.stream
            for at, upto in last.next.items()
            if known.next.get(at) != upto or known.generations.get(at) != last.generations.get(at)
        }
        state = self._seen
        if state is None or any(
            upto > state.readable.get(at, _NOTHING).end
            for at, upto in last.next.items()
            if at.stream in of_batch
        ):
            state = self._log.state(tuple(sorted(of_batch)), may_be_gone=self._may_be_gone)
        first = self._position(known, state)
        if not self._options.fail_on_data_loss:
            first = forgiven(first, last)
        elif truncated_now := sorted(last.generations.items() - known.generations.items()):
            where, generations = truncated_now[0]
            raise DataLossError(
                f"{where.stream}/{where.partition} was truncated to {generations[-1][0]}, below"
                f" {known.next.get(where, 0)} where the next batch begins: the log lost records"
                f" that were read, and gives their offsets again; {ACCEPTING} where it was"
                " truncated"
            )
        spans = spans_between(first, last)
        kept = {
            span.where: min(self._kept_until(span.where, span.end, last, state), span.end)
            for span in spans
        }
        readable = {
            at: Readable(it.start, min(it.end, kept.get(at, it.end)))
            for at, it in state.readable.items()
        }
        return plan(spans, readable, self._options, self._sizes, self._log, ends=last.next)

    @override
    def read(self, partition: Task) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._options, self._shape, self._open_log)

    def rows(self, task: Task) -> TaskRows:
        """The rows of a task of `partitions`, for who processes them without Spark."""
        return TaskRows(task, self._options, self._shape, self._open_log)

    @override
    def stop(self) -> None:
        self._log.close()

    def _position(self, known: Offsets, state: LogState) -> Offsets:
        """Return the position with the first offset to read in each partition.

        A stream that is read for the first time begins where `startingOffsets` has offsets for it,
        else at the earliest: records may have come since it was created. A partition that was added
        to a stream which is read begins at its very first record.
        """
        spec = self._options.starting
        offsets = spec if isinstance(spec, Offsets) else Offsets({})
        starting = resolve(offsets, state.readable, missing=EARLIEST)
        streams = {where.stream for where in known.next}
        added = {where: 0 for where in starting if where.stream in streams}
        if self._options.subscription.partitions:  # it was there, and is assigned to this job now
            added = {where: 0 for where in added if where not in offsets.next}
        return Offsets(
            starting | added | dict(known.next),
            {**offsets.stream_ids, **known.stream_ids},
            known.epochs,
            known.generations,
        )

    def _still_there(
        self,
        known: Offsets,
        state: LogState,
        generations: Mapping[StreamPartition, Generations],
    ) -> Mapping[StreamPartition, int]:
        """That, as far as the log goes; `partitions` says if that is a loss."""
        first = self._position(known, state)
        ends = {at: state.written.get(at, span.end) for at, span in state.readable.items()}
        return forgiven(first, Offsets(ends, state.stream_ids, {}, generations)).next

    def _generations(self, known: Offsets, state: LogState) -> dict[StreamPartition, Generations]:
        """Return the generations of the streams, with truncations since `known`."""
        found: dict[StreamPartition, Generations] = {}
        for at in state.readable:
            if known.stream_ids.get(at.stream) != state.stream_ids.get(at.stream):
                continue
            position, generations = known.next.get(at, 0), known.generations.get(at, ())
            kept = self._kept_until(at, position, known, state)
            if kept < position:
                generations = truncated(generations, kept)
            if generations:
                found[at] = generations
        return found

    def _kept_until(
        self, at: StreamPartition, position: int, known: Offsets, state: LogState
    ) -> int:
        """Return how far the log still has the records before a position; at most that position.

        A log that is shorter has lost the rest. One that is longer may have other records in their
        place: a later leader then knows where those of the earlier one ended.
        """
        end = state.written.get(at, state.readable[at].end) if at in state.readable else position
        epoch = known.epochs.get(at)
        if not position or epoch is None or state.epochs.get(at, epoch) <= epoch:
            return min(end, position)
        question = (at, position, epoch, state.epochs[at])
        if question not in self._answered:
            span = Span(at.stream, at.partition, position, position, planned_epoch=epoch)
            patiently = self._target is not None
            answer = self._log.kept_until(span, patiently=patiently)
            self._answered = {it: n for it, n in self._answered.items() if it[0] != at}
            self._answered[question] = answer
        return min(self._answered[question], end, position)

    def _check_streams(self, known: Offsets, state: LogState) -> None:
        """A stream that is gone may have had records that were not read."""
        if not self._options.fail_on_data_loss:
            return
        gone = {where.stream for where in known.next} - state.stream_ids.keys()
        for stream in sorted(gone):
            if self._options.subscription.wants(stream):
                at = {n.partition: offset for n, offset in known.next.items() if n.stream == stream}
                raise DataLossError(
                    f"stream {stream!r} was deleted; it was read up to these offsets: {at};"
                    f" {ACCEPTING} without it"
                )

    @property
    def _may_be_gone(self) -> bool:
        return not self._options.fail_on_data_loss

    def _state(self) -> LogState:
        return self._log.state(self._options.subscription, may_be_gone=self._may_be_gone)

    def _state_of_trigger(self) -> LogState:
        ask = self._log.state_now if self._target is None else self._log.state
        self._seen = ask(self._options.subscription, may_be_gone=self._may_be_gone)
        return self._seen


def _shape(options: SourceOptions, schema: StructType) -> Projection:
    known = {column.name: column for column in options.view.columns}
    passed_through = tuple(known[name] for name in options.pass_through)
    columns = options.view.chosen(
        [field for field in schema if not passed_through or field.name != PASSTHROUGH]
    )
    if not columns and not passed_through:
        raise BadOptionError("no column is to be read; name one in the option columns")
    return Projection(options.view, columns, options.only, options.versions, passed_through)


def _resolved(
    log: LogdReader, spec: OffsetSpec, readable: Mapping[StreamPartition, Readable], *, missing: int
) -> dict[StreamPartition, int]:
    if isinstance(spec, Times):
        spec = Offsets(log.at_times(spec, readable))
    return resolve(spec, readable, missing=missing)


def _ids_of(spec: OffsetSpec) -> Mapping[str, str]:
    """Ids of the streams that offsets are of, where they say so."""
    return spec.stream_ids if isinstance(spec, Offsets) else {}


def _check_order(first: Mapping[StreamPartition, int], last: Mapping[StreamPartition, int]) -> None:
    """Make sure that a range begins before it ends, or there.

    Raises:
        BadOptionError: It does not.
    """
    for where, offset in sorted(first.items()):
        if offset > last[where]:
            raise BadOptionError(
                f"startingOffsets lie behind endingOffsets: {where.stream}/{where.partition} would"
                f" be read from {offset} to {last[where]}"
            )
