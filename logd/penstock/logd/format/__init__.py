"""Formats on disk and on the wire; nothing here imports anything else of logd."""
