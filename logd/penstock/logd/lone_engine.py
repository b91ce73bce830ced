"""The streams of a logd that is in no cluster, run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

from penstock.logd.config import ConfiguredStream
from penstock.logd.cursors import CURSORS_STREAM, CursorStore
from penstock.logd.fetch.groups import LoneGroups
from penstock.logd.listening import Listening
from penstock.logd.lone_streams import LoneStreams, check_possible
from penstock.logd.partition import Partition
from penstock.logd.reviver import Reviver
from penstock.logd.streams import StreamSet
from penstock.logd.unopened import Unopened
from penstock.service.clock import SystemClock


class LoneEngine:
    """As `penstock.logd.engine.Engine`.

    Args:
        node: Its name.
        streams: Not started yet.
        cursors_max: Consumers' cursors at a time.
    """

    def __init__(self, node: str, streams: StreamSet, *, cursors_max: int) -> None:
        self.cursors = CursorStore(streams, cursors_max=cursors_max)
        self.streams = LoneStreams(node, streams, self.cursors, lambda: self._addresses)
        self.groups = LoneGroups(node)
        self._set = streams
        self._reviver = Reviver(streams, SystemClock())
        self._addresses: Mapping[str, str] = {}

    @property
    def listening(self) -> Listening:
        """As `Engine`."""
        return self._set.listening

    @property
    def streams_max(self) -> int:
        """As `Engine`."""
        return self._set.streams_max

    @property
    def revived(self) -> int:
        """As `Engine`."""
        return self._reviver.revived

    def partitions(self) -> list[Partition]:
        """As `Engine`."""
        return self._set.partitions()

    def unopened(self) -> list[Unopened]:
        """As `Engine`."""
        return self._set.unopened()

    def reasons(self) -> Sequence[str]:
        """As `Engine`; what is wrong its partitions say themselves."""
        return ()

    def info(self) -> dict[str, Any]:
        """As `Engine`."""
        return {}

    def metrics(self) -> Iterable[Metric]:
        """As `Engine`."""
        return ()

    async def open(
        self, configured: Sequence[ConfiguredStream], addresses: Mapping[str, str]
    ) -> None:
        """As `Engine`."""
        self._addresses = addresses
        for settings in configured:
            check_possible(settings.replication())
        configs = [settings.stream_config() for settings in configured]
        await self._set.start(configs, internal=[CURSORS_STREAM])
        await self.cursors.start()

    async def run(self) -> None:
        """As `Engine`."""
        await self._reviver.run()

    async def retire(self) -> None:
        """There is nobody else."""

    async def close(self) -> list[str]:
        """As `Engine`."""
        return await self._set.close()

    def draining(self) -> list[str]:
        """As `Engine`."""
        return self._set.draining()
