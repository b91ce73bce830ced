"""What keeps the streams of a daemon: a lone node's own, or a node's part of a cluster's."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.core import Metric

from penstock.logd.activity import Record, Sink
from penstock.logd.api.operations import Cursors, Groups
from penstock.logd.api.stream_options import ConfiguredStream
from penstock.logd.api.streams import Streams
from penstock.logd.partition.partition import OfflinePartition, Partition
from penstock.logd.partition.subscriptions import SubscriptionManager
from penstock.logd.security.authorizer import Access


class CursorCounts(Cursors, Protocol):
    """Cursors, counted."""

    @property
    def commits(self) -> int:
        """Changes that were committed here."""

    def __len__(self) -> int:
        """Committed cursors, where they are kept here."""


class Engine(Protocol):
    """Used on the event loop: `open`, `run` until cancelled, `close`."""

    @property
    def subscription_manager(self) -> SubscriptionManager:
        """Which partitions are on their subjects."""

    @property
    def streams(self) -> Streams:
        """What readers and operators see."""

    @property
    def cursors(self) -> "CursorCounts":
        """Where consumers' cursors are kept."""

    @property
    def groups(self) -> Groups:
        """Consumer groups."""

    @property
    def access(self) -> Access:
        """Rules and quotas."""

    @property
    def activity(self) -> Sink:
        """Where what happens is written."""

    @property
    def streams_max(self) -> int:
        """Streams there may be."""

    @property
    def revived(self) -> int:
        """Logs opened again since the start."""

    def partitions(self) -> list[Partition]:
        """Every open partition."""

    def offline_partition(self) -> list[OfflinePartition]:
        """The streams whose logs cannot be opened."""

    def reasons(self) -> Sequence[str]:
        """Why it is not as well as it should be."""

    def info(self) -> dict[str, Any]:
        """Further entries of `/status`."""

    def metrics(self) -> Iterable[Metric]:
        """Further metrics."""

    async def open(
        self, configured: Sequence[ConfiguredStream], addresses: Mapping[str, str]
    ) -> None:
        """Open what there is, and have what is configured made.

        Args:
            configured: Of the configuration file.
            addresses: Where this node listens: `fetch` and `admin`.

        Raises:
            CorruptError, RefusedError, UnavailableError, OSError: It cannot be.
        """

    def watch(self, record: Record) -> None:
        """Have what becomes of nodes and partitions taken down."""

    async def run(self) -> None:
        """Do what is to be done all the time."""

    async def retire(self) -> None:
        """Give away what others can do, before `close`."""

    async def close(self) -> list[str]:
        """Commit what was accepted and close; streams of which something could not be synced."""

    def draining(self) -> list[str]:
        """Streams that `close` still waits for."""
