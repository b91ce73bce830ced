"""Transforms that read one field, and add what is in it to the attributes."""
