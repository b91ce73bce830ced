"""What operators do to a cluster meanwhile: the same commands as ever, whatever else happens."""

import random
from collections.abc import Callable
from typing import Final

from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError
from tests.nemesis.cluster import Arena
from tests.support.waiting import wait_until

_PATIENCE_S: Final = 3.0
"""Seconds a command may take: one that cannot be done now has been tried."""

_EXTRA: Final = "extra"
"""A stream that is made and deleted again; nobody publishes to it."""


class Operator:
    """Draws commands and gives them. Each is told as a line of text.

    Args:
        arena: What is operated.
        stream: What is moved and altered.
        rng: Everything that is drawn.
    """

    def __init__(self, arena: Arena, stream: str, rng: random.Random) -> None:
        self._arena = arena
        self._stream = stream
        self._rng = rng
        self._draining: set[str] = set()
        self.done = 0

    def operate(self) -> str:
        """Give the next command; what it is, and whether it was done."""
        words, command = self._rng.choice(_COMMANDS)(self)
        try:
            with self._arena.cluster.client(timeout_s=_PATIENCE_S) as log:
                command(log)
        except LogdError as error:
            return f"{words} ({getattr(error, 'code', 'not done')})"
        self.done += 1
        return words

    def rest(self) -> None:
        """No move is under way any more, and no node is being emptied."""

        def rested() -> bool:
            try:
                with self._arena.cluster.client() as log:
                    for node in sorted(self._draining):
                        log.drain_node(node, undo=True)
                    log.move_partition(self._stream, 0, None)
            except LogdError:
                return False
            return True

        wait_until(rested, within_s=30, what="nothing is to be moved any more")
        self._draining.clear()

    def _move(self) -> tuple[str, Callable[[LogClient], object]]:
        names = self._arena.names
        chosen = self._rng.sample(names, min(3, len(names)))
        return (
            f"move {self._stream} to {', '.join(chosen)}",
            lambda log: log.move_partition(self._stream, 0, chosen),
        )

    def _give_up(self) -> tuple[str, Callable[[LogClient], object]]:
        return (
            f"give the move of {self._stream} up",
            lambda log: log.move_partition(self._stream, 0, None),
        )

    def _drain(self) -> tuple[str, Callable[[LogClient], object]]:
        if self._draining:
            node = self._draining.pop()
            self._draining.add(node)  # until it is surely done
            return f"drain {node} no more", lambda log: self._undrain(log, node)
        node = self._rng.choice(self._arena.names)
        self._draining.add(node)
        return f"drain {node}", lambda log: log.drain_node(node)

    def _undrain(self, log: LogClient, node: str) -> None:
        log.drain_node(node, undo=True)
        self._draining.discard(node)

    def _alter(self) -> tuple[str, Callable[[LogClient], object]]:
        least = self._rng.choice((1, 2))
        return (
            f"alter {self._stream}: min_isr {least}",
            lambda log: log.alter_stream(self._stream, min_isr=least),
        )

    def _alter_config(self) -> tuple[str, Callable[[LogClient], object]]:
        entries = self._rng.randrange(100_000, 1_000_000)
        return (
            f"alter {self._stream}: dedup_entries_max {entries}",
            lambda log: log.alter_stream(self._stream, dedup_entries_max=entries),
        )

    def _rebalance(self) -> tuple[str, Callable[[LogClient], object]]:
        return "rebalance", lambda log: log.rebalance()

    def _create(self) -> tuple[str, Callable[[LogClient], object]]:
        return f"create {_EXTRA}", lambda log: log.create_stream(_EXTRA, f"{_EXTRA}.>")

    def _delete(self) -> tuple[str, Callable[[LogClient], object]]:
        return f"delete {_EXTRA}", lambda log: log.delete_stream(_EXTRA)


_COMMANDS: Final = (
    Operator._move,
    Operator._move,
    Operator._move,
    Operator._give_up,
    Operator._drain,
    Operator._drain,
    Operator._alter,
    Operator._alter_config,
    Operator._rebalance,
    Operator._create,
    Operator._delete,
)
