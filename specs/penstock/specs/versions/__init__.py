"""Versions of specs: which are published, what a change breaks, how old records are upgraded."""
