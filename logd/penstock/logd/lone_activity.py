"""The activity stream of a logd that is in no cluster."""

from collections.abc import Sequence

from penstock.logd.activity import store_events
from penstock.logd.activity_journal import Event
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.errors import RefusedError
from penstock.logd.streams import StreamSet


class LoneActivity:
    """As `penstock.logd.activity.Sink`.

    Args:
        streams: Where it is; `start` them first.
        config: Of the stream, which is made with the first event.
    """

    def __init__(self, streams: StreamSet, config: StreamConfig) -> None:
        self._streams = streams
        self._config = config

    async def store(self, events: Sequence[Event]) -> None:
        """As `Sink`."""
        try:
            partition = self._streams.partition(self._config.name)
        except RefusedError:
            partition, _ = await self._streams.create(self._config)
        await store_events(partition, events)
