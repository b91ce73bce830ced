"""PySpark jobs that read the log by offset and route it to sinks; and the log as DataFrames."""

from penstock.router.frames import all_kinds, audits, events, logs, metrics, raw, spans
from penstock.router.source import LogDataSource

__all__ = ["LogDataSource", "all_kinds", "audits", "events", "logs", "metrics", "raw", "spans"]
