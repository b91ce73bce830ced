"""Why a member does not do what it is asked to. The class says who must act."""

from penstock.logd.core.node import NodeId
from penstock.logd.errors import UnavailableError


class NotLeaderError(UnavailableError):
    """Another member leads, or none; ask that one.

    Attributes:
        leader: None when this member knows of none.
    """

    def __init__(self, leader: NodeId | None) -> None:
        self.leader = leader
        super().__init__(f"this node does not lead; {leader or 'no node'} does")


class BusyError(UnavailableError):
    """A bound is reached, or something else must end first; the same will be done later."""


class HaltedError(UnavailableError):
    """This member takes no part until an operator has acted."""
