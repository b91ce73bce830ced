"""PySpark jobs that read the log by offset and route it to sinks; and the log as DataFrames."""

from penstock.router.read.source import LogDataSource
from penstock.router.spark.readers import all_kinds, audits, events, logs, metrics, raw, spans

__all__ = ["LogDataSource", "all_kinds", "audits", "events", "logs", "metrics", "raw", "spans"]
