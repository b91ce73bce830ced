"""A channel: bytes to and from one other side, which may stall or go away at any moment."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from penstock.logd.store import FileRange

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes sent in one go before other channels get their turn."""

Take = Callable[[bytearray], int]
"""Given what came and was not taken yet; returns how many bytes of it are."""


class Channel(Protocol):
    """One connection. Used on the event loop; receiving and sending may go on at the same time."""

    @property
    def peer(self) -> str:
        """The other side's address, for people."""
        ...

    @property
    def certificate(self) -> bytes | None:
        """The other side's certificate, verified, in DER; None: it showed none."""
        ...

    async def receive(self, size: int) -> bytes:
        """Receive exactly `size` bytes, however long it takes.

        Raises:
            EOFError: The other side closed the connection.
            OSError: It broke.
        """
        ...

    async def receive_into(self, buffer: memoryview) -> None:
        """Fill a buffer, however long it takes.

        Raises:
            EOFError: The other side closed the connection.
            OSError: It broke.
        """
        ...

    async def consume(self, take: Take, *, ahead_max: int) -> None:
        """Hand on what comes, in the turn of the event loop in which it does, until the end.

        A task that waits for it would have it two turns later; of a loop that is busy each turn may
        take as long as other nodes have patience.

        Args:
            take: Takes all that is complete.
            ahead_max: Bytes that may be left; with more, no more is received.

        Raises:
            EOFError, OSError: As `receive`; and whatever `take` raises.
        """
        ...

    def again(self) -> None:
        """`take` may take more of what it left."""
        ...

    def offer(self, data: bytes) -> int:
        """Send what can be sent without waiting; returns how many bytes of it.

        None while `send` is under way.

        Raises:
            OSError: The connection broke.
        """
        ...

    async def send(self, data: bytes | memoryview, *, stall_s: float) -> None:
        """Send all of `data`.

        Raises:
            TimeoutError: The other side took nothing for `stall_s` seconds.
            OSError: The connection broke.
        """
        ...

    async def send_range(self, part: FileRange, *, stall_s: float) -> None:
        """Send a file's range.

        Raises:
            TimeoutError: The other side took nothing for `stall_s` seconds.
            OSError: The connection broke, or the file cannot be read or is too short.
        """
        ...

    def close(self) -> None:
        """Close the connection; nothing can be received or sent any more."""
        ...

    def abort(self) -> None:
        """Close it at once, whatever was to be sent."""
        ...


async def send_copy(channel: Channel, part: FileRange, position: int, stall_s: float) -> None:
    """Send a file's range from a position on through one buffer.

    Raises:
        TimeoutError, OSError: As `Channel.send_range`.
    """
    end = part.position + part.length
    while position < end:
        size = min(end - position, CHUNK_BYTES)
        data = await asyncio.to_thread(part.file.read, position, size)
        if len(data) < size:
            raise file_too_short()
        await channel.send(data, stall_s=stall_s)
        position += size


def file_too_short() -> OSError:
    """What ends a connection on which a file's range was announced that is not there."""
    return ConnectionAbortedError("the file is shorter than its index says")
