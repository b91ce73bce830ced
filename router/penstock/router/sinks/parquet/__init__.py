"""The Parquet sink."""
