"""The index of trace ids and record ids of a partition."""
