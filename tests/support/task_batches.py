"""A batch as Spark's tasks deliver it to a sink, without Spark: copies write, the sink commits."""

import pickle
from dataclasses import replace

import pyarrow as pa

from penstock.base.clock import BlockingClock, SystemClock
from penstock.router.sinks.http.task_sink import (
    RequestWriter,
    TaskRequestSink,
    WrittenRequests,
)


def written_by_task(sink: TaskRequestSink, rows: pa.Table) -> WrittenRequests:
    """What the one task of a batch has sent and left; the sink's batch has begun."""
    return run_task(sink.writer(), rows, sink.context.clock)


def run_task(
    writer: RequestWriter, rows: pa.Table, clock: BlockingClock | None = None
) -> WrittenRequests:
    """What a task has sent and left, which gets a copy of the batch's writer."""
    copy = replace(pickle.loads(pickle.dumps(writer)), clock=clock or SystemClock())
    for part in rows.to_batches():
        copy.write(part)
    result: WrittenRequests = pickle.loads(pickle.dumps(copy.close()))
    return result


def write_in_tasks(sink: TaskRequestSink, *tasks: pa.Table) -> None:
    """Deliver a batch of which each task has some rows."""
    sink.begin()
    sink.commit([written_by_task(sink, rows) for rows in tasks])
