"""What one of Spark's tasks does: it reads a span of the log, and lays out its rows."""

import gc
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from penstock.router.clock import SystemClock
from penstock.router.core.filters import subject_of
from penstock.router.core.offsets import Span
from penstock.router.options import SourceOptions
from penstock.router.reading import LogReading
from penstock.router.shaping import Shape, Shaper
from penstock.router.shared_pieces import SharedPieces
from penstock.router.shared_reading import SharedReading


def read_span(span: Span | None, options: SourceOptions, shape: Shape) -> Iterator[pa.RecordBatch]:
    """The rows of a span; none is Spark's stand-in where there is nothing to read."""
    if span is None:
        return
    with options.reading(SystemClock()) as log:
        for rows in _shaped(span, log, options, shape):
            if rows.num_rows:
                yield rows
    _spare_what_stays()


def subject_for(options: SourceOptions, shape: Shape) -> str | None:
    """Of the records that are read; None: all."""
    return options.subject or subject_of(shape.only)


def _shaped(
    span: Span, log: LogReading, options: SourceOptions, shape: Shape
) -> Iterable[pa.RecordBatch]:
    make = partial(Shaper(shape).shape, span)
    how: Any = {
        "fail_on_data_loss": options.fail_on_data_loss,
        "subject": subject_for(options, shape),
    }
    if options.share_in is None:
        return map(make, log.rows(span, **how))
    shared = partial(SharedPieces, options.share_in, options.share_bytes)
    reading = SharedReading(shared, f"{span.where} {shape.known_by}", make, SystemClock())
    return reading.batches(log.pieces(span, **how))


def _spare_what_stays() -> None:
    """Exempt what this worker has loaded from the collections of garbage to come, once.

    Spark's workers collect all garbage after each task, which goes through every object of every
    module: 30 ms of processor time, several times what reading a record takes.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
