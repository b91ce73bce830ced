"""What a member of a Raft group needs around it: a disk, a state machine, a network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.logd.core.node import NodeId
from penstock.logd.core.raft import Membership, Message, Persist, Snapshot


class OutOfSpaceError(OSError):
    """There was no space, and nothing was promised: the same may be made durable again, later."""


class Storage(Protocol):
    """A member's disk."""

    def persist(self, effect: Persist) -> None:
        """Make all of it durable; called on a thread.

        Raises:
            OutOfSpaceError: It may be called again with the same.
            OSError: Nobody knows what is durable.
        """
        ...


class StateMachine(Protocol):
    """What the group agrees on. Called on the event loop, in the order of the log."""

    def apply(self, index: int, command: bytes) -> Any:
        """Apply a committed command; what it returns goes to whoever proposed it here.

        Raises:
            LogdError: It is not understood; the member takes no further part.
        """
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state.

        Raises:
            LogdError: It is not understood.
        """
        ...

    def snapshot(self) -> bytes:
        """The state as it is."""
        ...


@dataclass(slots=True)
class Hooks:
    """Told on the event loop, while the core is not to be called.

    Attributes:
        send: Takes a message to another member; it may be lost.
        on_leader: Told the term and who leads, as far as known.
        on_membership: Told the members in force, committed or not.
        on_stalled: Told that the disk has no space; the member goes on when it has some.
    """

    send: Callable[[Message], None]
    on_leader: Callable[[int, NodeId | None], None] = lambda _term, _leader: None
    on_membership: Callable[[Membership, bool], None] = lambda _membership, _committed: None
    on_stalled: Callable[[], None] = lambda: None
