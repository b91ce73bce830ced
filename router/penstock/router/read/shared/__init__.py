"""Decoded rows in memory that the sinks of one job share."""
