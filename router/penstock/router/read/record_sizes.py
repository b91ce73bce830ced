"""Record sizes, estimated by samples of many partitions at a time.

Planning fetches a sample where a batch begins and where it would end. Each frame says what it
decodes to, so no sample is decoded, and all partitions are asked at once: of 256 partitions one
after the other, decoded, a trigger took 1.4 to 2.0 s, and takes 50 to 85 ms so. A reader that may
read one subject alone is told nothing of other records, so where nothing matches the search goes on
for some MiB, and the batch ends where it ended.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.logd.client import AsyncLogClient, Fetched, decoded_size
from penstock.logd.errors import CorruptError, UnavailableError
from penstock.router.errors import DataLossError, LogRefusedError
from penstock.router.read.async_calls import AsyncCalls
from penstock.router.read.fetch import NotPermittedError, look_at, warn
from penstock.router.read.offsets import Span

SAMPLE_BYTES: Final = 8 * 1024
"""Bytes asked for to see how large records are; a frame comes whole, however large it is."""

RECORD_BYTES: Final = 1024 * 1024
"""A record that nobody knows is taken to have so many: what NATS lets pass by default."""

AT_A_TIME: Final = 32
"""Looks under way; a server takes twice as many of a connection."""


@dataclass(frozen=True, slots=True)
class Look:
    """Request for a sample of about `max_bytes` on disk at an offset of a span."""

    span: Span
    offset: int
    max_bytes: int = SAMPLE_BYTES


class Sample(NamedTuple):
    """The records at a sampled position.

    Attributes:
        size: Average bytes of memory of one offset from `first` on, rounded up; None: the records
            cannot be read; 0: none matches.
        first: First offset of the frames; the requested offset, if there is none.
        seen: The offset after those that were looked at.
    """

    size: int | None
    first: int
    seen: int


Found = Callable[[Look, Sample], None]
"""Takes what was found."""


class RecordSizes:
    """Sampler of records.

    Args:
        client: Asks logd.
    """

    def __init__(self, client: AsyncCalls) -> None:
        self._client = client
        self._is_narrowed = False  # to records of its subject

    def ask(self, looks: Iterable[Look], subject: str | None, found: Found) -> None:
        """Look, and tell what is found of each.

        Args:
            looks: Positions to sample.
            subject: Subject of the records that are read. Others count as well, if they may be
                read: where none matches here, many may further on.
            found: Told.

        Raises:
            UnavailableError: logd is away, or has no time for this reader: the first that is put
                off ends it. `found` has what was told until then.
        """
        left = deque(looks)
        self._client.run(lambda client: self._ask(client, left, subject, found))

    async def _ask(
        self, client: AsyncLogClient, left: deque[Look], subject: str | None, found: Found
    ) -> None:
        async def work() -> None:
            while left:
                look = left.popleft()
                try:
                    found(look, await self._look(client, look, subject))
                except UnavailableError:
                    left.clear()
                    raise

        if left:  # alone at first: who is put off, or may read its subject alone, is refused once
            first = left.popleft()
            found(first, await self._look(client, first, subject))
        workers = [work() for _ in range(min(AT_A_TIME, len(left)))]
        for failed in await asyncio.gather(*workers, return_exceptions=True):
            if failed is not None:
                raise failed

    async def _look(self, client: AsyncLogClient, look: Look, subject: str | None) -> Sample:
        try:
            return sample_of(await self._fetch(client, look, subject), look.offset)
        except (DataLossError, LogRefusedError, CorruptError) as error:
            where = f"{look.span.stream}/{look.span.partition} {look.offset}"
            warn(f"how large records are at {where}: {error}")
            return Sample(None, look.offset, look.offset + 1)

    async def _fetch(self, client: AsyncLogClient, look: Look, subject: str | None) -> Fetched:
        only = subject if self._is_narrowed else None
        try:
            return await look_at(
                client, look.span, look.offset, subject=only, max_bytes=look.max_bytes
            )
        except NotPermittedError:
            if only == subject:
                raise
        self._is_narrowed = True  # asked again it would be one more refusal that logd notes
        return await self._fetch(client, look, subject)


def sample_of(fetched: Fetched, offset: int) -> Sample:
    """Return the sample that was fetched.

    Args:
        fetched: Frames, or a range that has none.
        offset: The requested offset; the first frame may begin before it.

    Raises:
        CorruptError: A frame holds no batch.
    """
    size = sum(decoded_size(body) for _, body in fetched.frames)
    headers = [header for header, _ in fetched.frames]
    first = headers[0].base_offset if headers else offset
    seen = max([fetched.next_offset, *(header.next_offset for header in headers)])
    return Sample(-(-size // (seen - first)), first, seen)
