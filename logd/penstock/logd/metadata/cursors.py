"""Consumers' cursors: what is committed, what is on its way, and what may be committed next.

A cursor is a record of the internal stream `__cursors`:

    key     b"consumer,stream,partition"
    value   {"offset": 7, "incarnation": "...", "epoch": 3}; null when the cursor is deleted

`epoch` is that in which a consumer group granted the partition to who committed last; without one,
no member of a group ever did. The last record of a key counts. What has been appended counts for
the checks of the next request, what has been committed for what consumers are told.
"""

import re
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.limits import CONSUMER_LENGTH_MAX

_CONSUMER: Final = re.compile(r"[A-Za-z0-9_.:@/-]+")


class CursorKey(NamedTuple):
    """Consumer, stream and partition of a cursor."""

    consumer: str
    stream: str
    partition: int

    def encode(self) -> bytes:
        """The record's key."""
        return f"{self.consumer},{self.stream},{self.partition}".encode()


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """The next record a consumer wants, of the stream with this incarnation.

    Attributes:
        epoch: In which its group granted the partition to who committed; 0: it is no group's.
    """

    offset: int
    incarnation: str
    epoch: int = 0

    def encode(self) -> bytes:
        """The record's value."""
        granted = {"epoch": self.epoch} if self.epoch else {}
        return orjson.dumps({"offset": self.offset, "incarnation": self.incarnation} | granted)


Change = tuple[CursorKey, CursorPosition | None]


class CursorTable:
    """Every cursor of a logd.

    Args:
        limit: Cursors at a time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._appended: dict[CursorKey, CursorPosition] = {}
        self._committed: dict[CursorKey, CursorPosition] = {}
        self._order: list[CursorKey] = []

    def __len__(self) -> int:
        """Committed cursors."""
        return len(self._order)

    def check(self, changes: Iterable[Change], *, rewind: bool) -> None:
        """Check that all of these may be committed together.

        Args:
            changes: One per key.
            rewind: Whether an offset may be lower than the one before.

        Raises:
            RefusedError: `BAD_CONSUMER`, `CURSOR_BEHIND`, `TOO_MANY_CURSORS`, or `BAD_REQUEST` when
                a key is there twice.
        """
        seen: set[CursorKey] = set()
        for key, position in changes:
            check_consumer(key.consumer)
            if key in seen:
                raise RefusedError("BAD_REQUEST", f"cursor {key.encode().decode()} is there twice")
            seen.add(key)
            if position is not None and not rewind:
                self._check_forward(key, position)
        new = sum(key not in self._appended for key in seen)
        if new and len(self._appended) + new > self._limit:
            message = f"there are {len(self._appended)} cursors of at most {self._limit}"
            raise RefusedError("TOO_MANY_CURSORS", message, limit=self._limit)

    def append(self, changes: Iterable[Change]) -> None:
        """Take note of what is being written: later checks see it."""
        for key, position in changes:
            if position is None:
                self._appended.pop(key, None)
            else:
                self._appended[key] = position

    def commit(self, changes: Iterable[Change]) -> None:
        """Take note of what is committed, in the order in which it was appended."""
        for key, position in changes:
            present = key in self._committed
            if position is not None:
                self._committed[key] = position
                if not present:
                    insort(self._order, key)
            elif present:
                del self._committed[key]
                del self._order[bisect_right(self._order, key) - 1]

    def get(self, key: CursorKey) -> CursorPosition | None:
        """The committed position."""
        return self._committed.get(key)

    def appended(self, key: CursorKey) -> CursorPosition | None:
        """The position, as it will be once what is under way is committed."""
        return self._appended.get(key)

    def walk(self, after: CursorKey | None = None) -> Iterator[tuple[CursorKey, CursorPosition]]:
        """Committed cursors in order of consumer, stream, partition; the table must not change."""
        first = 0 if after is None else bisect_right(self._order, after)
        for index in range(first, len(self._order)):
            key = self._order[index]
            yield key, self._committed[key]

    def all_appended(self) -> list[tuple[CursorKey, CursorPosition]]:
        """Every cursor, those under way included."""
        return list(self._appended.items())

    def _check_forward(self, key: CursorKey, position: CursorPosition) -> None:
        before = self._appended.get(key)
        if before is None or before.incarnation != position.incarnation:
            return
        if position.offset < before.offset:
            raise RefusedError(
                "CURSOR_BEHIND",
                f"cursor {key.encode().decode()} is at {before.offset} and does not go back to"
                f" {position.offset} unless asked to rewind",
                offset=before.offset,
            )


def check_consumer(consumer: str) -> None:
    """Check a consumer's name; it becomes part of a key.

    Raises:
        RefusedError: `BAD_CONSUMER`.
    """
    if not _CONSUMER.fullmatch(consumer) or len(consumer) > CONSUMER_LENGTH_MAX:
        message = (
            f"consumer {consumer[:80]!r}: 1 to {CONSUMER_LENGTH_MAX} of A-Z a-z 0-9 _ . : @ / -"
        )
        raise RefusedError("BAD_CONSUMER", message)


def decode_change(key: bytes | None, value: bytes | None) -> Change:
    """Decode a stored record of a cursor.

    Raises:
        CorruptError: It is not a record of a cursor.
    """
    try:
        consumer, stream, partition = (key or b"").decode().split(",")
        where = CursorKey(consumer, stream, int(partition))
        if value is None:
            return where, None
        document = orjson.loads(value)
        return where, CursorPosition(
            int(document["offset"]), str(document["incarnation"]), int(document.get("epoch", 0))
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"not a cursor: key {key!r}: {error!r}") from None
