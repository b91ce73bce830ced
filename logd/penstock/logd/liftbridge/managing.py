"""CreateStream, DeleteStream, PauseStream and SetStreamReadonly."""

from collections.abc import Sequence
from typing import Any, Final

import grpc

from penstock.logd.fetch.stream_settings import split_settings
from penstock.logd.fetch.streams import Streams
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.publishing import Context
from penstock.logd.wire import logd_liftbridge_pb2 as wire

_BYTES_MIN: Final = 1024 * 1024
_SEGMENT_BYTES: Final = (64 * 1024, 1024 * 1024 * 1024)


class Managing:
    """Changes streams, of the daemon or its cluster."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def create(
        self, request: wire.CreateStreamRequest, __: Context
    ) -> wire.CreateStreamResponse:
        """Create a stream; one that is there already is refused, whatever its options."""
        config, replication = split_settings(_settings(request))
        _, created = await self._streams.create(config, replication)
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


def _settings(request: wire.CreateStreamRequest) -> dict[str, Any]:
    """The stream as logd's own requests name its options; what is not given is logd's default."""
    if request.encryption.value:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "encryption: logd does not offer it")
    settings: dict[str, Any] = {
        "name": request.name,
        "subject": request.subject,
        "ack_on_reply": False,  # plain messages are not answered: the reply is for others to give
        "retention": _retention(request),
        "expected_offset": request.optimisticConcurrencyControl.value,
        "compact": request.compactEnabled.value,
        "partitions": request.partitions or 1,
    }
    if request.group:
        settings["queue_group"] = request.group
    if request.replicationFactor:
        factor = request.replicationFactor
        settings["replication_factor"] = "all" if factor == -1 else factor
    if request.minIsr.value:
        settings["min_isr"] = request.minIsr.value
    if request.segmentMaxBytes.value:
        low, high = _SEGMENT_BYTES
        settings["segment_bytes_max"] = min(max(request.segmentMaxBytes.value, low), high)
    return settings


def _retention(request: wire.CreateStreamRequest) -> dict[str, int]:
    """The limits; zero is none. logd's have a least, below which they are that."""
    limits: dict[str, int] = {}
    if request.retentionMaxBytes.value:
        limits["bytes"] = _at_least(request.retentionMaxBytes.value, _BYTES_MIN)
    if request.retentionMaxMessages.value:
        limits["messages"] = request.retentionMaxMessages.value
    if request.retentionMaxAge.value:
        limits["age_s"] = -(-request.retentionMaxAge.value // 1000)
    return limits


def _at_least(value: int, least: int) -> int:
    return max(value, least) if value > 0 else value
