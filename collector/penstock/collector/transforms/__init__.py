"""Transforms: they change, drop or route records between source and log."""
