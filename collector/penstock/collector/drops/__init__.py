"""Drops: what became of records that transforms let go no further."""
