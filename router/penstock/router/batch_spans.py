"""Spans of a sink's batches: `micro-batch`, and in it what was read and what was delivered."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.sinks import SinkContext

SUBJECT = "subject"


class BatchSpans:
    """Of one sink.

    A batch in which there is nothing but Penstock's own spans makes none.

    Args:
        context: The sink's, with the tracer.
        columns: That the sink needs.

    Attributes:
        columns: To be read for it.
    """

    def __init__(self, context: SinkContext, columns: Sequence[str]) -> None:
        self._tracer = context.tracer
        self._names = {"penstock.job": context.job, "penstock.sink": context.sink}
        self._adds_subject = self._tracer is not None and SUBJECT not in columns
        self.columns = [*columns, SUBJECT] if self._adds_subject else list(columns)

    @contextmanager
    def delivering(self, rows: pa.Table, reading_ns: int) -> Iterator[pa.Table]:
        """Around the delivery of a batch; gives the rows as the sink needs them.

        Args:
            rows: As they were read.
            reading_ns: How long that took.
        """
        given = rows.drop_columns([SUBJECT]) if self._adds_subject else rows
        tracer = self._tracer
        if tracer is None or not self._is_told(rows):
            yield given
            return
        whole = tracer.start("micro-batch", kind="CONSUMER", ago_ns=reading_ns)
        if whole is None:
            yield given
            return
        if read := tracer.part(whole, "read", ago_ns=reading_ns):
            read.end()
        work = tracer.part(whole, "deliver", kind="CLIENT")
        whole.attributes |= {**self._names, "messaging.batch.message_count": rows.num_rows}
        error = ""
        try:
            yield given
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            if work is not None:
                work.end(error=error)
            whole.end(error=error)

    def _is_told(self, rows: pa.Table) -> bool:
        tracer = self._tracer
        if tracer is None or not rows.num_rows:
            return False
        return not all(map(tracer.is_own, pc.unique(rows.column(SUBJECT)).to_pylist()))
