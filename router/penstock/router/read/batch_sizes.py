"""Bytes of a stream's micro-batches: where one ends because of them, and the tasks that read it.

Spark plans by offsets, and says how large records are only when they are read. So some are looked
at beforehand, where a batch begins and where it would end. Where a batch was larger than that said,
for large records lay in its middle, its query measures every frame from then on: it fetches all of
a batch to plan it, and again to read it.

The query that delivers the batch runs in another process, and reads its bytes from a file. A batch
that is planned again finds its tasks there, for what they write is named by them:

    {"next": {"logs": {"0": 124, ...}}, "size": 31457433, "is_measured": true,
     "largest": {"stream": "logs", "partition": 0, "start": 123, "end": 124, "size": 31457433},
     "tasks": [["logs", 0, 100, 124, 31457433], ...]}
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Self

from penstock.base.files import atomic_write
from penstock.router.read.logd_reader import LogdReader
from penstock.router.read.offsets import (
    FrameSize,
    Offsets,
    Span,
    StreamPartition,
    offsets_from_json,
    split,
    split_by_size,
    within_bytes,
    within_measured_bytes,
)
from penstock.router.read.record_sizes import RECORD_BYTES, Look, Sample

FURTHER_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a log on disk that one request searches for the first record that matches."""

FURTHER_LOOKS: Final = 8
"""Maximum number of such requests for one batch."""

TASK_BYTES: Final = 8 * 1024 * 1024
"""Approximate bytes of records that one task reads: the JVM copies a task's output several times.
"""


def bytes_allowed(planned: int) -> int:
    """Return the bytes above which a task's batch counts as larger than planned.

    Records in between are not as those that were looked at; twice as much is no surprise.
    """
    return 2 * planned + TASK_BYTES


@dataclass(slots=True)
class _Known:
    """Sizes that logd has reported for a partition's part of the batch that begins at `start`.

    Attributes:
        start: First offset of the batch.
        seen: The offset after those that were looked at.
        sizes: Bytes of one offset, at each position that could be read and holds records.
        looks: Number of requests so far.
        is_bare: Whether no record between `start` and `seen` matches.
        is_ended: Whether the batch ends at `seen`.
    """

    start: int
    seen: int
    sizes: list[int] = field(default_factory=list)
    looks: int = 0
    is_bare: bool = False
    is_ended: bool = False

    def next_look(self, span: Span) -> Look | None:
        """Return the next position to sample: begin, end, then on to the first match."""
        if self.looks == 0:
            return Look(span, self.start)
        if self.seen >= span.end:
            return None
        if not self.is_bare:
            return Look(span, span.end - 1)
        if self.is_ended or self.looks > FURTHER_LOOKS:
            return None
        return Look(span, self.seen, FURTHER_BYTES)

    def take(self, sample: Sample) -> None:
        """Note what was found."""
        self.is_bare = self.is_bare or (self.looks == 0 and sample.size == 0)
        self.is_ended = self.is_bare and sample.size != 0
        self.looks += 1
        self.seen = sample.first if self.is_ended else sample.seen
        if sample.size:
            self.sizes.append(sample.size)

    def upto(self, end: int) -> int:
        """Return the end of the batch: at most `end`, less where nothing matches so far."""
        return min(end, self.seen) if self.is_bare else end

    def size_to(self, end: int) -> int:
        """Return the estimated bytes of a record: the larger one of both ends of the batch."""
        if self.is_bare and end <= self.seen:
            return 0
        return max(self.sizes, default=RECORD_BYTES)


@dataclass(frozen=True, slots=True)
class LargestFrame:
    """The frame of a batch with the most bytes; a large record has one for itself."""

    stream: str
    partition: int
    start: int
    end: int
    size: int


class PlannedTask(NamedTuple):
    """Offsets from `start` up to `end`, exclusive, that one task reads: about `size` bytes."""

    stream: str
    partition: int
    start: int
    end: int
    size: int


def _behind(task: PlannedTask, first: Mapping[StreamPartition, int]) -> PlannedTask | None:
    """What a task has from an offset of its partition on; None: nothing."""
    start = max(task.start, first.get(StreamPartition(task.stream, task.partition), 0))
    if start >= task.end:
        return None
    share = (task.end - start) / (task.end - task.start)
    return task._replace(start=start, size=round(task.size * share))


@dataclass(frozen=True, slots=True)
class PlannedBytes:
    """The plan of a batch.

    Attributes:
        next: The offset after the batch, by partition.
        size: Bytes of memory that its records take.
        is_measured: Whether every frame was measured; else some were sampled.
        largest: The largest frame, if measured.
        tasks: The tasks in the order of the log; empty: an earlier version wrote the file.
    """

    next: Mapping[StreamPartition, int]
    size: int
    is_measured: bool
    largest: LargestFrame | None
    tasks: tuple[PlannedTask, ...] = ()

    def is_of(self, spans: Iterable[Span]) -> bool:
        """Return whether the tasks read exactly these spans, one for each partition."""
        mine: dict[StreamPartition, tuple[int, int]] = {}
        for task in self.tasks:
            at = StreamPartition(task.stream, task.partition)
            mine[at] = (mine.get(at, (task.start, 0))[0], task.end)
        return bool(mine) and mine == {it.where: (it.start, it.end) for it in spans}

    def behind(self, first: Mapping[StreamPartition, int]) -> Self:
        """Return the plan without the offsets before these."""
        tasks = tuple(it for task in self.tasks if (it := _behind(task, first)) is not None)
        if tasks == self.tasks:
            return self
        return replace(self, tasks=tasks, size=sum(it.size for it in tasks))

    def cuts(self) -> dict[StreamPartition, tuple[int, ...]]:
        """Return the offsets at which tasks after the first begin, by partition."""
        starts: dict[StreamPartition, list[int]] = {}
        for task in self.tasks:
            starts.setdefault(StreamPartition(task.stream, task.partition), []).append(task.start)
        return {at: tuple(sorted(found)[1:]) for at, found in starts.items() if len(found) > 1}

    def write(self, path: Path) -> None:
        """Put it into a file, whole and durably."""
        told = {
            "next": Offsets(self.next).to_json(),
            "size": self.size,
            "is_measured": self.is_measured,
            "largest": self.largest and asdict(self.largest),
            "tasks": self.tasks,
        }
        atomic_write(path, json.dumps(told))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        try:
            told = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        return cls(
            offsets_from_json(told["next"]).next,
            told["size"],
            told["is_measured"],
            told["largest"] and LargestFrame(**told["largest"]),
            tuple(PlannedTask(*task) for task in told.get("tasks", ())),
        )


@dataclass(frozen=True, slots=True)
class _Measured:
    """Frames of a partition's part in the batch that begins at `start`, as far as they were read.

    Attributes:
        start: There.
        seen: The offset behind those that were.
        frames: One behind the other.
    """

    start: int
    seen: int
    frames: tuple[FrameSize, ...]

    def serves(self, span: Span, upto: int | None) -> bool:
        """Return whether the frames cover a span, or at least `upto` bytes of it."""
        if self.start != span.start:
            return False
        whole = sum(frame.size for frame in self.frames)
        return self.seen >= span.end or (upto is not None and whole >= upto)

    def size_of(self, span: Span) -> int:
        """Bytes of a span, of a frame that is in it in part its share."""
        return sum(_share_of(frame, span) for frame in self.frames)


@dataclass(slots=True)
class BatchSizes:
    """Sizes of one stream's batches, one after the other.

    Attributes:
        max_bytes: Approximate maximum bytes of a batch; None: unlimited, and nothing is sampled.
        task_bytes: Approximate maximum bytes of one task.
        subject: Subject of the records that are read.
        measures: Whether every frame is measured.
    """

    max_bytes: int | None
    task_bytes: int | None
    subject: str | None
    measures: bool = False
    _known: dict[StreamPartition, _Known] = field(default_factory=dict)
    _measured: dict[StreamPartition, _Measured] = field(default_factory=dict)
    _passed_over: dict[StreamPartition, int] = field(default_factory=dict)

    def cut(
        self,
        log: LogdReader,
        first: Mapping[StreamPartition, int],
        last: Mapping[StreamPartition, int],
        *,
        patiently: bool,
    ) -> dict[StreamPartition, int]:
        """Return the ends of a batch that begins at `first` and ends at `last` at most.

        Raises:
            LogUnavailableError: logd could not be reached; the sizes that it reported until then
                are kept for the next call.
        """
        spans = [Span(*at, first[at], end) for at, end in last.items() if end > first[at]]
        if self.max_bytes is None or not spans:
            return dict(last)
        waiting = [span.where for span in spans]
        order = sorted(waiting, key=lambda at: (-self._passed_over.get(at, 0), at))
        if self.measures:
            frames = {it.where: self._frames(log, it, self.max_bytes) for it in spans}
            found = within_measured_bytes(first, frames, self.max_bytes, order=order)
            ends = {**last, **found}
        else:
            self._learn(log, spans, patiently=patiently)
            ends = {**last, **{it.where: self._known[it.where].upto(it.end) for it in spans}}
            sizes = {it.where: self._known[it.where].size_to(ends[it.where]) for it in spans}
            ends = within_bytes(first, ends, sizes, self.max_bytes, order=order)
        self._passed_over = {
            at: self._passed_over.get(at, 0) + 1 for at in waiting if ends[at] == first[at]
        }
        return ends

    def divide(self, log: LogdReader, spans: Sequence[Span], *, whole: bool = False) -> list[Span]:
        """Return the spans of a batch in pieces of about `task_bytes`, in their order.

        Args:
            log: Log whose frames are sampled or measured.
            spans: One a partition.
            whole: Whether each stays in one piece; its size is known then as well.

        Raises:
            LogUnavailableError: logd stayed away.
        """
        most = self.task_bytes
        if most is None or not spans:
            return list(spans)
        if self.measures:
            chunks = [split_by_size(it, self._frames(log, it), most) for it in spans]
        else:
            self._learn(log, spans, patiently=True)
            chunks = [split([it], round(self.size_of(it) / most)) for it in spans]
        return list(spans) if whole else [span for chunk in chunks for span in chunk]

    def size_of(self, span: Span) -> int:
        """Bytes of a span or a piece of it, which was divided."""
        if self.measures:
            return self._measured[span.where].size_of(span)
        return span.length * self._known[span.where].size_to(span.end)

    def largest(self, spans: Iterable[Span]) -> LargestFrame | None:
        """The largest frame of spans that were divided; None: nobody knows."""
        if not self.measures:
            return None
        frames = [
            LargestFrame(*span.where, max(it.start, span.start), min(it.end, span.end), size)
            for span in spans
            for it in self._measured[span.where].frames
            if (size := _share_of(it, span))
        ]
        return max(frames, key=lambda frame: frame.size, default=None)

    def _frames(self, log: LogdReader, span: Span, upto: int | None = None) -> list[FrameSize]:
        """Return the frame sizes of a span up to `upto` bytes; a larger frame in parts."""
        known = self._measured.get(span.where)
        if known is None or not known.serves(span, upto):
            frames, seen, size = list[FrameSize](), span.end, 0
            for frame in log.frame_sizes(span, subject=self.subject):
                frames.append(frame)
                size += frame.size
                if upto is not None and size >= upto:
                    seen = frame.end
                    break
            known = self._measured[span.where] = _Measured(span.start, seen, tuple(frames))
        found = [part for frame in known.frames for part in _parts(frame, upto)]
        found = [frame for frame in found if frame.start < span.end]
        end = min(known.seen, span.end)
        if not found or found[-1].end < end:  # there is nothing more in between
            found.append(FrameSize(found[-1].end if found else span.start, end, 0))
        return found

    def _learn(self, log: LogdReader, spans: Sequence[Span], *, patiently: bool) -> None:
        """See how large records are; all partitions are asked at a time."""
        for span in spans:
            known = self._known.get(span.where)
            if known is None or known.start != span.start:
                self._known[span.where] = _Known(span.start, seen=span.start)
        known_of = {span: self._known[span.where] for span in spans}

        def found(look: Look, sample: Sample) -> None:
            known_of[look.span].take(sample)

        while looks := [it for span, known in known_of.items() if (it := known.next_look(span))]:
            log.sample(looks, subject=self.subject, patiently=patiently, found=found)


def _parts(frame: FrameSize, most: int | None) -> list[FrameSize]:
    """A frame of several records that is larger than a bound, in parts that are not."""
    count = 1 if most is None else min(-(-frame.size // most), frame.end - frame.start)
    if count <= 1:
        return [frame]
    length = frame.end - frame.start
    cuts = [frame.start + length * number // count for number in range(count + 1)]
    return [FrameSize(*cut, frame.size // count) for cut in pairwise(cuts)]


def _share_of(frame: FrameSize, span: Span) -> int:
    """Bytes of a frame that lie in a span, as if its records were of one size."""
    inside = min(frame.end, span.end) - max(frame.start, span.start)
    return frame.size * max(inside, 0) // (frame.end - frame.start)
