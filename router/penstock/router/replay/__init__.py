"""Replays of ranges of the log and of dead-letter records."""
