"""A cluster of real logd processes on loopback addresses."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from nats.aio.client import Client
from nats.js.errors import NoStreamResponseError

from penstock.logd.client import LogClient, PartitionInfo, calls
from penstock.logd.errors import LogdError, RefusedError
from tests.support.logd import Logd
from tests.support.processes import free_port
from tests.support.waiting import PATIENCE, wait_until

_ID: Final = "Nats-Msg-Id"


class LogdCluster:
    """Nodes a, b, c, ... that found a cluster; they keep their addresses over restarts.

    Args:
        directory: For data, configurations and logs, a directory for each node.
        nats_url: Of the NATS server; or one for each node.
        size: How many nodes.
        reached: Given a node and where it listens for others, where they reach it.
        streams: As in the configuration file.
        section: Further keys of the section `cluster`.
        options: Further keys of the configuration.
    """

    def __init__(
        self,
        directory: Path,
        nats_url: str | dict[str, str] | Callable[[str], str],
        *,
        size: int = 3,
        reached: Callable[[str, str], str] = lambda _, address: address,
        streams: list[dict[str, Any]] | None = None,
        section: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.names = [chr(ord("a") + number) for number in range(size)]
        self.peers = {name: f"127.0.0.1:{free_port()}" for name in self.names}
        self._initial_members = {
            name: reached(name, address) for name, address in self.peers.items()
        }
        self._directory, self._nats_url = directory, nats_url
        self._section, self._options = section or {}, {"streams": streams or []} | options
        self.nodes = {name: self._make(name, self.peers[name]) for name in self.names}

    def _make(self, name: str, peer: str) -> Logd:
        own = {"name": "test", "peer": peer, "initial_members": self._initial_members}
        url, directory = _url_for(name, self._nats_url), self._directory / name
        cluster = own | self._section
        return Logd(directory, url, node=name, cluster=cluster, **self._options)

    def __enter__(self) -> Self:
        try:
            self.start(*self.names)
            wait_until(self._complete, within_s=30, what="every node registered")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end()

    def start(self, *names: str) -> None:
        """Start nodes at once, and wait until each answers."""
        for name in names:
            self.nodes[name].daemon.launch()
        for name in names:
            wait_until(self.nodes[name].daemon.answers, within_s=30, what=f"node {name} answers")

    def join(self, name: str, *, health: str = "ready") -> None:
        """Start a node that joins, and wait until it takes part and says how it is."""
        self.nodes[name] = self._make(name, f"127.0.0.1:{free_port()}")
        self.names.append(name)
        self.start(name)
        wait_until(self._complete, within_s=30, what=f"node {name} registered")
        status = self.nodes[name].daemon.status
        wait_until(lambda: status()["health"] == health, within_s=30, what=f"{name} is {health}")

    def client(self, *names: str, timeout_s: float = 20.0) -> LogClient:
        """A client that knows these nodes, or all of them where none is named."""
        addresses = [self.nodes[name].fetch for name in names or self.names]
        access = next(iter(self.nodes.values())).access
        return LogClient(",".join(addresses), timeout_s=timeout_s, access=access)

    def create(self, name: str, subject: str, **options: Any) -> None:
        """Create a stream, and wait until it is led."""
        with self.client() as log:
            log.create_stream(name, subject, **options)

    def have_decide(self, target: str) -> None:
        """Make a node the controller, as soon as the one before has heard of it."""

        def decides() -> bool:
            with self.client() as log, suppress(RefusedError):
                return log.step_down(target) == target
            return False

        wait_until(decides, within_s=30, what=f"{target} decides")

    def running(self) -> list[str]:
        """The nodes that run."""
        return [name for name, node in self.nodes.items() if node.daemon.running]

    def partition(self, stream: str, number: int = 0, *, node: str | None = None) -> PartitionInfo:
        """A partition as a node that runs sees it, standing where its leader says.

        If a node is named, that one's own view and nothing else: where its replica stands, and
        unknown (`is_known`) where it has none.
        """
        names = [node] if node else self.running()
        for name in names:
            try:
                with self.nodes[name].client(timeout_s=5) as log:
                    if node is None:
                        return log.stream(stream).partitions[number]
                    (found,) = log.ask(calls.describe(stream, node=node)).streams
                    return found.partitions[number]
            except (LogdError, OSError):
                continue
        raise LookupError(f"none of {names} describes {stream}")

    def leader(self, stream: str, number: int = 0) -> str:
        """Who leads a partition, once somebody that runs does."""

        def found() -> str | None:
            try:
                leader = self.partition(stream, number).leader
            except LookupError:
                return None
            return leader if leader in self.running() else None

        return str(wait_until(found, within_s=20, what=f"a leader of {stream}"))

    def wait_in_sync(self, stream: str, *, size: int | None = None, number: int = 0) -> None:
        """Wait until so many replicas (all there are running) are in sync."""
        wanted = len(self.running()) if size is None else size

        def in_sync() -> bool:
            with suppress(LookupError):  # who is asked has just started
                return len(self.partition(stream, number).isr) >= wanted
            return False

        wait_until(in_sync, within_s=30, what=f"{wanted} replicas of {stream} in sync")

    def values(self, stream: str, number: int = 0) -> list[bytes | None]:
        """Every value that can be read of a partition, in order."""
        with self.client() as log:
            start, end = log.offsets(stream, number)
            return [record.value for _, record in log.records(stream, start, end, partition=number)]

    def _end(self) -> None:
        for node in self.nodes.values():
            node.daemon.close()

    def _complete(self) -> bool:
        try:
            with self.client() as log:
                info = log.cluster()
        except (LogdError, OSError):  # it answers operators before it answers readers
            return False
        return info.controller is not None and len(info.nodes) == len(self.names)


async def publish(
    client: Client, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
) -> None:
    """Have a message stored once: it is sent again, with its id, while a leader is elected."""
    named = {_ID: str(uuid.uuid4()), **(headers or {})}
    async with asyncio.timeout(60 * PATIENCE):
        while True:
            with suppress(NoStreamResponseError, TimeoutError):
                await client.jetstream().publish(subject, payload, timeout=5, headers=named)
                return


def _url_for(name: str, urls: str | dict[str, str] | Callable[[str], str]) -> str:
    if isinstance(urls, str):
        return urls
    return urls[name] if isinstance(urls, dict) else urls(name)
