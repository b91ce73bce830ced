"""Sensitive values: how fields are marked, how others are found, what becomes of them."""
