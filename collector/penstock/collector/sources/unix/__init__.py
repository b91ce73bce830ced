"""Batches of the spec library, over a Unix stream socket."""
