"""The cluster's state as the state machine of its Raft group."""

from collections.abc import Callable
from typing import TypeAlias

from penstock.logd.core.cluster.commands import Command, decode_command
from penstock.logd.core.cluster.state import ClusterState, Result
from penstock.logd.core.raft import Snapshot

OnApplied: TypeAlias = Callable[[Command, Result], None]


class ClusterMachine:
    """As `penstock.logd.consensus.needs.StateMachine`.

    Args:
        on_applied: Told each command and what came of it, after the state has changed.
        on_restored: Told that the whole state is another one.

    Attributes:
        state: As of the last command; nobody else changes it.
    """

    def __init__(
        self,
        on_applied: OnApplied = lambda _command, _result: None,
        on_restored: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = ClusterState()
        self._on_applied = on_applied
        self._on_restored = on_restored

    def apply(self, index: int, command: bytes) -> Result:
        """Apply a committed command; the same on every node.

        Raises:
            CorruptError, LaterVersionError: It is not understood.
        """
        decoded = decode_command(command)
        result = self.state.apply(index, decoded)
        self._on_applied(decoded, result)
        return result

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state.

        Raises:
            CorruptError, LaterVersionError: It is not understood.
        """
        self.state = ClusterState.restore(snapshot.data)
        self._on_restored()

    def snapshot(self) -> bytes:
        """The state as it is."""
        return self.state.snapshot()
