"""Batches that tasks write, without Spark: a task runs in a process that is not the driver's."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import pyarrow as pa

from penstock.router.sinks import TaskSink


def write_in_tasks(sink: TaskSink, parts: Sequence[pa.Table]) -> list[Any]:
    """What the tasks of one batch return to the driver, each of a part of the rows."""
    sink.begin()
    return [_worker().submit(_written, sink.writer(), part).result(120) for part in parts]


def deliver_in_tasks(sink: TaskSink, parts: Sequence[pa.Table]) -> int:
    """Deliver a batch as a job does; returns how often its tasks ran."""
    results = write_in_tasks(sink, parts)
    runs = 1
    if not sink.publish(results):
        results = write_in_tasks(sink, parts)
        runs = 2
    sink.commit(results)
    return runs


def _written(writer: Any, rows: pa.Table) -> Any:
    for batch in rows.to_batches():
        writer.write(batch)
    return writer.close()


@cache
def _worker() -> ProcessPoolExecutor:
    """One, as Spark keeps them; it ends with this process."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
