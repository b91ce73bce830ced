"""PySpark jobs that read the log by offset and route it to sinks."""
