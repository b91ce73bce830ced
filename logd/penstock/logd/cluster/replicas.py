"""The replicas of one node: opened, closed and removed as the cluster's state says."""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from penstock.base.clock import Clock
from penstock.logd.cluster.adopting_access import AccessAdoption
from penstock.logd.cluster.adoption import Adoption
from penstock.logd.cluster.finishing import finish, finish_all
from penstock.logd.cluster.hearing import Hearing
from penstock.logd.cluster.holdings import Holdings
from penstock.logd.cluster.host import Identified
from penstock.logd.cluster.hosting import HostedReplica
from penstock.logd.cluster.isr_proposals import IsrProposals
from penstock.logd.cluster.node import ClusterNode
from penstock.logd.cluster.replication import Replication
from penstock.logd.cluster.reviving import Reviving
from penstock.logd.cluster.settling import Settling
from penstock.logd.cluster.subscribing import Subscribing
from penstock.logd.cluster.views import streams_of, view_of
from penstock.logd.core.cluster.commands import Command, DataGone, DeleteStream
from penstock.logd.core.cluster.heartbeats import END_UNKNOWN, PartitionReport
from penstock.logd.core.cluster.records import Partition as PartitionRecord
from penstock.logd.core.cluster.records import PartitionKey as Place
from penstock.logd.core.cluster.records import StreamRecord
from penstock.logd.core.cluster.state import Result
from penstock.logd.core.metadata import Stream
from penstock.logd.core.replication import effects as do
from penstock.logd.core.replication import events as on
from penstock.logd.core.replication.session import PartitionKey
from penstock.logd.core.replication.settings import ReplicationSettings
from penstock.logd.descriptors import Descriptors
from penstock.logd.errors import LogdError, NotOpenError, RefusedError
from penstock.logd.listening import Link, Listening
from penstock.logd.partition import Partition
from penstock.logd.purging import PurgePoint
from penstock.logd.surroundings import StreamLookup, Surroundings
from penstock.logd.unopened import cause_of

_NOTE_S: Final = 1.0
"""Seconds between looks at what replicas know and has to be written down, and at failed ones."""

_UNIT: Final = "replicas on this node"

_OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})

_log = structlog.get_logger()


class NodeReplicas:
    """As `penstock.logd.cluster.node.Replicas` and `penstock.logd.cluster.hosting.Host`.

    Args:
        data_dir: It exists and is locked.
        link: Subscriptions are made on it.
        make_surroundings: Given the lookup of streams by subject, what partitions share.
        clock: Its monotonic time goes on while the machine sleeps.
        hearing: Whether publishers reach this node.
        settings: Of the cluster.
        descriptors: No more replicas are opened than it is enough for.

    Attributes:
        listening: Which partitions are on their subjects.
        adoption, rules_adoption: Of what a lone logd left here.
        problems: Why replicas are not open, by place.
        masters: Keys that this node encrypts with.
        revived: Logs opened again since the start.
        ready: Whether it has the state as it was when the node started, or later.
        deleted: Set when a stream has been deleted, or may have been.
    """

    def __init__(  # noqa: PLR0913 - what a node gives its replicas
        self,
        data_dir: Path,
        link: Link,
        make_surroundings: Callable[[StreamLookup], Surroundings],
        *,
        clock: Clock,
        hearing: Hearing,
        settings: ReplicationSettings | None = None,
        descriptors: Descriptors | None = None,
    ) -> None:
        self.clock = clock
        self._hearing = hearing
        self.settings = settings or ReplicationSettings()
        self.problems: dict[Place, NotOpenError] = {}
        self._descriptors = descriptors or Descriptors()
        self._opening = 0
        self._without_files: dict[Place, str] = {}
        around = self._around = make_surroundings(self)
        self.node, self.masters = around.node, around.masters
        self.listening = Listening(link, around.budget, around.clock, around.admission)
        self._holdings = Holdings(data_dir)
        self.adoption = Adoption(self._holdings)
        self.rules_adoption = AccessAdoption(data_dir)
        self._cluster: ClusterNode | None = None
        self.ready, self.revived = False, 0
        self.resignations: dict[PartitionKey, int] = {}
        self._hosted: dict[PartitionKey, HostedReplica] = {}
        self._places: dict[Place, HostedReplica] = {}
        self._subscribing = Subscribing(self, self._record, around.standby)
        self._settling = Settling(self._bring_about)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reported: dict[PartitionKey, PartitionReport] = {}
        self._stirred: dict[PartitionKey, None] = {}
        self._isr = IsrProposals(self)
        self._applied, self.deleted = asyncio.Event(), asyncio.Event()

    # Made known to each other.

    def attach(self, cluster: ClusterNode) -> None:
        """The node's part in the cluster; before it runs."""
        self._cluster = cluster
        cluster.adopting = self.adoption.pending

    @property
    def cluster(self) -> ClusterNode:
        """The node's part in the cluster."""
        assert self._cluster is not None
        return self._cluster

    @property
    def replication(self) -> Replication:
        """As `Host`."""
        return self.cluster.replication

    # What there is.

    def find(self, key: PartitionKey) -> HostedReplica | None:
        """A replica by its stream's incarnation."""
        return self._hosted.get(key)

    def at(self, place: Place) -> HostedReplica | None:
        """A replica by its stream's name."""
        return self._places.get(place)

    def hosted(self) -> list[HostedReplica]:
        """Every open replica, by stream and partition."""
        return [replica for _, replica in sorted(self._places.items())]

    def each(self) -> list[HostedReplica]:
        """Every open replica, as they come: for what is done to all of them all the time."""
        return list(self._hosted.values())

    def partitions(self) -> list[Partition]:
        """Every open partition, by stream and number."""
        return [replica.partition for replica in self.hosted()]

    def match(self, subject: str) -> tuple[str, ...]:
        """Names of the streams that store what is published on a subject."""
        return self.cluster.group.state.match(subject)

    def knows(self, stream: str) -> bool:
        """Whether there is a stream of this name."""
        return self.cluster.group.state.knows(stream)

    # Life.

    async def run(self) -> None:
        """Look after the replicas until cancelled."""
        await self.cluster.group.catch_up()
        await self.rules_adoption.run(self.cluster.group)
        await self.adoption.run(self.cluster)
        self.ready = True
        self._look_at(self.cluster.group.state.streams)
        reviving = Reviving(self)
        while True:
            await asyncio.sleep(_NOTE_S)
            for replica in self.each():
                replica.look()
            self.revived += await reviving.look()
            self._retry_without_files()

    async def step_down(self, timeout_s: float) -> None:
        """Have other nodes lead what this one leads, as far as they do in time."""
        for replica in self.hosted():
            replica.handle(on.StepDown())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed(lambda: not any(map(self._is_led_here, self.hosted())))

    async def close(self) -> list[str]:
        """Commit what was accepted and close every partition; none waits for another's disk.

        Returns:
            Streams of which something could not be written or synced at last, by name.
        """
        self._subscribing.closing = True
        await self._settling.close()
        for task in list(self._tasks):
            task.cancel()
        return await finish_all(self.hosted())

    def draining(self) -> list[str]:
        """Streams that `close` still waits for."""
        return sorted({one.place.stream for one in self.hosted() if not one.partition.finished})

    async def reopen(self, place: Place) -> None:
        """Open a replica whose log has failed, or could not be opened, as a restart would.

        Raises:
            NotOpenError: It still cannot be opened.
        """
        replica = self.at(place)
        if replica is not None and replica.partition.failure:
            self._forget(replica)
            await finish(replica)
        self.problems.pop(place, None)
        self._touch(place)
        await self._settling.settled(place)
        if problem := self.problems.get(place):
            where = f"partition {place.partition} of stream {place.stream!r}"
            raise NotOpenError(f"{where} cannot be opened: {problem}", cause=problem.cause)

    # As `Replicas`.

    def reports(self, *, full: bool) -> tuple[PartitionReport, ...]:
        """As `Replicas`."""
        stirred, self._stirred = self._stirred, {}
        found = []
        for key in self._hosted if full else stirred:
            replica = self._hosted.get(key)
            if replica is not None:
                report = replica.report()
                if full or self._reported.get(key) != report:
                    self._reported[key] = report
                    found.append(report)
        for report in self._closed_reports():
            key = PartitionKey(report.incarnation, report.key.partition)
            if full or self._reported.get(key) != report:
                self._reported[key] = report
                found.append(report)
        return tuple(found)

    def deaf(self) -> bool:
        """As `Replicas`."""
        return self._hearing.is_deaf()

    def check_files(self, more: int) -> None:
        """See whether this node may have so many further replicas open.

        Raises:
            RefusedError: `TOO_MANY_STREAMS`.
        """
        held = sum(
            self._is_to_hold(stream, partition)
            for stream in self.cluster.group.state.streams.values()
            for partition in stream.partitions
        )
        self._descriptors.check(held + more, unit=_UNIT)

    def on_lease(self, *, held: bool) -> None:
        """As `Replicas`."""
        for replica in self.hosted():
            if held:
                replica.tick()
            else:
                replica.fence()

    def on_applied(self, command: Command, result: Result) -> None:
        """As `Replicas`."""
        if self.ready:
            self._look_at(streams_of(command, result))
        self._applied.set()
        if isinstance(command, DeleteStream):
            self.deleted.set()

    def on_restored(self) -> None:
        """As `Replicas`."""
        if self.ready:
            self.deleted.set()
            held = {place.stream for place in self._places}
            self._look_at({*self.cluster.group.state.streams, *held})

    # As `Host`.

    def lease_until_ns(self) -> int:
        """As `Host`."""
        return self.cluster.controlling.lease.until_ns

    def stirred(self, replica: HostedReplica) -> None:
        """As `Host`."""
        self._stirred[replica.key] = None

    def on_lead(self, replica: HostedReplica) -> None:
        """As `Host`."""
        self._subscribing.look(replica)

    def on_stop(self, replica: HostedReplica) -> None:
        """As `Host`."""
        self._subscribing.look(replica)

    def propose_isr(self, replica: HostedReplica, proposal: do.ProposeIsr) -> None:
        """As `Host`."""
        self._isr.propose(replica, proposal)

    def look(self) -> None:
        """As `Host`."""
        self.cluster.controlling.look()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """As `Host`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    # Parts.

    def _closed_reports(self) -> Iterable[PartitionReport]:
        """What the controller is told of replicas that are not open: they cannot lead."""
        for place in self.problems:
            record = self._record(place)
            if record is not None and self._is_to_hold(*record):
                stream, partition = record
                yield PartitionReport(
                    key=place,
                    incarnation=stream.incarnation,
                    leader_epoch=partition.leader_epoch,
                    last_epoch=0,
                    end_offset=END_UNKNOWN,
                    unfit="failed",
                    resigned=True,
                )

    async def _changed(self, wanted: Callable[[], bool]) -> None:
        """Wait until the state is as wanted."""
        while not wanted():
            self._applied.clear()
            await self._applied.wait()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("work beside failed", exc_info=task.exception())

    def _is_led_here(self, replica: HostedReplica) -> bool:
        found = self.cluster.group.state.partition(replica.place)
        return found is not None and found[1].leader == self.node

    def _look_at(self, names: Iterable[str]) -> None:
        """Streams whose records may have changed: tell their replicas, open and close."""
        state = self.cluster.group.state
        counts: dict[str, int] = {}
        for name in names:
            record = state.streams.get(name)
            counts[name] = 0 if record is None else len(record.partitions)
            for number in range(counts[name]):
                self._touch(Place(name, number))
        # Looked through once: a command may be about every stream.
        for place in [place for place in self._places if place.stream in counts]:
            if place.partition >= counts[place.stream]:
                self._touch(place)

    def _touch(self, place: Place) -> None:
        record = self._record(place)
        replica = self.at(place)
        if record is not None and replica is not None and _is_of(replica, record[0]):
            replica.view(view_of(*record))
            point = PurgePoint(record[1].purged, record[1].purge_epoch)
            replica.partition.purging.set(point, replica.high_watermark)
            self._subscribing.look(replica)
        if not self._is_as_wanted(place):
            self._settling.touch(place)

    def _record(self, place: Place) -> tuple[StreamRecord, PartitionRecord] | None:
        stream = self.cluster.group.state.streams.get(place.stream)
        if stream is None or place.partition >= len(stream.partitions):
            return None
        return stream, stream.partitions[place.partition]

    def _is_as_wanted(self, place: Place) -> bool:
        record, replica = self._record(place), self.at(place)
        if record is None:
            return replica is None
        stream, partition = record
        if not self._is_to_hold(stream, partition):
            return replica is None and self.node not in partition.former and stream.is_open
        return (
            replica is not None
            and _is_of(replica, stream)
            and replica.partition.stream.config == stream.config
        )

    def _is_to_hold(self, stream: StreamRecord, partition: PartitionRecord) -> bool:
        return stream.is_open and self.node in (*partition.replicas, *partition.observers)

    async def _bring_about(self, place: Place) -> None:
        record, replica = self._record(place), self.at(place)
        if replica is not None and not self._is_as_wanted(place):
            self._forget(replica)
            if record is None or not _is_of(replica, record[0]):
                self.resignations.pop(replica.key, None)  # nobody asks about that stream again
            await finish(replica)
        if record is None:
            return
        if self._is_to_hold(*record):
            await self._open(place, record[0])
        elif self.node in record[1].holders or not record[0].is_open:
            await self._remove(place, record[0])

    async def _open(self, place: Place, record: StreamRecord) -> None:
        if place in self._places or place in self.problems:
            return
        self._opening += 1  # other partitions are opened meanwhile
        try:
            self._descriptors.check(len(self._places) + self._opening, unit=_UNIT)
            partition = await self._open_partition(place, record)
        except (OSError, LogdError) as error:
            self._note_problem(place, error)
            return
        finally:
            self._opening -= 1
        replica = partition.role
        assert isinstance(replica, HostedReplica)
        self._hosted[replica.key] = self._places[place] = replica
        replica.attach(partition)
        self._touch(place)

    async def _open_partition(self, place: Place, record: StreamRecord) -> Partition:
        stream = Stream(config=record.config, incarnation=record.incarnation)
        identified = Identified(place, PartitionKey(record.incarnation, place.partition))
        prepare = self._holdings.prepare
        directory = await asyncio.to_thread(prepare, record, place.partition)
        return await Partition.open(
            stream,
            directory,
            self._around,
            number=place.partition,
            make_role=partial(HostedReplica, identified, self),
        )

    def _note_problem(self, place: Place, error: OSError | LogdError) -> None:
        self.problems[place] = NotOpenError(str(error), cause=cause_of(error))
        if _is_out_of_files(error):
            if self._without_files.get(place) == str(error):
                return  # it is in the log already
            self._without_files[place] = str(error)
        _log.error("replica failed", stream=place.stream, partition=place.partition,
                   reason=str(error))  # fmt: skip

    def _retry_without_files(self) -> None:
        """Open what could not be opened for want of open files, as far as there are enough now."""
        for place in [*self._without_files]:
            if place not in self.problems:  # it is open, or not to be held any more
                del self._without_files[place]
        count = len(self._places) + self._opening
        for place in sorted(self._without_files):
            count += 1
            if not self._descriptors.are_enough(count):
                break
            del self.problems[place]
            self._touch(place)

    async def _remove(self, place: Place, record: StreamRecord) -> None:
        """Move data out of the way that the state says is to go, and say that it is gone."""
        await asyncio.to_thread(self._holdings.remove, record, place.partition)
        self.problems.pop(place, None)
        gone = DataGone(
            node=self.node,
            stream=place.stream,
            incarnation=record.incarnation,
            partitions=(place.partition,),
        )
        self.spawn(self.cluster.group.insist(gone))

    def _forget(self, replica: HostedReplica) -> None:
        self._hosted.pop(replica.key, None)
        self._reported.pop(replica.key, None)
        self._places.pop(replica.place, None)
        self._subscribing.forget(replica)
        replica.detach()


def _is_of(replica: HostedReplica, stream: StreamRecord) -> bool:
    return replica.key.incarnation == stream.incarnation


def _is_out_of_files(error: OSError | LogdError) -> bool:
    """Whether it could not be opened for want of open files, by the budget or in fact."""
    if isinstance(error, RefusedError):
        return error.code == "TOO_MANY_STREAMS"
    return isinstance(error, OSError) and error.errno in _OUT_OF_FILES
