"""PySpark jobs that read the log by offset and route it to sinks; and the log as DataFrames.

What is here is loaded when it is asked for: Spark starts processes of Python that need one module.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.router.read.source import LogDataSource
    from penstock.router.spark.readers import (
        all_kinds,
        audits,
        events,
        logs,
        metrics,
        raw,
        register,
        spans,
    )

__all__ = [
    "LogDataSource", "all_kinds", "audits", "events", "logs", "metrics", "raw", "register", "spans",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "read.source" if name == "LogDataSource" else "spark.readers"
    return getattr(import_module(f"{__name__}.{module}"), name)
