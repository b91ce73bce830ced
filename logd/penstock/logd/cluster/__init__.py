"""A node's part in its cluster: the metadata that all nodes agree on, and the way there."""
