"""Bytes of a stream's micro-batches: where one ends because of them, and the tasks that read it.

Spark plans by offsets, and says how large records are only when they are read. So some are looked
at beforehand, where a batch begins and where it would end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.router.core.offsets import Span, StreamPartition, split, within_bytes
from penstock.router.reading import LogReading
from penstock.router.record_sizes import RECORD_BYTES, Look, Sample

FURTHER_BYTES: Final = 4 * 1024 * 1024
"""Of a log, as it lies on disk, that are searched at a time for the first record that matches."""

FURTHER_LOOKS: Final = 8
"""How often, for one batch."""

TASK_BYTES: Final = 8 * 1024 * 1024
"""Of records that one task reads, about: the JVM copies what a task gives several times."""


@dataclass(slots=True)
class _Known:
    """What logd has told of a partition's part in the batch that begins at `start`.

    Attributes:
        start: There.
        seen: The offset behind those that were looked at.
        sizes: Bytes of an offset, at each place that could be read and has something.
        looks: How often it was looked at.
        is_bare: Whether nothing that matches lies between `start` and `seen`.
        is_ended: Whether that ends at `seen`.
    """

    start: int
    seen: int
    sizes: list[int] = field(default_factory=list)
    looks: int = 0
    is_bare: bool = False
    is_ended: bool = False

    def next_look(self, span: Span) -> Look | None:
        """Where the span begins and where it ends; or for what matches, where it begins bare."""
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
        """Where the batch ends at the latest: where what is bare does, if it is."""
        return min(end, self.seen) if self.is_bare else end

    def size_to(self, end: int) -> int:
        """That of the records where the batch begins or of those where it ends."""
        if self.is_bare and end <= self.seen:
            return 0
        return max(self.sizes, default=RECORD_BYTES)


@dataclass(slots=True)
class BatchSizes:
    """Those of one stream's batches, one after the other.

    Attributes:
        bytes_max: Of a batch, about; None: it is not bounded, and nobody is asked.
        task_bytes: Of what one task reads, likewise.
        subject: Of the records that are read.
    """

    bytes_max: int | None
    task_bytes: int | None
    subject: str | None
    _known: dict[StreamPartition, _Known] = field(default_factory=dict)

    def cut(
        self,
        log: LogReading,
        first: Mapping[StreamPartition, int],
        last: Mapping[StreamPartition, int],
        *,
        patiently: bool,
    ) -> dict[StreamPartition, int]:
        """Where a batch ends that begins at `first` and ends at `last` at most.

        Raises:
            LogUnavailableError: As `LogReading.sample`; what logd has told of this batch
                until then is known when it is asked for again.
        """
        spans = [Span(*at, first[at], end) for at, end in last.items() if end > first[at]]
        if self.bytes_max is None or _fits(spans, self.bytes_max):
            return dict(last)
        self._learn(log, spans, patiently=patiently)
        ends = {**last, **{it.where: self._known[it.where].upto(it.end) for it in spans}}
        sizes = {it.where: self._known[it.where].size_to(ends[it.where]) for it in spans}
        return within_bytes(first, ends, sizes, self.bytes_max)

    def divide(self, log: LogReading, spans: Sequence[Span]) -> list[Span]:
        """The spans of a batch, one a partition, in pieces of about `task_bytes`, in their order.

        Raises:
            LogUnavailableError: logd stayed away.
        """
        most = self.task_bytes
        if most is None or _fits(spans, most):
            return list(spans)
        self._learn(log, spans, patiently=True)
        sizes = [self._known[it.where].size_to(it.end) for it in spans]
        pieces = (
            split([it], round(it.length * size / most))
            for it, size in zip(spans, sizes, strict=True)
        )
        return [span for piece in pieces for span in piece]

    def _learn(self, log: LogReading, spans: Sequence[Span], *, patiently: bool) -> None:
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


def _fits(spans: Sequence[Span], most: int) -> bool:
    """Whether any records would."""
    return sum(span.length for span in spans) * RECORD_BYTES <= most
