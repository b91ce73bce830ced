"""The fields of Liftbridge's CreateStreamRequest as options of a stream: docs/compatibility.md."""

from typing import Any, Final

from penstock.logd.stream_options import StreamOption, stream_options
from penstock.logd.wire import logd_liftbridge_pb2 as wire

DECIDED_HERE: Final = (
    "cleanerInterval",
    "segmentMaxAge",
    "compactMaxGoroutines",
    "autoPauseTime",
    "autoPauseDisableIfSubscribers",
)
"""Fields of a `CreateStreamRequest` that logd decides itself (docs/compatibility.md)."""

_NULLABLE: Final = (wire.NullableBool, wire.NullableInt32, wire.NullableInt64)
_ALL: Final = -1
"""The value of `replicationFactor` that asks for a replica on every node."""


def settings_of(request: wire.CreateStreamRequest) -> dict[str, Any]:
    """The stream as logd's own requests name its options; what is not given is logd's default."""
    settings: dict[str, Any] = {
        "name": request.name,
        "subject": request.subject,
        "ack_on_reply": False,  # plain messages are not answered: the reply is for others to give
    }
    for option in stream_options():
        value = _given(request, option) if option.option.liftbridge else None
        if value:
            outer, _, inner = option.name.partition(".")
            place = settings.setdefault(outer, {}) if inner else settings
            place[inner or outer] = value
    return settings


def _given(request: wire.CreateStreamRequest, option: StreamOption) -> Any:
    """Return the value of an option in a request; None: zero, empty or false means unset."""
    field: Any = getattr(request, option.option.liftbridge)
    value = field.value if isinstance(field, _NULLABLE) else field
    if option.name.endswith("_s"):  # Liftbridge has milliseconds
        return -(-value // 1000)
    if isinstance(value, bool) and option.choices:
        return option.choices[-1] if value else None
    if option.choices and value == _ALL:
        return option.choices[0]
    if option.option.clamped and value > 0:
        assert option.least is not None
        assert option.most is not None
        return min(max(value, option.least), option.most)
    return value
