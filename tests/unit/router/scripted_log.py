"""A client of a logd that answers as a test says, for what reads spans through one."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from penstock.base.clock import BlockingClock, SystemClock
from penstock.logd.client import Fetched, OffsetRange
from penstock.logd.client.calls import Call
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.batch import Record, build_batch, decode_body, encode_body
from penstock.logd.format.frame import FrameHeader, crc32c
from penstock.router.read.logd_reader import Clients, LogdReader

Frame = tuple[FrameHeader, memoryview]


def frame(base: int, values: list[bytes], *, epoch: int = 1) -> Frame:
    """A frame as it was written."""
    body = encode_body(build_batch([Record("t", value, 1) for value in values]))
    header = FrameHeader(
        base_offset=base,
        leader_epoch=epoch,
        record_count=len(values),
        last_offset_delta=len(values) - 1,
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=1,
        max_timestamp_ns=1,
        schema_version=1,
    )
    return header, memoryview(body)


def thinned(whole: Frame, kept: list[int]) -> Frame:
    """What compaction has left of a frame."""
    header, rows = whole[0], decode_body(whole[1])
    body = encode_body(rows.take(kept) if kept else rows.slice(0, 0))
    changed = replace(
        header,
        record_count=len(kept),
        body_length=len(body),
        body_crc=crc32c(body),
        compacted=True,
    )
    return changed, memoryview(body)


def compacted(base: int, span: int, kept: list[int]) -> Frame:
    """A frame of `span` offsets of which some have a record left."""
    whole = frame(base, [b"%d" % (base + n) for n in range(span)])
    return whole if len(kept) == span else thinned(whole, kept)


class ScriptedClient:
    """Answers each fetch with the frames that hold the offset asked for and those after it.

    Attributes:
        frames: All there are.
        refusals: Answered before, the last one first.
        damaged: Offsets of a frame that is known to be damaged.
        rotted: Of one that is not, until it is asked for with a subject.
        replicas: Of the partition; a single node has one.
        asked: Requests, in their order.
    """

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.refusals: list[RefusedError] = []
        self.damaged: tuple[int, int] | None = None
        self.rotted: tuple[int, int] | None = None
        self.replicas: tuple[str, ...] = ("a",)
        self.asked: list[dict[str, Any]] = []

    server = "h:1"

    def close(self) -> None:
        """Nothing is open."""

    def stream(self, _: str) -> Any:
        part = SimpleNamespace(partition=0, replicas=self.replicas)
        return SimpleNamespace(partitions=[part])

    def ask(self, call: Call[Fetched]) -> Fetched:
        self.asked.append(call.request)
        if self.refusals:
            raise self.refusals.pop()
        offset = int(call.request["offset"])
        if self.rotted and self.rotted[0] <= offset < self.rotted[1]:
            if "subject" not in call.request:  # not looked at, but sent as it is
                raise CorruptError("CRC of the body")
            self.damaged = self.damaged or self.rotted
        if self.damaged and self.damaged[0] <= offset < self.damaged[1]:
            first, behind = self.damaged
            raise RefusedError("CORRUPT", "damaged", offset=first, next_offset=behind)
        found = [frame for frame in self.frames if frame[0].next_offset > offset]
        end = self.frames[-1][0].next_offset
        ends_at = self.damaged or self.rotted
        if ends_at and offset < ends_at[0]:
            end = ends_at[0]
            found = [frame for frame in found if frame[0].base_offset < end]
        return Fetched(
            frames=found,
            range=OffsetRange(0, end),
            high_watermark=end - 1,
            next_offset=end,
            epoch=1,
            incarnation="",
            log_epoch=7,
        )


class AtOnce:
    """That, as the asyncio client."""

    server = "h:1"

    def __init__(self, client: ScriptedClient) -> None:
        self._client = client

    async def ask(self, call: Call[Fetched]) -> Fetched:
        return self._client.ask(call)

    async def __aexit__(self, *_: object) -> None:
        pass


def reading(
    client: Any,
    *,
    retry_timeout_s: float = 0.0,
    clock: BlockingClock | None = None,
    sizes: Any = None,
) -> LogdReader:
    """Through clients that are asked instead of logd's; `sizes` is asked how large records are."""
    asked: Any = sizes or AtOnce(client)
    return LogdReader(
        client.server,
        retry_timeout_s=retry_timeout_s,
        clock=clock or SystemClock(),
        clients=Clients(lambda *_, **__: client, lambda *_, **__: asked),
    )


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]
