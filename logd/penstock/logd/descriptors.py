"""How many files this process may have open, and for how many streams that is enough."""

import sys
from dataclasses import dataclass
from typing import Final, Self

from penstock.logd.errors import RefusedError
from penstock.service import raise_open_files

FILES_PER_STREAM: Final = 2
"""Files that a stream, or a replica, holds open while nobody reads it: the active segment and the
synced mark."""

FILES_BESIDES: Final = 64
"""Files and sockets besides those of streams and readers, and some for short uses."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The limit of open files.

    Attributes:
        limit: Files that may be open.
        connections: Of clients and other nodes, for which some are kept back.
    """

    limit: int = sys.maxsize
    connections: int = 0

    @classmethod
    def raised(cls, connections: int) -> Self:
        """Raise this process's soft limit to the hard one."""
        return cls(raise_open_files(), connections)

    def check(self, streams: int, *, unit: str = "streams") -> None:
        """See whether there are enough for a number of streams.

        Args:
            streams: How many, or how many replicas.
            unit: What they are, for the message.

        Raises:
            RefusedError: `TOO_MANY_STREAMS`, with `needed`.
        """
        needed = self._needed(streams)
        if needed > self.limit:
            message = (
                f"{streams} {unit} and {self.connections} connections need {needed}"
                f" open files, the limit is {self.limit}: raise LimitNOFILE of the service, or"
                f" ulimit -Hn, to {needed}"
            )
            raise RefusedError("TOO_MANY_STREAMS", message, needed=needed)

    def are_enough(self, streams: int) -> bool:
        """Whether there are enough for a number of streams."""
        return self._needed(streams) <= self.limit

    def _needed(self, streams: int) -> int:
        return FILES_PER_STREAM * streams + self.connections + FILES_BESIDES
