"""What became of single records at a job's sinks."""
