"""The name of a node of a cluster."""

from typing import Final, NewType

NodeId = NewType("NodeId", str)
"""Given by the operator: 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`."""

DATA_LOST: Final = "data lost"
"""What the reason begins with why a node has halted whose disk lacks what it has acknowledged."""

REJOIN: Final = (
    "Start it as a new node, with another name and an empty data_dir. When that one has joined,"
    " drain and remove the old name: penstock logd cluster drain NODE, then cluster remove NODE."
)
"""What to do about such a node."""
