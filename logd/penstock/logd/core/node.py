"""The name of a node of a cluster."""

from typing import NewType

NodeId = NewType("NodeId", str)
"""Given by the operator: 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`."""
