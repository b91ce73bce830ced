"""Event loops whose resolver says what a test wants: names with several addresses."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from typing_extensions import override

Result = TypeVar("Result")


class ResolvingLoop(asyncio.SelectorEventLoop):
    """An event loop on which every name has the same addresses, in this order.

    Attributes:
        addresses: Of IPv4 and TCP.
    """

    def __init__(self) -> None:
        super().__init__()
        self.addresses: Sequence[tuple[str, int]] = ()

    @override
    async def getaddrinfo(self, *_: Any, **__: Any) -> list[Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, address) for address in self.addresses]


def on_resolving_loop(work: Callable[[ResolvingLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Run something on such a loop."""
    loop = ResolvingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work(loop))
