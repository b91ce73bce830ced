"""Bytes of a stream's micro-batches: where one ends because of them, and the tasks that read it.

Spark plans by offsets, and says how large records are only when they are read. So some are looked
at beforehand, where a batch begins and where it would end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.router.core.offsets import Span, StreamPartition, split, within_bytes
from penstock.router.reading import LogReading
from penstock.router.record_sizes import RECORD_BYTES

TASK_BYTES: Final = 8 * 1024 * 1024
"""Of records that one task reads, about: the JVM copies what a task gives several times."""


@dataclass(slots=True)
class _Known:
    """What logd has told of a partition's part in the batch that begins at `start`."""

    start: int
    seen: int
    sizes: list[int] = field(default_factory=list)
    is_whole: bool = False


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
            LogUnavailableError: As `LogReading.bytes_of_offset`; what logd has told of this batch
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
        return {span.where: self._size(log, span, patiently=patiently) for span in spans}

    def _size(self, log: LogReading, span: Span, *, patiently: bool) -> int:
        """Of an offset; that of the records where the span begins or of those where it ends."""
        known = self._known.get(span.where)
        if known is None or known.start != span.start:
            known = self._known[span.where] = _Known(span.start, seen=span.start)
        for offset in (span.start, span.end - 1):
            if known.is_whole or offset < known.seen:
                continue
            size, known.seen = log.bytes_of_offset(
                span, offset, subject=self.subject, patiently=patiently
            )
            if size is not None:
                known.sizes.append(size)
        known.is_whole = True
        return max(known.sizes, default=RECORD_BYTES)


def _fits(spans: Sequence[Span], most: int) -> bool:
    """Whether any records would."""
    return sum(span.length for span in spans) * RECORD_BYTES <= most
