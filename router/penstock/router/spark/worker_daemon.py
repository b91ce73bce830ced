"""`python -m penstock.router.spark.worker_daemon pyspark.worker`: forks workers of Spark's tasks.

It is PySpark's own daemon, but has imported before what tasks need: workers share that memory, and
begin without the CPU time of the imports. PySpark imports after the fork, because libraries may
start threads, which a fork leaves behind. Of those here only Arrow's jemalloc does. It starts its
thread again after a fork (`pthread_atfork`), and is not the allocator that Arrow uses.
"""

import gc
from importlib import import_module
from typing import Final

from pyspark.daemon import manager

MODULE: Final = "penstock.router.spark.worker_daemon"
"""For the setting `spark.python.daemon.module`, which only the workers of tasks follow."""

_IMPORTED: Final = (
    "encodings.idna",
    "pyspark.worker",
    "penstock.router.job.route_task",
    "penstock.router.read.source",
    "penstock.router.sinks.parquet.client",
    "penstock.router.sinks.parquet.writer",
    "penstock.router.spark.task_runs",
    "penstock.router.streaming.log_tasks",
    "pyarrow.compute",
    "pyarrow.parquet",
)


def main() -> None:
    """Import, and fork workers until Spark closes the input."""
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()  # a collection writes to each object that it looks at, and so copies its page
    manager()


if __name__ == "__main__":
    main()
