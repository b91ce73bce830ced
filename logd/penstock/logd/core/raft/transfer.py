"""A handover of the leadership that is under way (dissertation 3.10)."""

from dataclasses import dataclass

from penstock.logd.core.node import NodeId


@dataclass(slots=True)
class Transfer:
    """One handover; the leader takes no proposals meanwhile.

    Attributes:
        tag: Of the event that asked for it.
        target: Who is to lead.
        deadline_ns: When the leader gives it up.
        told: The target has the whole log and was told to stand for election.
    """

    tag: int
    target: NodeId
    deadline_ns: int
    told: bool = False
