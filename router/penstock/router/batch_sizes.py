"""Bytes of a stream's micro-batches: where one ends because of them, and the tasks that read it.

Spark plans by offsets, and says how large records are only when they are read. So some are looked
at beforehand, where a batch begins and where it would end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.router.core.offsets import Span, StreamPartition, split, within_bytes
from penstock.router.reading import LogReading
from penstock.router.record_sizes import RECORD_BYTES, Look

TASK_BYTES: Final = 8 * 1024 * 1024
"""Of records that one task reads, about: the JVM copies what a task gives several times."""


@dataclass(slots=True)
class _Known:
    """What logd has told of a partition's part in the batch that begins at `start`.

    Attributes:
        start: There.
        seen: The offset behind those that were looked at.
        sizes: Bytes of an offset, at each place that could be read.
    """

    start: int
    seen: int
    sizes: list[int] = field(default_factory=list)

    def next_look(self, span: Span) -> Look | None:
        """Where the span begins, and then where it ends; None: both are known."""
        if self.seen == self.start:
            return Look(span, self.start)
        return Look(span, span.end - 1) if self.seen < span.end else None

    def take(self, size: int | None, seen: int) -> None:
        """Note what was found."""
        self.seen = seen
        if size is not None:
            self.sizes.append(size)

    @property
    def size(self) -> int:
        """That of the records where the batch begins or of those where it ends."""
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
        sizes = self._sizes(log, spans, patiently=patiently)
        return within_bytes(first, last, sizes, self.bytes_max)

    def divide(self, log: LogReading, spans: Sequence[Span]) -> list[Span]:
        """The spans of a batch, one a partition, in pieces of about `task_bytes`, in their order.

        Raises:
            LogUnavailableError: logd stayed away.
        """
        most = self.task_bytes
        if most is None or _fits(spans, most):
            return list(spans)
        sizes = self._sizes(log, spans, patiently=True)
        pieces = (split([it], round(it.length * sizes[it.where] / most)) for it in spans)
        return [span for piece in pieces for span in piece]

    def _sizes(
        self, log: LogReading, spans: Sequence[Span], *, patiently: bool
    ) -> dict[StreamPartition, int]:
        """Bytes of an offset; all partitions are asked at a time, first where they begin."""
        for span in spans:
            known = self._known.get(span.where)
            if known is None or known.start != span.start:
                self._known[span.where] = _Known(span.start, seen=span.start)
        known_of = {span: self._known[span.where] for span in spans}

        def found(look: Look, size: int | None, seen: int) -> None:
            known_of[look.span].take(size, seen)

        while looks := [it for span, known in known_of.items() if (it := known.next_look(span))]:
            log.sample(looks, subject=self.subject, patiently=patiently, found=found)
        return {span.where: known.size for span, known in known_of.items()}


def _fits(spans: Sequence[Span], most: int) -> bool:
    """Whether any records would."""
    return sum(span.length for span in spans) * RECORD_BYTES <= most
