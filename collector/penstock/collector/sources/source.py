"""What every source is to the agent."""

from collections.abc import Mapping
from typing import Protocol


class Source(Protocol):
    """Receives records until it is stopped.

    Attributes:
        name: As configured; unique.
    """

    name: str

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ServiceError: It cannot; the operator must change something.
        """
        ...

    async def run(self) -> None:
        """Receive until `stop`; returns when the input has ended for good."""
        ...

    async def stop(self) -> None:
        """Take nothing more; what was taken is in the spool or will be refused."""
        ...

    @property
    def trouble(self) -> str:
        """Why it receives nothing though it runs; empty when it does."""
        return ""

    @property
    def endpoint(self) -> str | None:
        """The address it listens on; None when it listens nowhere and its `run` ends by itself."""
        return None

    @property
    def endpoints(self) -> Mapping[str, str]:
        """The addresses of a source that has several, by what is spoken there."""
        return {}
