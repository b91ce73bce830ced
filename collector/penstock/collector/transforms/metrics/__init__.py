"""Transforms of metric points."""
