"""Delivering a range of the log to one sink again: its offsets, in the batches it got then."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

from penstock.base.pluralize import pluralize
from penstock.logd.client import LogClient
from penstock.router.checkpoint.journal import JOURNAL, BatchJournal
from penstock.router.checkpoint.local import StartingOffsets, committed_offsets
from penstock.router.errors import LogUnavailableError, StoppedError
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.read.batch_sizes import BatchSizes
from penstock.router.read.logd_reader import LogdReader, LogState
from penstock.router.read.offsets import Offsets, Readable, StreamPartition, admit, generations_of
from penstock.router.replay.backfill_plan import (
    Chunk,
    Cuts,
    EndOf,
    Position,
    are_all_since,
    chunks,
    known_cuts,
    known_ends,
    of_batches_not_known,
    of_this_stream_id,
)
from penstock.router.replay.bounded_run import BoundedRun, ReplayStoppedError
from penstock.router.replay.progress import ReplayNote, Report, Unfinished
from penstock.router.sinks.registry import sink_kind
from penstock.router.spark.heap_budget import HeapBudget
from penstock.router.transforms import Again
from penstock.service import ConfigError, UnavailableError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_US: Final = 1000
_TIME_NS_MAX: Final = 2**63 - 1


def range_of(
    log: LogClient,
    readable: Mapping[StreamPartition, Readable],
    begin: Any,
    end: Any,
    stream: str | None,
) -> tuple[dict[StreamPartition, int], dict[StreamPartition, int | None]]:
    """The offsets that a range begins and ends at, in each partition; None: where the sink is.

    Args:
        log: Knows which offset a time has.
        readable: Readable offsets of each partition.
        begin: A position as `POSITION` makes it.
        end: Another one; None: as far as the sink has come.
        stream: Only this one's records; None: those of all.
    """
    first = {at: span.start for at, span in readable.items()}
    last: dict[StreamPartition, int | None] = dict.fromkeys(first)
    for at, earliest in list(first.items()):
        if stream in (None, at.stream):
            first[at] = _offset(log, at, begin)
            last[at] = None if end is None else _offset(log, at, end)
        else:
            last[at] = earliest
    return first, last


def _offset(log: LogClient, at: StreamPartition, position: Any) -> int:
    if isinstance(position, int):
        return position
    if isinstance(position, datetime):
        time_ns = (position - _EPOCH) // timedelta(microseconds=1) * _NS_PER_US
        # Before and after what 64 bits hold there is nothing, and nothing yet.
        time_ns = min(max(time_ns, 0), _TIME_NS_MAX)
        return log.offset_for_timestamp(at.stream, time_ns, at.partition)
    readable = log.offsets(at.stream, at.partition)
    return readable[0] if position == "earliest" else readable[1]


def backfill(
    run: BoundedRun,
    sink: str,
    first: Position,
    upto: Mapping[StreamPartition, int | None],
    tell: Report,
) -> int:
    """Deliver a range of the log to one sink again, in the batches it got then.

    An end that is None is where the sink has come to. `tell` takes a line for each batch.

    Returns:
        How many rows the sink got.

    Raises:
        ConfigError: The log does not hold the range, or there is nothing in it.
        UnavailableError: logd stayed away before the first batch.
        RunFailedError: Spark or the sink failed; the reported batches are delivered.
        ReplayStoppedError: `run.stop` was set; likewise.
    """
    config = run.config
    home = config.checkpoint_dir.resolve() / sink
    done = committed_offsets(home / "spark") or StartingOffsets(config.checkpoint_dir).load()
    ends = {at: done.next.get(at, 0) if end is None else end for at, end in upto.items()}
    last = {at: max(begin, ends[at]) for at, begin in first.items()}
    if last == dict(first):
        ranges = (f"{it.stream}/{it.partition} {at} to {ends[it]}" for it, at in first.items())
        raise ConfigError(
            f"there is nothing between --from and --to: {', '.join(islice(ranges, 5))}",
            fix="widen the range; --from comes first, and the record at --to is left out",
        )
    stream_ids = run.state.stream_ids
    begin = Offsets(first, stream_ids)
    it = Unfinished(begin, begin, Offsets(last, stream_ids))
    return _deliver_range(run, sink, it, tell, resumed=False)


def resume(run: BoundedRun, sink: str, tell: Report) -> int:
    """Go on with a replay of a range that was ended early, behind the last batch that it reported.

    The sink is told that, and has what it wrote down of the batch it gave up. Where nothing is
    left, the replay was killed behind its last batch, and that is told.

    Args, returns and raises as `backfill`; `ConfigError` also where there is none.
    """
    note = ReplayNote(run.config.checkpoint_dir.resolve() / sink).load()
    if note is None:
        raise ConfigError(
            f"no replay to {sink} was ended before its time", fix="say what to replay with --from"
        )
    state = run.state
    for stream, stream_id in note.first.stream_ids.items():
        if state.stream_ids.get(stream, stream_id) != stream_id:
            raise ConfigError(
                f"the stream {stream!r} was made again since that replay began",
                fix="say what to replay with --from",
            )

    def placed(at: Offsets) -> Offsets:
        known = {place: at.next.get(place, span.start) for place, span in state.readable.items()}
        return Offsets(known, state.stream_ids)

    first, done, last = map(placed, (note.first, note.done, note.last))
    it = Unfinished(first, done, last, note.batches)
    return _deliver_range(run, sink, it, tell, resumed=True)


def _deliver_range(
    run: BoundedRun, sink: str, it: Unfinished, tell: Report, *, resumed: bool
) -> int:
    """Deliver what is left of a range, a batch at a time, and write down how far it is."""
    home = run.config.checkpoint_dir.resolve() / sink
    parts, cuts, again = _planned(run, sink, it)
    note, progress = ReplayNote(home), run.progress
    if not parts and resumed:
        note.remove()
        tell(
            f"the replay to {sink} had come to its end: {pluralize(it.batches, 'batch')} delivered"
        )
        return 0
    _check_readable(run.state, parts)
    if not resumed:
        _give_up(note, sink, tell)
        note.remove()  # before its state goes, and not replaced before it has gone
    context = run.context(sink, home / "replay", fresh=not resumed)
    note.keep(it)
    progress.sink, progress.meter = sink, context.meter
    progress.start_over()
    progress.done, progress.of = it.batches, it.batches + len(parts)
    batch_writer = BatchWriter(run.config, run.open_sink(sink, context), context, again=again)
    if resumed:
        batch_writer.go_on()
    else:
        batch_writer.start_over()
    with closing(batch_writer):
        for part in parts:
            try:
                context.starts.clear()
                for at, begin in part.start.items():
                    context.starts[context.position_tag(*at, begin)] = begin
                context.cuts.clear()
                context.cuts.update(part.within(cuts))
                refused = progress.refused
                rows = run.deliver(batch_writer, sink, run.rows(part), progress.done)
            except StoppedError:
                raise ReplayStoppedError(
                    f"the replay to {sink} was stopped after {progress}",
                    fix=f"`penstock router replay JOB --sink {sink} --resume` goes on from there",
                ) from None
            progress.done += 1
            done = Offsets(part.end, run.state.stream_ids)
            note.keep(Unfinished(it.first, done, it.last, batches=progress.done))
            refused = progress.refused - refused
            notes = f" ({refused} refused again)" if refused else ""
            told = f"{pluralize(rows, 'record')}{notes}, {_range(part)}"
            tell(f"batch {progress.done} of {progress.of}: {told}")
    note.remove()
    return progress.records


def _planned(run: BoundedRun, sink: str, it: Unfinished) -> tuple[list[Chunk], Cuts, Again]:
    """Return the rest of a range in batches, their cuts, and what the job noted of them."""
    home, stream_ids = run.config.checkpoint_dir.resolve() / sink, run.state.stream_ids
    done = committed_offsets(home / "spark") or Offsets({})
    generations = generations_of(stream_ids, done)
    batches = BatchJournal(home).batches()
    ends = of_this_stream_id([end for end, _ in batches], stream_ids, generations)
    cuts = known_cuts(zip(ends, (cuts for _, cuts in batches), strict=True))
    (begun,) = of_this_stream_id([StartingOffsets(run.config.checkpoint_dir).load()], stream_ids)
    known = known_ends(ends, begun, it.last.next)
    # A batch that touches the range in one partition may end below it in another.
    begin = {at: max(done, it.first.next.get(at, 0)) for at, done in it.done.next.items()}
    kind = sink_kind(run.config.sinks[sink].type).sink
    # Which a sink that is no `Sink` may lack.
    knows_batches_only = getattr(kind, "knows_batches_only", False)
    if knows_batches_only:
        _check_known(sink, of_batches_not_known(begin, it.last.next, known, begun), known, home)
    with run.reading() as log:
        end_of = _ends(run, log)
        parts = list(chunks(begin, it.last.next, known, end_of))
        must_be_noted = False
        if knows_batches_only and known:
            # What is delivered from the job's beginning on, `dedupe` decides as it did then.
            whole = list(chunks(it.first.next, it.last.next, known, end_of))
            must_be_noted = not are_all_since(begun, whole)
    return parts, cuts, Again(home, must_be_noted=must_be_noted)


def _ends(run: BoundedRun, log: LogdReader) -> EndOf:
    """Return a function that ends the unknown batches where the job would end them now."""
    trigger, readable = run.config.trigger, run.state.readable
    max_bytes = HeapBudget(run.config.spark).batch_bytes(trigger)
    sizes = BatchSizes(max_bytes, None, run.config.source.subject)

    def end_of(first: Position, last: Position) -> Position:
        end = admit(first, last, trigger.max_records)
        for at, upto in end.items():
            if first[at] < upto and not readable[at].start <= first[at] < upto <= readable[at].end:
                return end  # what the log does not hold is refused
        try:
            return sizes.cut(log, first, end, patiently=True)
        except LogUnavailableError as error:
            raise UnavailableError(f"logd: {error}", fix="start the replay again later") from None

    return end_of


def _give_up(note: ReplayNote, sink: str, tell: Report) -> None:
    """Tell of an unfinished replay before another one takes its place."""
    try:
        earlier = note.load()
    except ConfigError as error:
        tell(f"an earlier replay to {sink} is given up: {error}")
        return
    if earlier is not None:
        tell(
            f"an earlier replay to {sink}, which ended before its time after {earlier.batches}"
            " batches, is given up: --resume goes on with this one from now on"
        )


def _check_known(
    sink: str,
    unknown: Mapping[StreamPartition, Readable],
    known: Sequence[Position],
    home: Path,
) -> None:
    """Require that all batches are known: in other ones the sink would have records twice."""
    for where, span in unknown.items():
        raise ConfigError(
            f"{where.stream}/{where.partition}: {sink} got offsets {span.start} to {span.end - 1}"
            " in batches that are not known any more, and in others it would have them twice",
            fix=f"begin with --from {known[0][where]} or later; or, if {sink} has none of those"
            f" records any more, remove {home / JOURNAL}",
        )


def _check_readable(state: LogState, parts: Sequence[Chunk]) -> None:
    for where, span in state.readable.items():
        begin = min(part.start[where] for part in parts)
        end = max(part.end[where] for part in parts)
        if begin < end and (begin < span.start or end > span.end):
            starts = (it.start[where] for it in parts if it.start[where] < it.end[where])
            there = next((at for at in starts if at >= span.start), span.end)
            raise ConfigError(
                f"{where.stream}/{where.partition}: offsets {begin} to {end - 1} are wanted, with"
                f" the batches they came in, but the log holds {span.start} to {span.end - 1}",
                fix=f"begin with --from {there} or later, or end earlier with --to",
            )


def _range(part: Chunk) -> str:
    spans = [
        f"{where.stream}/{where.partition} {begin} to {part.end[where] - 1}"
        for where, begin in sorted(part.start.items())
        if part.end[where] > begin
    ]
    return ", ".join(spans)
