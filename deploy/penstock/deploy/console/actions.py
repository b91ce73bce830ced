"""Actions of the page: only those that logd's own interface offers everybody."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import structlog

from penstock.deploy.console.config import ConsoleConfig, is_loopback
from penstock.deploy.console.http_client import Answer, Posted, ask_json, one_line_of
from penstock.logd.client import StreamInfo
from penstock.logd.errors import LogdError, RefusedError, UnavailableError

_MODES: Final[Mapping[str, Mapping[str, bool]]] = {
    "pause": {"paused": True, "held": True},
    "resume": {"paused": False},
    "make-read-only": {"read_only": True},
    "make-writable": {"read_only": False},
}
"""The mode of a cluster's stream, by the action's name."""


class StreamAdmin(Protocol):
    """The part of `AsyncLogClient` that actions use."""

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


_DEAD_LETTER_ACTIONS: Final[Mapping[str, str]] = {
    "list-dead-letters": "list",
    "replay-dead-letters": "replay",
    "stop-replay": "stop",
}
"""Requests to a router about a sink's dead letters and replays, by the action's name."""


class Routers(Protocol):
    """The jobs that are known."""

    async def about_dead_letters(self, router: str, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have a job list dead letters, or deliver them again.

        Raises:
            UnavailableError: It does not, and why.
        """
        ...


class NoActionError(Exception):
    """There is no action of that name."""


def is_dead_letter_action(wanted: Mapping[str, Any]) -> bool:
    """Return whether a router, and not logd, has to perform the action."""
    action = wanted.get("action")
    return isinstance(action, str) and action in _DEAD_LETTER_ACTIONS


async def act_on_dead_letters(
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
    document: dict[str, Any] = {
        "do": _DEAD_LETTER_ACTIONS[action],
        "sink": sink,
        "by": f"console, for {peer}",
    }
    if isinstance(wanted.get("to"), str):
        document["to"] = wanted["to"]
    say = structlog.get_logger().bind(action=action, router=router, sink=sink, peer=peer)
    try:
        answer = await routers.about_dead_letters(router, document)
    except LogdError as error:
        say.warning("action_failed", code="UNAVAILABLE", reason=str(error))
        raise
    say.info("action_completed")
    return answer


async def act(log: StreamAdmin, wanted: Mapping[str, Any], *, peer: str) -> str:
    """Do what is wanted: `action` and `stream`. Returns what was done, for people.

    Raises:
        NoActionError: There is no such action.
        LogdError: logd refuses, or nobody knows whether it was done.
    """
    action, stream = wanted.get("action"), wanted.get("stream")
    if not isinstance(action, str) or action not in _MODES or not isinstance(stream, str):
        msg = (
            f"no such action; known: {', '.join(_MODES)}, each with the name of a stream, and"
            f" {', '.join(_DEAD_LETTER_ACTIONS)} with a router and its sink"
        )
        raise NoActionError(msg)
    say = structlog.get_logger().bind(action=action, stream=stream, peer=peer)
    try:
        await log.set_stream_mode(stream, **_MODES[action])
    except LogdError as error:
        code = error.code if isinstance(error, RefusedError) else "UNAVAILABLE"
        say.warning("action_failed", code=code, reason=str(error))
        raise
    say.info("action_completed")
    return f"{action}: {stream}"


DEAD_LETTERS_PATH: Final = "/dead-letters"
"""The path at a job's admin endpoint; `penstock.router.replay.service` describes it."""


ROUTER: Final = "router"
"""The component that takes the token of actions; it is shown to no other."""


class RouterClient:
    """`Routers` over the configured parts.

    Args:
        config: Addresses and credentials of the routers.
        component_of: Returns the component that a part last reported; empty: it has never answered.
        ask: Sends the question.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        component_of: Callable[[str], str],
        ask: Callable[..., Awaitable[Answer]] = ask_json,
    ) -> None:
        self._ask = ask
        self._config = config
        self._component_of = component_of

    async def about_dead_letters(self, router: str, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Routers`."""
        config = self._config
        url, path = config.parts.get(router), config.router_token_file or config.token_file
        if url is None or path is None:
            raise UnavailableError(
                f"the console knows no router {router!r}, or has no token for it"
            )
        self._check(router, url)
        try:
            token = one_line_of(path)
        except OSError as error:
            raise UnavailableError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise UnavailableError(str(error)) from None
        posted = Posted(dict(wanted), token)
        address = f"{url.rstrip('/')}{DEAD_LETTERS_PATH}"
        answer = await self._ask(address, config.access, timeout_s=config.timeout_s, posted=posted)
        if answer.document is None:
            raise UnavailableError(f"{router}: {answer.problem}")
        return answer.document

    def _check(self, name: str, url: str) -> None:
        """Check that the token of actions may be sent to a part.

        Raises:
            UnavailableError: It may not; the message has the reason and the fix.
        """
        component = self._component_of(name)
        if component != ROUTER:
            seen = f"is a {component}" if component else "has not said yet that it is a router"
            raise UnavailableError(
                f"{name} {seen}: the token of actions is shown to routers alone; name a router, or"
                " correct the key `parts` of the console"
            )
        parts = urlsplit(url)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise UnavailableError(
                f"{name}: the token of actions is not sent over plain http, where others can read"
                " it: give the router `admin_access` with `cert_file` and `key_file`, and name it"
                " with https:// in the key `parts` of the console"
            )
