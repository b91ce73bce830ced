"""The interface between a sink and its job."""

import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.base.clock import BlockingClock
from penstock.router.delivery.batch_names import BatchNames, positions_of
from penstock.router.delivery.rate_limiter import RateLimiter, TaskShare
from penstock.router.errors import StoppedError
from penstock.router.job.settings import SinkConfig
from penstock.router.meter import Meter
from penstock.router.read.offsets import Offsets, StreamPartition, reading_begins

if TYPE_CHECKING:
    from penstock.service.tracing.spans import Tracer


class Replay(StrEnum):
    """Number of copies of a record in a destination after its batch was delivered twice."""

    EXACTLY_ONCE = "exactly once"
    EFFECTIVELY_ONCE = "effectively once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A sink's promise.

    Attributes:
        level: Number of copies of a record.
        how: Means of the guarantee; part of a sentence, for people.
        within: Reach of an effectively-once guarantee: a time, a number, a condition.
    """

    level: Replay
    how: str
    within: str | None = None

    def __post_init__(self) -> None:
        """A reach belongs to effectively once, and to nothing else."""
        if (self.within is not None) != (self.level is Replay.EFFECTIVELY_ONCE):
            raise ValueError("name `within` for effectively once, and only for that")

    @override
    def __str__(self) -> str:
        reach = f" within {self.within}" if self.within else ""
        return f"{self.level}{reach}: {self.how}"


class Originals:
    """The rows of the batch in work as they lie in the log, where transforms changed them."""

    def __init__(self) -> None:
        self.table: pa.Table | None = None

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the original rows of these, in the same order."""
        if self.table is None:
            return rows
        offsets = rows.column("offset").combine_chunks()
        near = self.table.filter(pc.is_in(self.table.column("offset"), value_set=offsets))
        found = {position: number for number, position in enumerate(positions_of(near))}
        return near.take([found[position] for position in positions_of(rows)])


class DeadLetterPublisher(Protocol):
    """Publisher of dead letters beside their files, on best effort."""

    def publish(self, lines: Sequence[bytes]) -> int:
        """Store dead letters, a JSON object each; returns how many are not stored."""
        ...


PACED_MS: Final = "paced_ms"
"""Counter of the milliseconds for which a rate limit made a sink wait, in each task that did."""

_PACED_STEP_NS: Final = 10 * 1_000_000_000


def persist_nothing() -> None:
    """Checkpoints are on this machine alone, and what is written there is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext(BatchNames):
    """The context that a job gives to each sink.

    Attributes:
        state_dir: The sink's own directory, kept with the checkpoints.
        dead_letters: Directory of the records that the destination refuses for good.
        stop: Set when the job, or a replay, ends; a sink that waits must give up.
        starts: First offset of the current batch by `position_tag`; empty if unknown. The query
            keeps it up to date.
        cuts: Offsets at which tasks of Spark cut the current batch when it was first delivered;
            empty where the driver has always written it as a whole.
        rules: Digest of what decides which rows the sink gets and how they are written.
        shortened: `position_tag` of each partition of which the log has lost records since the
            batch was planned: an earlier attempt may have delivered those, and they stay.
        dead_letter_stream: Publisher of dead letters beside the files; None: there is none.
        originals: The rows in work before transforms; dead letters hold those.
        tracer: Tracer of the spans of batches; None: there are none.
        of_dead_letters: Whether the rows are dead letters: some records of one or more batches.
        ending: A file of the job's that is there when the job ends; tasks on this machine that wait
            look for it. None: they wait to the end.
        persist: Stores `state_dir` as durably as the job's checkpoints. A sink that notes
            something which must not be lost once it has published calls this in between; it
            raises `UnavailableError` where that is impossible now.
    """

    job: str
    sink: str
    state_dir: Path
    dead_letters: Path
    meter: Meter
    stop: threading.Event
    clock: BlockingClock
    starts: dict[str, int] = field(default_factory=dict)
    cuts: dict[StreamPartition, tuple[int, ...]] = field(default_factory=dict)
    rules: str = ""
    shortened: set[str] = field(default_factory=set)
    dead_letter_stream: DeadLetterPublisher | None = None
    originals: Originals = field(default_factory=Originals)
    tracer: "Tracer | None" = None
    of_dead_letters: bool = False
    ending: Path | None = None
    persist: Callable[[], None] = persist_nothing

    def wait(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            StoppedError: The job, or the replay, ends.
        """
        if self.stop.wait(seconds):
            raise StoppedError(f"sink {self.sink} gave up its batch because it is to stop")

    def wait_for_rate(self, pause_ns: int) -> None:
        """Let a pause of the rate limit pass, or a part of it: the counter says that it goes on.

        Raises:
            StoppedError: As in `wait`.
        """
        step_ns = min(pause_ns, _PACED_STEP_NS)
        self.meter.count(PACED_MS, step_ns // 1_000_000)
        self.wait(step_ns / 1e9)

    def begin_batch(
        self,
        before: Offsets,
        planned: Offsets,
        cuts: Mapping[StreamPartition, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        """A batch between two positions comes, which its first tasks cut at these offsets."""
        self.stream_ids.update(planned.stream_ids)
        self.generations.clear()
        self.generations.update(planned.generations)
        begins = {at: reading_begins(at, before, planned) for at in before.next}
        self.starts.clear()
        self.starts.update((self.position_tag(*at, begin), begin) for at, begin in begins.items())
        self.shortened.clear()
        self.cuts.clear()
        self.cuts.update(cuts)

    def shorten(self) -> None:
        """Some records of the batch in work are lost."""
        self.shortened.update(self.starts)

    def parts(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Rows of the batch in work as tasks had them when it was first delivered."""
        for (stream, partition), cuts in self.cuts.items():
            is_mine = pc.and_(
                pc.equal(rows.column("stream"), stream),
                pc.equal(rows.column("partition"), partition),
            )
            mine, rows = rows.filter(is_mine), rows.filter(pc.invert(is_mine))
            for cut in cuts:
                is_before = pc.less(mine.column("offset"), cut)
                part, mine = mine.filter(is_before), mine.filter(pc.invert(is_before))
                if part.num_rows:
                    yield part
            if mine.num_rows:
                yield mine
        if rows.num_rows:
            yield rows


@dataclass(frozen=True, slots=True)
class Preview:
    """One request, or file, as a sink would write it.

    Attributes:
        target: Destination: method and URL, file, statement; without secrets.
        records: Number of its records.
        body: Body, decoded for people where it is not text.
        headers: Headers beside the body; values of secrets are hidden.
    """

    target: str
    records: int
    body: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Periodic maintenance of a sink's destination, beside the batches.

    Attributes:
        interval_s: Seconds between two runs.
        run: Does it; receives a function that returns whether the job ends. An error that it
            raises is the sink's problem until the next run.
    """

    interval_s: float
    run: Callable[[Callable[[], bool]], None]


@dataclass(frozen=True, slots=True)
class Gone:
    """A destination does not have a delivered row any more; `where` was looked at."""

    where: str


Place = str | Gone | None
"""The file or key of a row at its destination; None: the sink cannot say it."""


class Sink(Protocol):
    """One destination. A subclass is registered under its `type` (see `sinks.table`).

    `write` is called with the batches of one query, one after the other. A batch that was not
    finished, because of an error or a crash, comes again with the same records: what was written of
    it must then be replaced or recognised, as far as the destination allows.
    """

    config_class: ClassVar[type[SinkConfig]]
    """The sink's settings in a job file."""

    guarantee: ClassVar[Guarantee]
    """Effect of a repeated batch; the documents' table is generated from it."""

    columns: tuple[str, ...]
    """The columns that `write` needs."""

    knows_batches_only: ClassVar[bool] = False
    """True if it recognises repeated records only in the same batches as before."""

    rate_limiter: RateLimiter | None = None
    """That of a sink that paces its requests and books them; None: each batch waits as a whole."""

    def __init__(self, config: Any, context: SinkContext) -> None:
        """Take an instance of `config_class`; nothing is connected or written yet."""
        ...

    def open(self) -> None:
        """Check the destination and remove what a crash left, before the first batch.

        Raises:
            ConfigError: The destination cannot be used.
        """
        ...

    def write(self, rows: pa.Table) -> None:
        """Bring the rows of one batch to the destination for good.

        Each batch ends here, also one without rows for the sink: an earlier attempt at it may have
        had some, and what that attempt made must be removed. Rows of one partition of the log come
        in the order of their offsets.

        Raises:
            StoppedError: The job ends and the batch is not finished.
            UnavailableError: What an earlier attempt made cannot be removed now.
        """
        ...

    def start_over(self) -> None:
        """Deliver the next rows on purpose, so that they repeat nothing delivered before.

        This precedes a replay, and each file of dead letters, whatever the offsets are.
        """
        return

    def go_on(self) -> None:
        """A replay of a range goes on that was ended early; instead of `start_over`.

        The first batch that comes may have been in work then, perhaps in part or as a whole, and
        `state_dir` is what that replay left. No other replay's is ever in it.
        """
        self.start_over()

    def preview(self, rows: pa.Table) -> list[Preview]:
        """Return what `write` would send for these rows, without sending or storing anything.

        The default is the rows that the sink would get, as JSON lines.
        """
        return [Preview("the rows that the sink would get", rows.num_rows, as_json_lines(rows))]

    def locate(self, rows: pa.Table) -> Sequence[Place]:
        """Return where the destination has each of some delivered rows: its file or its key.

        The sink need not be open. It asks the destination only where that is cheap.

        Args:
            rows: Rows as `write` got them, perhaps of several batches.

        Raises:
            UnavailableError: The destination cannot be asked now.
        """
        return [None] * rows.num_rows

    def maintenance(self) -> Maintenance | None:
        """Return the maintenance that the job runs in a thread; None: nothing."""
        return None

    def close(self) -> None:
        """Give connections back; no batch is in work and none comes any more."""
        return


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of one writer; sinks add what their `commit` needs. It can be pickled.

    Attributes:
        left: Rows that `commit` has yet to process, as the writer got them; None: there are none.
    """

    left: pa.Table | None = field(default=None, kw_only=True)


class Writer(Protocol):
    """Brings the rows of one task to a sink's destination; it can be pickled until the first row.

    Spark may run a task again, or twice at a time. What a writer makes must not be seen before its
    result is committed, or must be the same for the same rows.
    """

    def write(self, rows: pa.RecordBatch) -> None:
        """Take more rows; those of one partition of the log come in the order of their offsets."""
        ...

    def close(self) -> WriteResult:
        """All rows came; what is returned is what `TaskSink.commit` gets."""
        ...


@dataclass(frozen=True, slots=True)
class LeftRows(WriteResult):
    """The result of a `RowsWriter`."""


@dataclass(slots=True)
class GatheringWriter:
    """Base of writers that gather the rows of a task until all are there."""

    _batches: list[pa.RecordBatch] = field(default_factory=list, init=False)

    def write(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)


@dataclass(slots=True)
class RowsWriter(GatheringWriter):
    """The writer of tasks that leave all rows to `TaskSink.write`."""

    def close(self) -> LeftRows:
        return LeftRows(left=pa.Table.from_batches(self._batches) if self._batches else None)


class TaskSink(Sink):
    """A sink whose rows are written where Spark has them, in the tasks of its executors.

    For each batch the driver calls `begin`, and asks for a `writer`, of which each task gets a
    copy. It `commit`s what they return: what must be seen at once, or only after something was
    noted, is published there.
    """

    context: SinkContext

    publishes_in_tasks: ClassVar[bool] = False
    """True if the destination may have records before `commit`."""

    shares_tasks: bool = True
    """True if other sinks may get their rows in the same tasks."""

    keeps_order: bool = False
    """True if one task at a time must write the records of a partition of the log, in order."""

    share: TaskShare | None = None
    """What each task of the batch may send, where `rate_limiter` has a limit; set before `writer`.
    """

    @abstractmethod
    def begin(self) -> None:
        """A batch comes, perhaps again; nothing of an attempt that failed is wanted any more.

        Raises:
            ConfigError: The destination cannot be used.
            UnavailableError: It cannot be reached now.
        """

    @abstractmethod
    def writer(self) -> Writer:
        """Return a writer without rows, for the batch that has begun."""

    def shared_writer(self) -> Writer:
        """Return a writer for tasks that other sinks wait for, too: it must end within seconds."""
        return self.writer()

    def publish(self, results: Sequence[Any]) -> bool:  # noqa: ARG002 - for subclasses
        """Make seen what writers have put aside, before `commit` gets the same results.

        Returns:
            False: it cannot be, and is not. The tasks of the batch are then run once more, with
            another `writer` after another `begin`, and `commit` gets the results of these.
        """
        return True

    @abstractmethod
    def commit(self, results: Sequence[Any]) -> None:
        """Make what the writers of the batch have written last, and seen.

        Each batch that is delivered ends here, also one without rows for the sink.

        Args:
            results: Results of `Writer.close`; each row of the batch is in one of them.
        """

    @override
    def write(self, rows: pa.Table) -> None:
        """Write a batch in the driver, cut as its tasks had it when it was first delivered."""
        self.begin()
        results = []
        for part in self.context.parts(rows):
            writer = self.writer()
            for batch in part.to_batches():
                writer.write(batch)
            results.append(writer.close())
        self.commit(results)


def as_json_lines(rows: pa.Table) -> str:
    """Rows as one JSON object a line, for people: bytes as text, nulls left out."""
    lines = (
        {name: value for name, value in row.items() if value is not None}
        for row in rows.to_pylist()
    )
    return "\n".join(json.dumps(line, default=_as_text, ensure_ascii=False) for line in lines)


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
