"""CreateStream, DeleteStream, PauseStream and SetStreamReadonly."""

from collections.abc import Callable, Sequence

import grpc

from penstock.logd.fetch.stream_settings import split_settings
from penstock.logd.fetch.streams import Streams
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.publishing import Context
from penstock.logd.liftbridge.stream_settings import settings_of
from penstock.logd.security.principal import Principal, current_caller
from penstock.logd.wire import logd_liftbridge_pb2 as wire


class Managing:
    """Changes streams, of the daemon or its cluster.

    Args:
        streams: Those.
        creator: For whose quota a stream counts that somebody creates.
    """

    def __init__(self, streams: Streams, creator: Callable[[Principal], str]) -> None:
        self._streams = streams
        self._creator = creator

    async def create(
        self, request: wire.CreateStreamRequest, __: Context
    ) -> wire.CreateStreamResponse:
        """Create a stream; one that is there already is refused, whatever its options."""
        config, replication = split_settings(settings_of(request))
        creator = self._creator(current_caller())
        _, created = await self._streams.create(config, replication, creator=creator)
        if not created:
            text = f"stream {config.name!r} is there already"
            raise CallError(grpc.StatusCode.ALREADY_EXISTS, text)
        return wire.CreateStreamResponse()

    async def delete(
        self, request: wire.DeleteStreamRequest, __: Context
    ) -> wire.DeleteStreamResponse:
        """Delete a stream and its data."""
        await self._streams.delete(request.name)
        return wire.DeleteStreamResponse()

    async def pause(
        self, request: wire.PauseStreamRequest, __: Context
    ) -> wire.PauseStreamResponse:
        """Take a whole stream off its subject; a publish over gRPC resumes it."""
        self._check_whole(request.name, request.partitions)
        await self._streams.set_mode(request.name, paused=True, read_only=None)
        return wire.PauseStreamResponse()

    async def set_readonly(
        self, request: wire.SetStreamReadonlyRequest, __: Context
    ) -> wire.SetStreamReadonlyResponse:
        """Make a whole stream read-only, or writable."""
        self._check_whole(request.name, request.partitions)
        await self._streams.set_mode(request.name, paused=None, read_only=request.readonly)
        return wire.SetStreamReadonlyResponse()

    def _check_whole(self, stream: str, partitions: Sequence[int]) -> None:
        """Refuse what would be done to some partitions only."""
        count = self._streams.outline(stream).partitions
        unknown = [number for number in partitions if not 0 <= number < count]
        if unknown:
            text = f"stream {stream!r} has no partition {unknown[0]}"
            raise CallError(grpc.StatusCode.NOT_FOUND, text)
        if partitions and len(set(partitions)) < count:
            text = f"partitions: it is done to all {count} of stream {stream!r} or to none"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
