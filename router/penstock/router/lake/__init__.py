"""Lakes of Parquet files: what is in one, its compaction, its retention."""
