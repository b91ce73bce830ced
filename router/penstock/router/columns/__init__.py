"""Columns and filters: from a record's JSON text to typed Arrow columns."""
