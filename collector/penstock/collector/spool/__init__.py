"""Durable bytes: what sources received and what can never be delivered, on the collector's disk."""
