"""The links of a node to all the others."""

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial

from penstock.logd.peers.identity import Identity
from penstock.logd.peers.link import PeerLink, Then, UnreachableError
from penstock.logd.peers.tls import PeerTls


class Mesh:
    """Keeps a link to each node it is told of. Used on the event loop.

    Args:
        me: This node.
        rng: Spreads the tries to connect.
        tls: Between nodes.
    """

    def __init__(self, me: Identity, *, rng: random.Random, tls: PeerTls | None = None) -> None:
        self._me = me
        self._rng = rng
        self._tls = tls
        self._links: dict[str, tuple[PeerLink, asyncio.Task[None]]] = {}

    def links(self) -> list[PeerLink]:
        """Every link, by name of the peer."""
        return [link for _, (link, _) in sorted(self._links.items())]

    def update(self, addresses: Mapping[str, str]) -> None:
        """Have a link to each of these nodes, at its address, and to no other; never to oneself."""
        wanted = {node: at for node, at in addresses.items() if node != self._me.node}
        for node, (link, task) in list(self._links.items()):
            if wanted.get(node) != link.address:
                task.cancel()
                del self._links[node]
        for node, address in wanted.items():
            if node not in self._links:
                link = PeerLink(self._me, node, address, rng=self._rng, tls=self._tls)
                self._links[node] = link, asyncio.create_task(link.run(), name=f"link to {node}")

    def post(self, node: str, message: bytes) -> None:
        """Send one of Raft's messages, if there is a link that can take it now."""
        found = self._links.get(node)
        if found is not None:
            found[0].post(message)

    async def ask(self, node: str, api: str, body: bytes, *, timeout_s: float) -> bytes:
        """Ask a node for something and wait for the answer.

        Raises:
            RefusedError, UnreachableError, UnavailableError: As `PeerLink.ask`.
        """
        found = self._links.get(node)
        if found is None:
            raise UnreachableError(f"node {node!r} is not known here")
        return await found[0].ask(api, body, timeout_s=timeout_s)

    def call(self, node: str, api: str, body: bytes, then: Then) -> Callable[[], None]:
        """Ask a node for something, now; as `PeerLink.call`.

        Returns:
            What ends the waiting.

        Raises:
            RefusedError, UnreachableError: As `PeerLink.call`.
        """
        found = self._links.get(node)
        if found is None:
            raise UnreachableError(f"node {node!r} is not known here")
        link = found[0]
        return partial(link.forget, link.call(api, body, then))

    async def close(self) -> None:
        """End every link."""
        tasks = [task for _, task in self._links.values()]
        self._links.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
