"""Where is a record: finds records in the log and asks every job what became of each."""
