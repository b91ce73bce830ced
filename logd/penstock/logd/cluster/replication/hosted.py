"""What replication needs of the replicas on a node, and how it is tuned."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.logd.cluster.replication.frames import Frame
from penstock.logd.core.replication.events import Event
from penstock.logd.core.replication.messages import Answer
from penstock.logd.core.replication.session import PartitionKey
from penstock.logd.limits import REPLICATION_TAKEN_BYTES_MAX
from penstock.logd.memory import Memory
from penstock.logd.store import CommitLog


class Hosted(Protocol):
    """A replica on this node. Called on the event loop."""

    @property
    def log(self) -> CommitLog:
        """Its log; frames are read from it."""
        ...

    def handle(self, event: Event) -> None:
        """Run the core, and execute its effects."""
        ...

    def answer_for(self, node: str) -> Answer | None:
        """As `core.replication.replica.Replica.answer_for`."""
        ...

    def take(self, answer: Answer, frames: list[Frame]) -> None:
        """An answer of the leader has come, with frames that are whole and checked."""
        ...

    def dedup_snapshot(self, leader_epoch: int) -> Memory | None:
        """What it remembers of committed records; None: it does not lead under that epoch."""
        ...

    def take_range(self, node: str, first: int, upto: int, frames: list[Frame]) -> None:
        """What a node has sent for a damaged range; no frames: it cannot help."""
        ...


Find = Callable[[PartitionKey], Hosted | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """How followers are fed, and how much a follower takes.

    Attributes:
        response_bytes_max: Of the frames in one response, at most
            `limits.REPLICATION_RESPONSE_BYTES_MAX`; one frame may exceed it. While one is on its
            way, what other partitions have for the same node waits.
        catch_up_bytes_per_s_max: For all replicas outside the ISR together; None: no limit.
        held_s: Seconds after which frames that could not be read are tried again.
        taken_bytes_max: Of frames from one leader's node, given to replicas and not yet written;
            beyond, no more is received.
        room_s: Seconds that replicas have to write those, before more comes all the same.
    """

    response_bytes_max: int = 4 * 1024 * 1024
    catch_up_bytes_per_s_max: int | None = None
    held_s: float = 1.0
    taken_bytes_max: int = REPLICATION_TAKEN_BYTES_MAX
    room_s: float = 5.0


@dataclass(slots=True)
class FeedCounts:
    """What one follower's node was sent.

    Attributes:
        sessions: Begun.
        broken: That ended otherwise than by the other node closing them: of what it sent, or since
            it took nothing, or was cut off.
        damaged: Times that frames could not be sent because they cannot be read.
    """

    sessions: int = 0
    broken: int = 0
    requests: int = 0
    responses: int = 0
    frames: int = 0
    frames_bytes: int = 0
    damaged: int = 0


@dataclass(slots=True)
class FetchCounts:
    """What was fetched from one leader's node.

    Attributes:
        sessions: Begun.
        broken: That ended though there was more to fetch.
        waits: Times that no more was received, because the replicas had not written enough yet.
    """

    sessions: int = 0
    broken: int = 0
    requests: int = 0
    responses: int = 0
    frames: int = 0
    frames_bytes: int = 0
    waits: int = 0
