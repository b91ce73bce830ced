"""The streams of a logd that is in no cluster, run."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

from penstock.base.clock import SystemClock
from penstock.logd.access.lone import LoneAccess
from penstock.logd.activity import Record
from penstock.logd.config import ConfiguredStream, LogdConfig
from penstock.logd.cursors import CURSORS_STREAM, CursorStore
from penstock.logd.descriptors import Descriptors
from penstock.logd.fetch.groups import LoneGroups
from penstock.logd.listening import Link, Listening
from penstock.logd.lone_activity import LoneActivity
from penstock.logd.lone_streams import LoneStreams, check_possible
from penstock.logd.partition import Partition
from penstock.logd.reviver import Reviver
from penstock.logd.streams import StreamSet
from penstock.logd.surroundings import StreamLookup, Surroundings
from penstock.logd.unopened import Unopened


class LoneEngine:
    """As `penstock.logd.engine.Engine`.

    Args:
        config: Without a section `cluster`; its data directory exists and is locked.
        link: Subscriptions are made on it.
        make_surroundings: Given the lookup of streams by subject, what partitions share.
    """

    def __init__(
        self,
        config: LogdConfig,
        link: Link,
        make_surroundings: Callable[[StreamLookup], Surroundings],
    ) -> None:
        node, activity = config.node, config.activity_section.stream()
        streams = StreamSet(
            config.data_dir,
            link,
            make_surroundings=make_surroundings,
            new_incarnation=lambda: secrets.token_hex(8),
            descriptors=Descriptors.raised(config.connections()),
            streams_max=config.streams_max,
        )
        self.access = access = LoneAccess(config.data_dir)
        self.cursors = CursorStore(streams, cursors_max=config.cursors_max)
        self.streams = LoneStreams(
            node, streams, self.cursors, lambda: self._addresses, lambda: access.table.quotas
        )
        self.activity = LoneActivity(streams, activity)
        self._internal = [CURSORS_STREAM, activity]
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
        self.access.open()
        await self._set.start(configs, internal=self._internal)
        await self.cursors.start()

    def watch(self, record: Record) -> None:
        """As `Engine`; there is only one node, which leads."""
        del record

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
