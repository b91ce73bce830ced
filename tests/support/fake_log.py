"""A log in memory that commands can be pointed at: frames as logd sends them, without a logd."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
from msgspec.structs import replace

from penstock.logd.cli.server import Clients
from penstock.logd.client import OffsetRange
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.rows import batch_records, slice_rows


@dataclass
class FakeLog:
    """What commands use of `LogClient`.

    Attributes:
        streams: Of each stream, the frames of each partition.
        read: Offsets of the frames that were sent, by stream.
        broken: Raised in the middle of reading.
        waits: How often a fetch may wait before it is interrupted.
        nodes: What each node of the cluster says of its gaps, or why it says nothing.
    """

    streams: dict[str, list[list[tuple[FrameHeader, pa.RecordBatch]]]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    read: list[tuple[str, int]] = field(default_factory=list)
    broken: Exception | None = None
    waits: int = 0
    nodes: dict[str, Any] = field(default_factory=dict)

    def clients(self) -> Clients:
        """What points commands at this log."""
        return Clients(log=lambda *_, **__: self)

    def add(
        self, stream: str, records: list[Record], *, per_frame: int, partition: int = 0
    ) -> None:
        """Store records, so many to a frame."""
        parts = self.streams.setdefault(stream, [])
        while len(parts) <= partition:
            parts.append([])
        frames = parts[partition]
        for first in range(0, len(records), per_frame):
            batch = build_batch(records[first : first + per_frame])
            base = frames[-1][0].next_offset if frames else self.starts.get(stream, 0)
            header = replace(describe_body(encode_body(batch), batch), base_offset=base)
            frames.append((header, batch))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stream(self, name: str) -> Any:
        self._frames(name, 0)
        return SimpleNamespace(name=name, incarnation="i-1", partitions=self.streams[name])

    def offsets(self, stream: str, partition: int = 0) -> OffsetRange:
        frames = self._frames(stream, partition)
        start = self.starts.get(stream, 0)
        return OffsetRange(start, frames[-1][0].next_offset if frames else start)

    def offset_for_timestamp(self, stream: str, timestamp_ns: int, partition: int = 0) -> int:
        for header, batch in self._frames(stream, partition):
            times = batch.column("timestamp").cast(pa.int64()).to_pylist()
            for delta, time_ns in enumerate(times):
                if time_ns >= timestamp_ns:
                    return header.base_offset + delta
        return self.offsets(stream, partition).end

    def purge(self, stream: str, before: int, partition: int = 0) -> int:
        self._frames(stream, partition)
        self.starts[stream] = before
        return before

    def cluster(self) -> Any:
        nodes = [SimpleNamespace(node=name, is_member=True) for name in self.nodes]
        return SimpleNamespace(cluster="demo" if len(nodes) > 1 else None, nodes=nodes)

    def gaps(self, node: str | None) -> Any:
        found = self.nodes[node or next(iter(self.nodes))]
        if isinstance(found, Exception):
            raise found
        return found

    def batches(
        self,
        stream: str,
        start: int,
        end: int | None = None,
        *,
        partition: int = 0,
        bytes_max: int = 0,
    ) -> Iterator[tuple[FrameHeader, pa.RecordBatch]]:
        for header, batch in self._frames(stream, partition):
            if header.next_offset > start and (end is None or header.base_offset < end):
                self.read.append((stream, header.base_offset))
                yield header, batch
                if self.broken is not None:
                    raise self.broken

    def records(
        self, stream: str, start: int, end: int, *, partition: int = 0
    ) -> Iterator[tuple[int, Record]]:
        for header, batch in self.batches(stream, start, end, partition=partition):
            yield from batch_records(header, slice_rows(header, batch, start, end))

    def fetch(
        self, stream: str, offset: int, *, partition: int, wait_ms: int = 0, **_: object
    ) -> Any:
        """One frame; with nothing left and a wait, the watching command has enough."""
        frames = self._frames(stream, partition)
        found = [frame for frame in frames if frame[0].next_offset > offset][:1]
        if wait_ms:
            self.waits -= 1
            if self.waits < 0:
                raise KeyboardInterrupt
        for header, _ in found:
            self.read.append((f"{stream}/{partition}", header.base_offset))
        return SimpleNamespace(
            frames=[(header, encode_body(batch)) for header, batch in found],
            next_offset=found[0][0].next_offset if found else offset,
            incarnation="i-1",
        )

    def find_ids(
        self, stream: str, ids: Sequence[str], start: int, end: int, partition: int = 0
    ) -> list[tuple[int, int]]:
        """This log has no index: a record may be anywhere."""
        return [(start, end)]

    def _frames(self, stream: str, partition: int) -> list[tuple[FrameHeader, pa.RecordBatch]]:
        if stream not in self.streams:
            raise RefusedError("UNKNOWN_STREAM", f"there is no stream {stream!r}", stream=stream)
        return self.streams[stream][partition]
