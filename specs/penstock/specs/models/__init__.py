"""The specs: what a record is, one file a kind, and its line."""
