"""What becomes of records between their source and the log, as the configuration says."""
