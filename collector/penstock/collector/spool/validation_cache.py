"""Verdicts on units that are on their way through a spool, so none is validated twice.

A source that answers for each record (OTLP) has them validated before they are spooled. What is
read back is byte for byte what was validated, so its verdicts hold. They are an advantage and no
promise: what waits long, or over a restart, is validated again.
"""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from sys import getsizeof
from typing import Final

from penstock.specs.validate.verdict import Accepted

RECORDS_MAX: Final = 20_000
BYTES_MAX: Final = 32 * 1024 * 1024
"""Bound of the verdicts' texts, which senders choose: one may have 128 long names. The rest of
20,000 verdicts takes some 5 MiB. Beyond either bound none is kept: what is read next stays."""

Known = Sequence[Accepted | None]
"""The verdict on each line of a unit; None where it was refused."""


class ValidationCache:
    """Verdicts on units in the order in which they are offered, become durable and are read.

    Args:
        records_max: The most that are held.
        bytes_max: Bound of the texts in them.

    Attributes:
        records: Verdicts that are held.
        size: Bytes of their texts.
    """

    def __init__(self, *, records_max: int = RECORDS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._units: deque[tuple[asyncio.Future[int], int, Known]] = deque()
        self.records = self.size = 0

    def keep(self, offer: asyncio.Future[int], verdicts: Known) -> None:
        """Have a unit's verdicts at hand for its reader, if there is room.

        Args:
            offer: The unit's offer; yields its offset. The unit may be read as soon as that is
                known, before tasks that wait for the offer go on.
            verdicts: The verdicts on its lines.
        """
        if self.records + len(verdicts) > self._records_max:
            return
        by_names = {id(one.names): one for one in verdicts if one is not None}  # records of a shape
        size = sum(map(_size, by_names.values()))
        if self.size + size <= self._bytes_max:
            self._units.append((offer, size, verdicts))
            self.records += len(verdicts)
            self.size += size

    def take(self, offset: int) -> Known:
        """Return the verdicts of the unit that is read now, or none; drop those before it."""
        while self._units and (reached := _offset_of(self._units[0][0])) <= offset:
            _, size, verdicts = self._units.popleft()
            self.records -= len(verdicts)
            self.size -= size
            if reached == offset:
                return verdicts
        return ()


def _offset_of(offer: asyncio.Future[int]) -> float:
    """Return a unit's offset: infinite while it is not durable, -1 where it was not written."""
    if not offer.done():
        return math.inf
    return -1 if offer.cancelled() or offer.exception() is not None else offer.result()


def _size(verdict: Accepted) -> int:
    """Return the bytes of a verdict's texts; verdicts with the very same names share them."""
    texts = (verdict.schema, verdict.service, *verdict.names)
    return sum(map(getsizeof, texts)) + getsizeof(verdict.names)
