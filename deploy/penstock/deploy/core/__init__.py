"""Decisions of the launcher, free of processes and clocks."""
