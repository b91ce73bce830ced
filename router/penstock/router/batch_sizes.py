"""Bytes of a stream's micro-batches: where one ends because of them, and the tasks that read it.

Spark plans by offsets, and says how large records are only when they are read. So some are looked
at beforehand, where a batch begins and where it would end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.router.core.offsets import Span, StreamPartition, split, within_bytes
from penstock.router.reading import RECORD_BYTES, LogReading

TASK_BYTES: Final = 8 * 1024 * 1024
"""Of records that one task reads, about: the JVM copies what a task gives several times."""


@dataclass(slots=True)
class BatchSizes:
    """Those of one stream's batches, one after the other.

    Attributes:
        bytes_max: Of a batch, about; None: nothing is bounded, and nobody is asked.
        subject: Of the records that are read.
    """

    bytes_max: int | None
    subject: str | None
    _known: dict[StreamPartition, int] = field(default_factory=dict)

    def cut(
        self,
        log: LogReading,
        first: Mapping[StreamPartition, int],
        last: Mapping[StreamPartition, int],
    ) -> dict[StreamPartition, int]:
        """Where a batch ends that begins at `first` and ends at `last` at most."""
        self._known = {}
        spans = [Span(*at, first[at], end) for at, end in last.items() if end > first[at]]
        if self.bytes_max is None or _fits(spans, self.bytes_max):
            return dict(last)
        return within_bytes(first, last, self._sizes(log, spans), self.bytes_max)

    def divide(self, log: LogReading, spans: Sequence[Span]) -> list[Span]:
        """The spans of a batch in pieces of about `TASK_BYTES`, in their order."""
        if self.bytes_max is None or _fits(spans, TASK_BYTES):
            return list(spans)
        sizes = self._sizes(log, spans)
        pieces = (split([it], round(it.length * sizes[it.where] / TASK_BYTES)) for it in spans)
        return [span for piece in pieces for span in piece]

    def _sizes(self, log: LogReading, spans: Sequence[Span]) -> dict[StreamPartition, int]:
        for span in spans:
            if span.where not in self._known:
                self._known[span.where] = log.bytes_of_offset(span, subject=self.subject)
        return self._known


def _fits(spans: Sequence[Span], most: int) -> bool:
    """Whether any records would."""
    return sum(span.length for span in spans) * RECORD_BYTES <= most
