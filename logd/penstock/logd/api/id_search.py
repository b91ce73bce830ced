"""Which ranges of a partition may hold records with an id; the index for it is made afterwards.

An answer comes at once, by what is indexed. Then the rest of the partition is indexed in a thread,
one for all partitions, which works half of the time: publishers and readers go first.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from penstock.base.clock import monotonic_ns
from penstock.logd.api.operations import Document, FindIds
from penstock.logd.errors import LogdError, RefusedError
from penstock.logd.ids.filters import FilterHeader
from penstock.logd.ids.index import IdIndex
from penstock.logd.limits import ID_INDEX_STEP_BYTES
from penstock.logd.partition.partition import Partition
from penstock.logd.replication.log_state import Epochs
from penstock.logd.storage import CommitLog

_log = structlog.get_logger()
_INDEXES_MAX: Final = 64
"""Indexes whose headers are held in memory; the one that was not asked for the longest goes."""


class IdSearch:
    """Finds ranges, and has partitions indexed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ids")
        self._indexes: dict[CommitLog, IdIndex] = {}
        self._indexing: dict[CommitLog, asyncio.Task[None]] = {}

    async def find(self, partition: Partition, request: FindIds) -> Document:
        """Find the ranges in [offset, upto) that may hold a record with one of the ids.

        Raises:
            RefusedError: `STREAM_RECREATED`.
            OSError: The index cannot be read.
        """
        incarnation, log = partition.stream.incarnation, partition.log
        if request.incarnation not in (None, incarnation):
            message = f"stream {request.stream!r} was deleted and made again"
            raise RefusedError("STREAM_RECREATED", message, incarnation=incarnation)
        start, end = max(request.offset, partition.start_offset), request.upto
        found = [(start, end)] if start < end else []
        if found and log.cipher is None:  # what is encrypted has no index in clear
            epochs = Epochs(partition.role.epochs.entries)
            work = self._thread.submit(self._find, log, epochs, request.ids, start, end)
            found = await asyncio.wrap_future(work)
            if log not in self._indexing:
                self._indexing[log] = asyncio.create_task(self._index_rest(partition))
        return {"incarnation": incarnation, "ranges": [list(part) for part in found]}

    async def _index_rest(self, partition: Partition) -> None:
        """Index what is committed, a step at a time."""
        log = partition.log
        try:
            is_whole = False
            while not is_whole and not partition.closed:
                epochs = Epochs(partition.role.epochs.entries)
                end = partition.high_watermark + 1
                begun_ns = monotonic_ns()
                work = self._thread.submit(self._extend, log, epochs, end)
                is_whole = await asyncio.wrap_future(work)
                await asyncio.sleep((monotonic_ns() - begun_ns) / 1e9)
        except (OSError, LogdError) as error:  # clients read what is not indexed
            _log.warning("id_index_failed", directory=str(log.directory), reason=str(error))
        finally:
            del self._indexing[log]

    def _find(
        self, log: CommitLog, epochs: Epochs, ids: list[str], start: int, end: int
    ) -> list[tuple[int, int]]:
        index = self._index_of(log)
        index.drop(_validity(log, epochs))
        return index.candidates(ids, start, end)

    def _extend(self, log: CommitLog, epochs: Epochs, end: int) -> bool:
        """Index a step; returns whether nothing whole is left."""
        index = self._index_of(log)
        index.drop(_validity(log, epochs))
        return index.extend(end, bytes_max=ID_INDEX_STEP_BYTES)

    def _index_of(self, log: CommitLog) -> IdIndex:
        index = self._indexes.pop(log, None) or IdIndex(log)
        self._indexes[log] = index
        while len(self._indexes) > _INDEXES_MAX:
            del self._indexes[next(iter(self._indexes))]
        return index


def _validity(log: CommitLog, epochs: Epochs) -> Callable[[FilterHeader], bool]:
    """Return what tells whether a filter is of the records that the log has."""

    def is_valid(header: FilterHeader) -> bool:
        _, reaches = epochs.end_offset_for(header.epoch, log.end_offset)
        return header.next_offset <= reaches

    return is_valid
