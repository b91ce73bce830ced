"""Replication of a partition, as a state machine without I/O."""
