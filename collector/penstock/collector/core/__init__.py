"""Decisions of the collector, free of input and output."""
