"""The process's file descriptors, shared out by kind before they run out.

A limit (`ulimit -n`, `LimitNOFILE`) holds for all descriptors of a process together. Without shares
many files, or many idle connections, would take those that the checkpoint, the spools, the admin
endpoint and NATS need, and everything would stand still. So a part is kept for these; the rest goes
to the files that are read and to the connections of senders.

    limit
    ├── reserve       checkpoint, spools, quarantine, admin endpoint, NATS, programs
    ├── files         of all file sources; the one that was used longest ago is closed for the next
    └── connections   in equal shares for each listening address, so that none starves another
"""

import errno
from collections import OrderedDict
from typing import Any, Final, Protocol

from penstock.base.clock import Clock

_RESERVE_MIN: Final = 48
"""Descriptors that a collector needs besides files and senders, with a margin."""

_RESERVE_SHARE: Final = 4
"""The reserve is no more than the limit divided by this."""

_TROUBLE_NS: Final = 60 * 10**9
"""A shortage is reported for so long after it was met last."""

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class OpenFile(Protocol):
    """A file whose descriptor the budget may take back."""

    def can_close(self) -> bool:
        """Return whether the file can be opened again by its name."""
        ...

    def close_for_others(self) -> None:
        """Give the descriptor back; the file is opened again when it is needed."""
        ...


class Descriptors:
    """The budget of one process.

    Args:
        limit: The process's limit.
        clock: Clock of a reported shortage.

    Attributes:
        reserve: Descriptors that neither files nor connections get.
        max_files: Files that may be open at once.
        max_connections: Descriptors of senders' connections.
        closed: Number of files closed for others.
        shortages: Number of refusals, by kind.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self.reserve = 0
        self.max_files = limit
        self.max_connections = limit
        self.closed = 0
        self.shortages: dict[str, int] = {}
        self._clock = clock
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._listening: dict[object, int] = {}
        self._seen: dict[str, int] = {}

    def share_out(self, *, reserve: int, max_files: int, reads_files: bool) -> None:
        """Divide the limit; what is open stays.

        Args:
            reserve: The configured reserve; at most a quarter of the limit, or 48 of a small one.
            max_files: The configured bound; at most half of the rest is given to files.
            reads_files: Whether there is a source of files; else connections have it all.
        """
        self.reserve = min(reserve, max(self.limit // _RESERVE_SHARE, _RESERVE_MIN))
        rest = max(2, self.limit - self.reserve)
        self.max_files = max(1, min(max_files, rest // 2))
        self.max_connections = rest - (self.max_files if reads_files else 1)

    # Files.

    @property
    def files_open(self) -> int:
        """Files that are open now."""
        return len(self._open)

    def admit(self, file: OpenFile) -> None:
        """Count a file as open, or as used just now; others are closed for it.

        Raises:
            OSError: `EMFILE`: as many are open as may be, and none of them can be closed.
        """
        key = id(file)
        if key in self._open:
            self._open.move_to_end(key)
            return
        self.make_room()
        self._open[key] = file

    def make_room(self) -> None:
        """Let one more file be opened.

        Raises:
            OSError: As `admit`.
        """
        while len(self._open) >= self.max_files:
            oldest = next((one for one in self._open.values() if one.can_close()), None)
            if oldest is None:
                self.short("files")
                raise OSError(errno.EMFILE, f"all {self.max_files} files that may be open are")
            oldest.close_for_others()
            self.closed += 1

    def release(self, file: OpenFile) -> None:
        """A file is closed."""
        self._open.pop(id(file), None)

    def failed(self, error: OSError) -> None:
        """Note an error of opening a file; one of descriptors is a shortage."""
        if error.errno in OUT_OF_DESCRIPTORS:
            self.short("files")

    # Connections.

    def listen(self, listener: object, each: int = 1) -> None:
        """Give a listener its share; `stop_listening` ends it.

        Args:
            listener: The listener of one address.
            each: Descriptors that one connection takes.
        """
        self._listening[listener] = each

    def stop_listening(self, listener: object) -> None:
        """The address is not listened on any more."""
        self._listening.pop(listener, None)

    def connections(self, listener: object) -> int:
        """Return how many connections a listener may have."""
        share = self.max_connections // max(1, len(self._listening))
        return max(1, share // self._listening.get(listener, 1))

    # What the status and the log say.

    def short(self, kind: str) -> bool:
        """Note that descriptors of a kind ran out; true when they had not within the last 60 s."""
        now_ns = self._clock.monotonic_ns()
        first = now_ns - self._seen.get(kind, -_TROUBLE_NS) >= _TROUBLE_NS
        self._seen[kind] = now_ns
        self.shortages[kind] = self.shortages.get(kind, 0) + 1
        return first

    @property
    def troubles(self) -> list[str]:
        """Why the collector is degraded; empty when every kind had enough for 60 s."""
        now_ns = self._clock.monotonic_ns()
        shares = {"files": self.max_files, "connections": self.max_connections}
        return [
            f"out of file descriptors for {kind}: {shares[kind]} of the process's {self.limit} are"
            " for them; raise LimitNOFILE of the service (ulimit -n)"
            for kind, seen_ns in self._seen.items()
            if now_ns - seen_ns < _TROUBLE_NS
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "limit": self.limit,
            "reserve": self.reserve,
            "files_open": self.files_open,
            "max_files": self.max_files,
            "files_closed_for_others": self.closed,
            "max_connections": self.max_connections,
            "shortages": dict(self.shortages),
        }
