"""Decisions of the router without I/O: offset arithmetic, delivery and restarts."""
