"""What a replica is that neither leads nor follows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Idle:
    """Has no part to play: there is no leader, or this node is not to hold the partition."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The view gives another role; the log's writer has not finished."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The log takes no writes. It is opened again as another `Replica`."""

    reason: str
