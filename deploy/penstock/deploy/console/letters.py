"""The way to routers that list dead letters, and deliver them again."""

from collections.abc import Mapping
from typing import Any, Final

from penstock.deploy.console.asking import Posted, ask_json
from penstock.deploy.console.config import ConsoleConfig
from penstock.logd.errors import UnavailableError

PATH: Final = "/dead-letters"
"""Of a job's admin endpoint; `penstock.router.replays` describes it."""


class RouterDoors:
    """As `penstock.deploy.console.actions.Routers`: the parts that are configured."""

    def __init__(self, config: ConsoleConfig) -> None:
        self._config = config

    async def about_letters(self, router: str, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """As `Routers`."""
        config = self._config
        url, path = config.parts.get(router), config.router_token_file or config.token_file
        if url is None or path is None:
            raise UnavailableError(
                f"the console knows no router {router!r}, or has no token for it"
            )
        try:
            token = path.read_text().strip()
        except OSError as error:
            raise UnavailableError(f"{path}: {error.strerror}") from None
        posted = Posted(dict(wanted), token)
        address = f"{url.rstrip('/')}{PATH}"
        answer = await ask_json(address, config.access, timeout_s=config.timeout_s, posted=posted)
        if answer.document is None:
            raise UnavailableError(f"{router}: {answer.problem}")
        return answer.document
