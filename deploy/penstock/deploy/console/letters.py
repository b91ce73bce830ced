"""The way to routers that list dead letters, and deliver them again."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.deploy.console.asking import Answer, Posted, ask_json, one_line_of
from penstock.deploy.console.config import ConsoleConfig, is_loopback
from penstock.logd.errors import UnavailableError

PATH: Final = "/dead-letters"
"""Of a job's admin endpoint; `penstock.router.replay.service` describes it."""


ROUTER: Final = "router"
"""The component that takes the token of actions; it is shown to no other."""


class RouterDoors:
    """As `penstock.deploy.console.actions.Routers`: the parts that are configured.

    Args:
        config: Where they are.
        component_of: What a part last said it is; empty: it has never answered.
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

    async def about_letters(self, router: str, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """As `Routers`."""
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
        address = f"{url.rstrip('/')}{PATH}"
        answer = await self._ask(address, config.access, timeout_s=config.timeout_s, posted=posted)
        if answer.document is None:
            raise UnavailableError(f"{router}: {answer.problem}")
        return answer.document

    def _check(self, name: str, url: str) -> None:
        """Whether the token of actions may be shown there.

        Raises:
            UnavailableError: It may not; why, and what to do.
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
