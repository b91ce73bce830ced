"""What may be done from the page: only what logd's own interface does for everybody."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import structlog

from penstock.logd.client import StreamInfo
from penstock.logd.errors import LogdError, RefusedError

_MODES: Final[Mapping[str, Mapping[str, bool]]] = {
    "pause": {"paused": True, "held": True},
    "resume": {"paused": False},
    "make-read-only": {"read_only": True},
    "make-writable": {"read_only": False},
}
"""By name: what becomes of a stream of a cluster."""


class Changing(Protocol):
    """What of `AsyncLogClient` is needed to act."""

    async def set_stream_mode(
        self,
        name: str,
        *,
        paused: bool | None = None,
        read_only: bool | None = None,
        held: bool = False,
    ) -> StreamInfo:
        """Pause a stream, or make it read-only."""
        ...


class NoActionError(Exception):
    """Nothing of that name can be done."""


async def act(log: Changing, wanted: Mapping[str, Any], *, peer: str) -> str:
    """Do what is wanted: `action` and `stream`. Returns what was done, for people.

    Raises:
        NoActionError: There is no such action.
        LogdError: logd refuses, or nobody knows whether it was done.
    """
    action, stream = wanted.get("action"), wanted.get("stream")
    if not isinstance(action, str) or action not in _MODES or not isinstance(stream, str):
        known = ", ".join(_MODES)
        msg = f"no such action; known: {known}, each with the name of a stream"
        raise NoActionError(msg)
    say = structlog.get_logger().bind(action=action, stream=stream, peer=peer)
    try:
        await log.set_stream_mode(stream, **_MODES[action])
    except LogdError as error:
        code = error.code if isinstance(error, RefusedError) else "UNAVAILABLE"
        say.warning("action failed", code=code, reason=str(error))
        raise
    say.info("action done")
    return f"{action}: {stream}"
