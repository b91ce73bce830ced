"""What CreateStream asks for, as logd's own requests name it."""

from typing import Any, Final

from penstock.logd.wire import logd_liftbridge_pb2 as wire

_BYTES_MIN: Final = 1024 * 1024
_SEGMENT_BYTES: Final = (64 * 1024, 1024 * 1024 * 1024)


def settings_of(request: wire.CreateStreamRequest) -> dict[str, Any]:
    """The stream as logd's own requests name its options; what is not given is logd's default."""
    settings: dict[str, Any] = {
        "name": request.name,
        "subject": request.subject,
        "ack_on_reply": False,  # plain messages are not answered: the reply is for others to give
        "retention": _retention(request),
        "expected_offset": request.optimisticConcurrencyControl.value,
        "compact": request.compactEnabled.value,
        "partitions": request.partitions or 1,
    }
    if request.encryption.value:
        settings["encryption"] = "aes-256-gcm"
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
