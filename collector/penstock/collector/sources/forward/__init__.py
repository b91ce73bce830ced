"""Fluent forward messages."""
