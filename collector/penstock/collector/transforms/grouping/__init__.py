"""Transforms that make several records of one, or few of many."""
