"""What the soak's publishers send: payloads from which a reader can tell that nothing was changed.

A payload names its publisher, its number and its row, and goes on with bytes that follow from them.
"""

from hashlib import shake_128
from typing import NamedTuple

_LONG_ONE_IN = 32


class Item(NamedTuple):
    """One record: `row` counts within a batch, and is 0 in a plain message."""

    publisher: str
    number: int
    row: int = 0


def encode(item: Item) -> bytes:
    """The payload of an item: always the same one, 30 bytes to 40 KB, mostly below 1 KB."""
    head = b"%s|%d|%d|" % (item.publisher.encode(), item.number, item.row)
    draw = shake_128(head).digest(4)
    size = int.from_bytes(draw[:2]) % 1000
    if draw[2] % _LONG_ONE_IN == 0 and item.row == 0:
        size *= 40
    return head + shake_128(head + b"body").digest(size)


def decode(value: bytes | None) -> Item | None:
    """The item of a payload; None when the payload is not exactly what was sent."""
    if value is None:
        return None
    name, *rest = value.split(b"|", 3)
    try:
        item = Item(name.decode(), int(rest[0]), int(rest[1]))
    except (IndexError, ValueError):
        return None
    return item if encode(item) == value else None


def rows_of(publisher: str, number: int) -> int:
    """How many rows a batch has: 1 to 20."""
    return 1 + shake_128(b"%s/%d" % (publisher.encode(), number)).digest(1)[0] % 20


def key_of(item: Item) -> bytes:
    """The key of a keyed publisher's item: a few, so that each comes again and again."""
    return b"%s/%d" % (item.publisher.encode(), item.number % 16)
