"""How large records are, by some that were fetched to see it."""

from typing import Final

from penstock.logd.batch import decode_body
from penstock.logd.client import Fetched

SAMPLE_BYTES: Final = 64 * 1024
"""Bytes asked for to see how large records are; a frame comes whole, however large it is."""

RECORD_BYTES: Final = 1024 * 1024
"""A record that nobody knows is taken to have so many: what NATS lets pass by default."""


def size_in(fetched: Fetched, offset: int) -> tuple[int, int]:
    """The bytes of memory that an offset takes, rounded up, and the offset behind those looked at.

    Args:
        fetched: Frames, or a range that has none.
        offset: That was asked for; the first frame may begin before it.

    Raises:
        CorruptError: A frame holds no batch.
    """
    bodies = (
        decode_body(body, where=f"offset {header.base_offset}") for header, body in fetched.frames
    )
    size = sum(int(body.nbytes) for body in bodies)
    headers = [header for header, _ in fetched.frames]
    begin = min([offset, *(header.base_offset for header in headers)])
    end = max([fetched.next_offset, *(header.next_offset for header in headers)])
    return -(-size // (end - begin)), end
