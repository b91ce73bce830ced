"""The drop journal: what transforms dropped, bounded in bytes and age, so that it can be found.

Each frame of a commit log holds the drops that were recorded within a second or so, as one record:

    subject   empty
    headers   drops   layout of the value: 1
              count   drops in the value
              missed  JSON, a list of [source, step, reason, records]: drops since the frame before
                      that were not recorded because there were too many
    value     zstd of the drops, oldest first, one JSON object a line:
              time_unix_nano  when it was dropped
              source          name of the source that received the record
              step            name of the transform; `decode` before all transforms
              reason          filtered, sampled, throttled, deduplicated or aggregated
              service, trace_id, record_id
                              the record's own; empty where it has none
              hash            hexadecimal BLAKE2b, 128 bits, of the record's line as it arrived,
                              with its resource
              text            the beginning of its body, else of its name, else of the record as
                              JSON, redacted as the record would have been in the log
    timestamp when the first of them was dropped

Frames are synced about once a second, and before each checkpoint. A kill therefore loses drops only
of records that are read and dropped again; others of these are in the journal twice. A torn frame
at the end is cut when the log is opened. A journal that cannot be opened is set aside as
`drops.damaged`, for it must not keep the collector from its work.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import orjson
import structlog
import zstandard

from penstock.base.clock import Clock
from penstock.collector.decompression import unzstd
from penstock.collector.drops.query import RecordQuery
from penstock.collector.drops.sampler import Drop, DropKind, DropSampler, Missed
from penstock.collector.errors import SpoolFailedError, SpoolFullError, UndecodableError
from penstock.collector.spool.journal import Entry, Journal, Read, read_record, undamaged
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import Record
from penstock.logd.format.frame import FrameHeader
from penstock.logd.storage import CommitLog

FLUSH_S: Final = 1.0
"""Seconds after which what was recorded is written."""

CHUNK_BYTES: Final = 256 * 1024
"""Bytes of recorded drops that are written at once, however young they are."""

_CHUNK_BYTES_MAX: Final = 64 * CHUNK_BYTES
"""Bytes that a frame's value may become; a frame is written before the last slice of records ends.
"""

_TRIM_S: Final = 60.0
"""Pause between looks for entries that are too old."""

_LAYOUT: Final = b"1"
_PART: Final = 256
_SECOND_NS: Final = 1_000_000_000


class DropJournal:
    """Writes drops in the background, and finds them.

    Args:
        journal: Open; its commits run elsewhere.
        sampler: Chose what is added.
        max_age_s: Seconds that a drop is kept.

    Attributes:
        lost: Recorded drops that the disk did not take.
    """

    def __init__(
        self, journal: Journal, sampler: DropSampler, clock: Clock, *, max_age_s: float
    ) -> None:
        self.journal = journal
        self.sampler = sampler
        self.max_age_s = max_age_s
        self.lost = 0
        self.missed = 0
        self._clock = clock
        self._lines: list[bytes] = []
        self._bytes = 0
        self._first_ns = 0
        self._begun = asyncio.Event()
        self._is_full = asyncio.Event()
        self._writing = asyncio.Lock()
        self._fails = False
        self._log = structlog.get_logger()

    def add(self, drops: Iterable[Drop]) -> None:
        """Record drops; they are written soon."""
        now_ns = self._clock.unix_ns()
        if not self._lines:
            self._first_ns = now_ns
        for drop in drops:
            line = orjson.dumps(
                {
                    "time_unix_nano": now_ns,
                    "source": drop.kind.source,
                    "step": drop.kind.step,
                    "reason": drop.kind.reason,
                    "service": drop.service,
                    "trace_id": drop.trace_id,
                    "record_id": drop.record_id,
                    "hash": drop.digest,
                    "text": drop.text,
                }
            )
            self._lines.append(line)
            self._bytes += len(line)
        self._begun.set()
        if self._bytes >= CHUNK_BYTES:
            self._is_full.set()

    async def run(self) -> None:
        """Write what is recorded and remove what is too old, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TRIM_S):
                    await self._begun.wait()
            if self._lines:
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_S):
                        await self._is_full.wait()
            await self.offer()
            await self._trim()

    async def offer(self) -> None:
        """Hand what is recorded to the journal, which writes it at its next commit."""
        async with self._writing:
            entry, may_remove = self._entry(), True
            while entry is not None and may_remove and not self.journal.has_room(entry.size):
                may_remove = await self._remove_oldest()
                entry = self._entry()  # more may have been recorded meanwhile
            # Nothing waits from here on: an end of `run` loses none that were taken.
            lines, self._lines, self._bytes = self._lines, [], 0
            self._begun.clear()
            self._is_full.clear()
            if entry is None:
                return
            self.missed += self.sampler.take_missed().total()
            try:
                future = self.journal.offer(entry)
            except SpoolFullError as error:
                self._lose(len(lines), error)
            else:
                future.add_done_callback(partial(self._settle, len(lines)))

    async def flush(self) -> None:
        """Write what is recorded; on return it can be read."""
        await self.offer()
        await self.journal.commit()

    def matching(self, query: RecordQuery, missed: Missed) -> AsyncIterator[Any]:
        """Find drops, oldest first; it reads on another thread.

        Args:
            query: Choice of drops.
            missed: Gets the drops of the same time, source, step and reason that are not recorded.
        """
        since_ns = self._clock.unix_ns() - int(self.max_age_s * 1e9)
        read = self.journal.frames
        found = find_drops(self.journal.log, query, missed, since_ns=since_ns, read=read)
        return in_parts(found)

    def facts(self) -> dict[str, int]:
        """Return the journal's figures for `/status`."""
        return {
            "bytes": self.journal.used_bytes,
            "max_bytes": self.journal.bytes_max,
            "recorded": self.sampler.recorded,
            "not_recorded": self.missed + self.sampler.missed.total(),
            "lost": self.lost,
        }

    def _entry(self) -> Entry | None:
        """What is recorded, as the journal stores it; None: nothing is."""
        if not self._lines:
            return None
        return Entry(_record(self._lines, self.sampler.missed, self._first_ns))

    async def _remove_oldest(self) -> bool:
        """Remove the oldest segment; return whether there was one that could be."""
        start, end = self.journal.log.start_offset, await self.journal.first_segment_end()
        if end is None:
            return False
        await self.journal.delete_before(end)
        return self.journal.log.start_offset != start

    async def _trim(self) -> None:
        """Remove the segments whose newest drop is too old."""
        until_ns = self._clock.unix_ns() - int(self.max_age_s * 1e9)
        old = [one for one in self.journal.log.segments() if one.newest_ns < until_ns]
        if not old or old[-1].next_offset <= self.journal.log.start_offset:
            return
        if old[-1].next_offset == self.journal.log.end_offset:
            self.journal.wants_room = True  # the one that is written is too old as a whole
        await self.journal.delete_before(old[-1].next_offset)

    def _settle(self, count: int, future: "asyncio.Future[int]") -> None:
        error = None if future.cancelled() else future.exception()
        if error is None:
            self._fails = False
        elif isinstance(error, SpoolFailedError):
            self._lose(count, error)
        else:
            raise error

    def _lose(self, count: int, error: Exception) -> None:
        self.lost += count
        if not self._fails:
            self._log.warning("drops_write_failed", error=str(error))
        self._fails = True


def find_drops(
    log: CommitLog,
    query: RecordQuery,
    missed: Missed,
    *,
    since_ns: int = 0,
    read: Read[tuple[FrameHeader, bytes]] | None = None,
) -> Iterator[dict[str, Any]]:
    """The drops of a journal that a query takes, oldest first; what is damaged is left out.

    Args:
        log: The journal's.
        query: Choice of drops.
        missed: Gets the drops of the same time, source, step and reason that are not recorded.
        since_ns: Unix time in nanoseconds; earlier drops count as removed.
        read: Reads it; by default the log.

    Raises:
        OSError: The disk does not give something.
    """
    matching = _matching(log, query, missed, max(since_ns, query.from_ns), read or log.frames)
    return iter(deque(matching, query.limit)) if query.limit else matching


def _matching(
    log: CommitLog,
    query: RecordQuery,
    missed: Missed,
    since_ns: int,
    read: Read[tuple[FrameHeader, bytes]],
) -> Iterator[dict[str, Any]]:
    needles = [
        orjson.dumps(value)[1:-1]
        for value in (query.service, query.trace_id, query.record_id, query.text)
        if value
    ]
    for header, body in _frames(log, read):
        try:
            lines, unrecorded = read_chunk(body)
        except UndecodableError as error:
            offset = header.base_offset
            structlog.get_logger().warning("drops_unreadable", offset=offset, error=str(error))
            continue
        if header.first_timestamp_ns >= since_ns - int(FLUSH_S * _SECOND_NS):
            for kind, count in unrecorded.items():
                if _is_wanted(kind, query):
                    missed[kind] += count
        for line in lines:
            if all(needle in line for needle in needles):
                facts = orjson.loads(line)
                if facts["time_unix_nano"] >= since_ns and query.takes(facts):
                    yield facts


def _frames(
    log: CommitLog, read: Read[tuple[FrameHeader, bytes]]
) -> Iterator[tuple[FrameHeader, bytes]]:
    """Read on from the new start where the journal removed its oldest segment meanwhile."""
    offset = log.start_offset
    while True:
        try:
            for header, body in undamaged(read, offset, salvage=True):
                offset = header.next_offset
                yield header, body
        except RefusedError:
            if log.start_offset <= offset:
                raise
            offset = log.start_offset
        else:
            return


def _is_wanted(kind: DropKind, query: RecordQuery) -> bool:
    return (
        query.source in ("", kind.source)
        and query.step in ("", kind.step)
        and kind.reason.startswith(query.reason)
    )


async def in_parts(found: Iterator[Any]) -> AsyncIterator[Any]:
    """Iterate on another thread, some at a time."""
    while part := await asyncio.to_thread(list, islice(found, _PART)):
        for one in part:
            yield one


def _record(lines: list[bytes], missed: Missed, first_ns: int) -> Record:
    left_out = [[*kind, count] for kind, count in missed.items()]
    headers = (
        ("drops", _LAYOUT),
        ("count", str(len(lines)).encode()),
        ("missed", orjson.dumps(left_out)),
    )
    value = zstandard.compress(b"\n".join(lines))
    return Record(subject="", value=value, timestamp_ns=first_ns, headers=headers)


def read_chunk(body: bytes) -> tuple[list[bytes], Missed]:
    """Return the drops of a frame, each as a line of JSON, and those that were not recorded.

    Raises:
        UndecodableError: It is no frame of a drop journal, or of a later layout.
    """
    _, headers, value = read_record(body)
    if headers.get("drops") != _LAYOUT:
        raise UndecodableError("not drops in a layout that is known here")
    try:
        missed = orjson.loads(headers["missed"])
        left_out = Missed({DropKind(*names): int(count) for *names, count in missed})
        count = int(headers["count"])
    except (ValueError, TypeError, KeyError) as error:
        raise UndecodableError(f"not drops: {error}") from None
    lines = unzstd(value, _CHUNK_BYTES_MAX).split(b"\n")
    if len(lines) != count:
        raise UndecodableError(f"{len(lines)} drops instead of {count}")
    return lines, left_out
