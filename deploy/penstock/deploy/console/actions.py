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


_LETTERS: Final[Mapping[str, str]] = {
    "list-letters": "list",
    "replay-letters": "replay",
    "stop-replay": "stop",
}
"""By name: what a router does with dead letters of a sink, and with a replay to it."""


class Routers(Protocol):
    """The jobs that are known."""

    async def about_letters(self, router: str, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have a job list dead letters, or deliver them again.

        Raises:
            UnavailableError: It does not, and why.
        """
        ...


class NoActionError(Exception):
    """Nothing of that name can be done."""


def is_about_letters(wanted: Mapping[str, Any]) -> bool:
    """Whether a router is to do it, and not logd."""
    action = wanted.get("action")
    return isinstance(action, str) and action in _LETTERS


async def act_on_letters(
    routers: Routers, wanted: Mapping[str, Any], *, peer: str
) -> Mapping[str, Any]:
    """Do what is wanted: `action`, `router`, `sink` and perhaps `to`. Returns the job's answer.

    Raises:
        NoActionError: It is not said what for.
        UnavailableError: The job does not do it.
    """
    action, router, sink = (wanted.get(name) for name in ("action", "router", "sink"))
    if not isinstance(action, str) or not isinstance(router, str) or not isinstance(sink, str):
        msg = "name the router and its sink"
        raise NoActionError(msg)
    document: dict[str, Any] = {"do": _LETTERS[action], "sink": sink, "by": f"console, for {peer}"}
    if isinstance(wanted.get("to"), str):
        document["to"] = wanted["to"]
    say = structlog.get_logger().bind(action=action, router=router, sink=sink, peer=peer)
    try:
        answer = await routers.about_letters(router, document)
    except LogdError as error:
        say.warning("action failed", code="UNAVAILABLE", reason=str(error))
        raise
    say.info("action done")
    return answer


async def act(log: Changing, wanted: Mapping[str, Any], *, peer: str) -> str:
    """Do what is wanted: `action` and `stream`. Returns what was done, for people.

    Raises:
        NoActionError: There is no such action.
        LogdError: logd refuses, or nobody knows whether it was done.
    """
    action, stream = wanted.get("action"), wanted.get("stream")
    if not isinstance(action, str) or action not in _MODES or not isinstance(stream, str):
        msg = (
            f"no such action; known: {', '.join(_MODES)}, each with the name of a stream, and"
            f" {', '.join(_LETTERS)} with a router and its sink"
        )
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
