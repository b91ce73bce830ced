"""The Spark session: its JVM, its memory, and the log as DataFrames."""
