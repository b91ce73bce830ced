"""SetCursor and FetchCursor: positions of consumers, in the same place as everybody's.

They are kept by the node that leads the first partition of `__cursors`; clients find it in the
metadata. What an offset means is the consumer's business: Liftbridge's Go client stores that of the
last record it had, logd's own that of the next one.
"""

import grpc

from penstock.logd.core.cursors import CursorKey
from penstock.logd.cursors import CursorStore
from penstock.logd.fetch.api import Cursors
from penstock.logd.fetch.streams import Streams
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.publishing import Context
from penstock.logd.wire import logd_liftbridge_pb2 as wire

_NONE = -1


class Positions:
    """Answers consumers."""

    def __init__(self, streams: Streams, cursors: Cursors) -> None:
        self._streams = streams
        self._cursors = cursors

    async def set(self, request: wire.SetCursorRequest, _: Context) -> wire.SetCursorResponse:
        """Store a position; it may go back. It is durable when the answer comes."""
        key = _key(request)
        if request.offset < 0:
            text = f"offset: {request.offset} is below 0"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
        cursors = await self._ready(key)
        await cursors.commit([(key, request.offset, None)], rewind=True)
        return wire.SetCursorResponse()

    async def fetch(self, request: wire.FetchCursorRequest, _: Context) -> wire.FetchCursorResponse:
        """The position; -1 where there is none of this stream's incarnation."""
        key = _key(request)
        found = (await self._ready(key)).get(key)
        offset = next((cursor["offset"] for cursor in found if cursor["current"]), _NONE)
        return wire.FetchCursorResponse(offset=offset)

    async def _ready(self, key: CursorKey) -> CursorStore:
        outline = self._streams.outline(key.stream)
        if not 0 <= key.partition < outline.partitions:
            text = f"stream {key.stream!r} has no partition {key.partition}"
            raise CallError(grpc.StatusCode.NOT_FOUND, text)
        return await self._cursors.ready()


def _key(request: wire.SetCursorRequest | wire.FetchCursorRequest) -> CursorKey:
    if not request.stream or not request.cursorId:
        text = "stream and cursorId: both are needed"
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
    return CursorKey(request.cursorId, request.stream, request.partition)
