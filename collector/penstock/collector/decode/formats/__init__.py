"""Formats of texts that sources and transforms read."""
