"""Messages as senders frame them, and side by side in one unit of the spool.

A unit holds messages octet-counted: ``LEN SP message`` back to back.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.collector.errors import UndecodableError


class Message(NamedTuple):
    """One message; `truncated` when `text` is only its beginning."""

    text: bytes
    truncated: bool = False


def pack_messages(messages: Iterable[bytes]) -> bytes:
    """Messages as a unit holds them."""
    return b"".join(b"%d %b" % (len(message), message) for message in messages)


def messages_in(unit: bytes) -> Iterator[bytes]:
    """The messages of a unit.

    Raises:
        UndecodableError: It is none.
    """
    at = 0
    while at < len(unit):
        space = unit.find(b" ", at, at + 12)
        length = unit[at:space]
        if space < 0 or not length.isdigit() or space + 1 + int(length) > len(unit):
            raise UndecodableError("not a unit of messages")
        at = space + 1 + int(length)
        yield unit[space + 1 : at]
