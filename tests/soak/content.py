"""What the soak's publishers send: records from which a reader can tell that nothing was changed.

A payload names its publisher, its number and its row, and goes on with bytes that follow from them.
Of what has keys, these and the tombstones follow from the item too; a tombstone has no payload, and
names its item in a header.
"""

from collections.abc import Mapping
from enum import Enum
from hashlib import shake_128
from typing import Final, NamedTuple

from penstock.logd.batch import Record

ITEM_HEADER: Final = "Soak-Item"

_LONG_ONE_IN = 32
_TOMBSTONE_ONE_IN = 8
_HOT_KEYS = 12
_COLD_ONE_IN = 16
_COLD_NUMBERS = 64


class Item(NamedTuple):
    """One record: `row` counts within a batch, and is 0 in a plain message."""

    publisher: str
    number: int
    row: int = 0


class Keys(Enum):
    """What keys a publisher's records have."""

    NONE = "none"
    FEW = "a few, so that each comes again and again"
    CHANGING = "a few that come again and again, others for a while and then never; tombstones too"


def encode(item: Item) -> bytes:
    """The payload of an item: always the same one, 30 bytes to 40 KB, mostly below 1 KB."""
    head = _name(item) + b"|"
    draw = shake_128(head).digest(4)
    size = int.from_bytes(draw[:2]) % 1000
    if draw[2] % _LONG_ONE_IN == 0 and item.row == 0:
        size *= 40
    return head + shake_128(head + b"body").digest(size)


def value_of(item: Item, keys: Keys) -> bytes | None:
    """The payload of a publisher's item, None for a tombstone."""
    return None if is_tombstone(item, keys) else encode(item)


def headers_of(item: Item, keys: Keys) -> dict[str, str]:
    """The headers that name an item whose value does not."""
    return {ITEM_HEADER: _name(item).decode()} if is_tombstone(item, keys) else {}


def key_of(item: Item, keys: Keys) -> bytes | None:
    """The key of a publisher's item."""
    match keys:
        case Keys.NONE:
            return None
        case Keys.FEW:
            return b"%s/%d" % (item.publisher.encode(), item.number % 16)
        case Keys.CHANGING:
            draw = _draw(item)
            cold = draw[0] % _COLD_ONE_IN == 0
            suffix = b"cold-%d-%d" % (item.number // _COLD_NUMBERS, draw[1] % 2)
            return item.publisher.encode() + b"/%b" % (
                suffix if cold else b"%d" % (draw[1] % _HOT_KEYS)
            )


def is_tombstone(item: Item, keys: Keys) -> bool:
    """Whether a publisher's item deletes its key."""
    return keys is Keys.CHANGING and _draw(item)[2] % _TOMBSTONE_ONE_IN == 0


def item_of(record: Record, keys: Mapping[str, Keys]) -> Item | None:
    """The item of a record; None when the record is not exactly what was sent.

    Args:
        record: As it was read.
        keys: Of the publishers, by name.
    """
    name = dict(record.headers).get(ITEM_HEADER, b"") if record.value is None else record.value
    publisher, *rest = name.split(b"|", 3)
    try:
        item = Item(publisher.decode(), int(rest[0]), int(rest[1]))
        kind = keys[item.publisher]
    except (IndexError, KeyError, ValueError):
        return None
    same = record.value == value_of(item, kind) and record.key == key_of(item, kind)
    return item if same else None


def rows_of(publisher: str, number: int) -> int:
    """How many rows a batch has: 1 to 20."""
    return 1 + shake_128(b"%s/%d" % (publisher.encode(), number)).digest(1)[0] % 20


def _name(item: Item) -> bytes:
    return b"%s|%d|%d" % (item.publisher.encode(), item.number, item.row)


def _draw(item: Item) -> bytes:
    return shake_128(_name(item) + b"key").digest(3)
