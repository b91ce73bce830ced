"""Publishers and readers on a thread of their own, and what they saw."""

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import nats
import nats.errors

from penstock.logd.client import AsyncLogClient, FollowOptions, GroupOptions
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.format.batch import Record
from tests.harness.checkers.history import Given, Publishing
from tests.harness.ledger import Acked, Ledger
from tests.harness.publishers import Publisher
from tests.support.waiting import wait_until

_READ: Final = FollowOptions(wait_s=0.5)
_READERS: Final = ("leader", "replica")
_GROUP: Final = "readers"
_MEMBERS: Final = ("one", "other")
_SESSION_S: Final = 2.0

Shown = dict[str, list[tuple[int, Record]]]
"""What the readers of a stream were shown, by reader."""


class Load:
    """Publishes and reads from the start of the block to `stop`, or to the end of the block.

    Args:
        nats_url: The publishers' own way to the server, which no fault of a node touches.
        publishers: Of all streams.
        fetch: Where the nodes are read from, separated by commas; empty: nobody reads.
        grouped: A stream that a consumer group of two reads as well; None: none.

    Attributes:
        ledger: What they were told.
    """

    def __init__(
        self,
        nats_url: str,
        publishers: Sequence[Publisher],
        *,
        fetch: str = "",
        grouped: str | None = None,
    ) -> None:
        self.ledger = Ledger()
        self.grouped = grouped
        self._given: list[Given] = []
        self._url = nats_url
        self._fetch = fetch
        self._publishers = publishers
        self._shown: dict[str, Shown] = {p.stream: {} for p in publishers}
        self._thread = threading.Thread(target=self._run, name="load")
        self._stop = asyncio.Event()
        self._over = asyncio.Event()
        self._publishing = threading.Event()
        self._errors: list[BaseException] = []

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._publishing.set()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended by itself, with an error
            self._loop.call_soon_threadsafe(self._end)
        self._thread.join(60)
        assert not self._thread.is_alive(), "the load has not ended"
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise what ended a publisher or a reader."""
        if self._errors:
            raise AssertionError("the load failed") from self._errors[0]
        assert not self.ledger.broken, self.ledger.broken[:5]

    def goes_on(self, records: int = 30) -> None:
        """Wait until so many more are acked."""
        wanted = self.ledger.records + records

        def acked() -> bool:
            self.check()
            return self.ledger.records >= wanted

        wait_until(acked, within_s=30, what=f"{records} more records acked")

    def stop(self) -> None:
        """Publish no more; on return every publisher has ended. Reading goes on."""
        self._loop.call_soon_threadsafe(self._stop.set)
        wait_until(lambda: not self._publishing.is_set(), within_s=20, what="publishers end")
        self.check()

    def acked(self, stream: str) -> list[Acked]:
        return [ack for ack in list(self.ledger.acked) if ack.stream == stream]

    def read_to(self, stream: str, end: int) -> Mapping[str, Sequence[tuple[int, Record]]]:
        """What each reader was shown, once it was shown everything before an offset."""
        reads = self._shown[stream]

        def there() -> bool:
            self.check()
            return all(shown and shown[-1][0] >= end - 1 for shown in reads.values()) or not end

        wait_until(there, within_s=30, what=f"readers of {stream} at {end}")
        return reads

    def given_to(self, end: int) -> Sequence[Given]:
        """What the group's members were given, once that is everything before an offset."""

        def there() -> bool:
            self.check()
            return max((one.offset for one in self._given), default=-1) >= end - 1

        wait_until(there, within_s=30, what=f"the group at {end}")
        return list(self._given)

    def publishing(self, stream: str) -> Publishing:
        mine = [p for p in self._publishers if p.stream == stream]
        return Publishing({p.name: p.rule for p in mine}, {p.name: p.keys for p in mine})

    # On the thread.

    def _end(self) -> None:
        self._stop.set()
        self._over.set()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:  # noqa: BLE001 - for the test's own thread
            self._errors.append(error)
        finally:
            self._publishing.clear()
            self._loop.close()

    async def _main(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            reading = [
                tasks.create_task(self._read(stream, reader))
                for stream in self._shown
                for reader in _READERS
                if self._fetch
            ]
            if self.grouped is not None:
                reading += [tasks.create_task(self._consume(self.grouped, m)) for m in _MEMBERS]
            await self._publish()
            self._publishing.clear()
            await self._over.wait()
            for task in reading:
                task.cancel()

    async def _publish(self) -> None:
        client = await nats.connect(
            self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_ignore
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for publisher in self._publishers:
                    tasks.create_task(publisher.run(client, self.ledger, self._stop))
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):  # the server may be gone
                await client.close()

    async def _read(self, stream: str, reader: Any) -> None:
        shown = self._shown[stream].setdefault(reader, [])
        async with AsyncLogClient(self._fetch, timeout_s=10.0, prefer=reader) as log:
            async for offset, record in log.follow(stream, 0, _READ):
                shown.append((offset, record))

    async def _consume(self, stream: str, name: str) -> None:
        """Be a member, again and again: a member that is fenced joins again."""
        options = GroupOptions(session_s=_SESSION_S, name=name)
        while True:
            with contextlib.suppress(UnavailableError):
                async with AsyncLogClient(self._fetch, timeout_s=10.0) as log:
                    await self._be_member(log, stream, options)

    async def _be_member(self, log: AsyncLogClient, stream: str, options: GroupOptions) -> None:
        try:
            async with log.join_group(_GROUP, stream, options) as consumer:
                async for item in consumer:
                    self._given.append(Given(consumer.member, item.epoch, item.offset, item.record))
        except RefusedError as error:
            if error.code != "FENCED":
                raise


async def _ignore(_: Exception) -> None:
    """A lost connection; publishers see it as an ack that never came."""
