"""Streaming queries of sinks: one for each sink, or one for a group of them."""
