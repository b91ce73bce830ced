"""The replicas of one node: opened, closed, paused and removed as the cluster's state says.

Brings ISRs that leaders propose to the controller: those of one turn go in one command.

When a node dies, every partition that it replicated wants another ISR.

Streams that are paused: what rests meanwhile, and what ends it.

The leader of each partition stays on its subject. The first message that it takes has the
controller end the pause, as an operator would; until that is known, messages are stored as ever.

Puts the partitions that this node leads on their subjects. A stream whose pause is held is on none.
"""

import asyncio
import errno
import gc
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from typing import Any, Final, Protocol

import structlog
from msgspec import Struct

from penstock.base.clock import Clock
from penstock.base.garbage import uncollected
from penstock.logd.cluster.directories import ReplicaDirectories
from penstock.logd.cluster.import_standalone import RulesImport, StreamsImport
from penstock.logd.cluster.node import ClusterNode
from penstock.logd.cluster.replica import (
    Identified,
    ReplicaContext,
    ReplicaRunner,
    streams_of,
    view_of,
)
from penstock.logd.cluster.replication import Replication
from penstock.logd.controller.controller import CHANGES_PER_COMMAND_MAX
from penstock.logd.controller.liveness import END_UNKNOWN, PartitionReport
from penstock.logd.directories import Descriptors
from penstock.logd.errors import (
    NO_SPACE,
    LogdError,
    LogFailedError,
    NotOpenError,
    RefusedError,
    UnavailableError,
)
from penstock.logd.intake.turn import Message
from penstock.logd.limits import REOPEN_FREE_BYTES_MIN, WORKERS_MAX
from penstock.logd.metadata.commands import (
    Basis,
    ChangeIsr,
    Command,
    DataGone,
    DeleteStream,
    IsrChange,
    WakeStream,
)
from penstock.logd.metadata.records import PartitionKey, PartitionRecord, StreamRecord
from penstock.logd.metadata.records import PartitionKey as Place
from penstock.logd.metadata.state import Each, Refused, Result
from penstock.logd.metadata.streams import Stream, is_internal
from penstock.logd.metadata.tables import Done
from penstock.logd.nats.protocol import NatsRefusedError
from penstock.logd.partition.context import PartitionContext, StreamLookup
from penstock.logd.partition.partition import (
    OfflinePartition,
    Partition,
    RecoveredPartition,
    cause_of,
    recover,
)
from penstock.logd.partition.publish_queue import PublishQueue
from penstock.logd.partition.purge import PurgePoint
from penstock.logd.partition.subscriptions import Link, SubscriptionManager
from penstock.logd.replication import events as do
from penstock.logd.replication import events as on
from penstock.logd.replication.events import (
    IsrAnswered,
    Outcome,
    ProposeIsr,
    ReplicationSettings,
    StepDown,
)
from penstock.logd.replication.session import PartitionId

_log = structlog.get_logger()


async def finish_all(replicas: Sequence[ReplicaRunner]) -> list[str]:
    """Close them; none waits for another's disk.

    Returns:
        Streams of which something could not be written or synced at last, by name.
    """
    sound = await asyncio.gather(*map(finish, replicas))
    found = zip(replicas, sound, strict=True)
    return sorted({replica.place.stream for replica, whole in found if not whole})


async def finish(replica: ReplicaRunner) -> bool:
    """Close one; whether its log could be synced, or had failed before."""
    replica.detach()
    if not replica.partition.failure:
        replica.note()
    replica.partition.close()
    try:
        await asyncio.to_thread(replica.partition.finish)
    except LogFailedError as error:
        _log.error("log_close_failed", stream=replica.place.stream, error=str(error))
        return False
    return True


_UNREACHABLE_NS: Final = 1_000_000_000
"""A connection that has been away for less is about to come back."""


class NatsReachability:
    """NATS reachability of one node. Used on the event loop.

    Args:
        connected: Returns whether there is a connection to NATS, both ways.
        clock: The monotonic clock.
    """

    def __init__(self, connected: Callable[[], bool], clock: Clock) -> None:
        self._connected = connected
        self._clock = clock
        self._connected_ns = clock.monotonic_ns()

    def is_unreachable(self) -> bool:
        """Return whether publishers cannot reach this node; call it at every heartbeat."""
        now_ns = self._clock.monotonic_ns()
        if self._connected():
            self._connected_ns = now_ns
        return now_ns - self._connected_ns >= _UNREACHABLE_NS


_CHANGE_S: Final = 5.0
"""Seconds one proposal may take; its leader proposes again what it still wants."""

_OUTCOMES: Final = {
    "STALE_VERSION": Outcome.STALE,
    "STALE_EPOCH": Outcome.DEPOSED,
    "OTHER_INCARNATION": Outcome.DEPOSED,
    "UNKNOWN_STREAM": Outcome.DEPOSED,
    "UNKNOWN_PARTITION": Outcome.DEPOSED,
    "NO_LEADER": Outcome.DEPOSED,
    "NOT_CONTROLLER": Outcome.LOST,
}

_IsrProposal = tuple[ReplicaRunner, ProposeIsr]


class _Host(Protocol):
    @property
    def cluster(self) -> ClusterNode:
        """The way to the controller."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside."""


class IsrProposals:
    """ISR proposals of one node. Used on the event loop."""

    def __init__(self, host: _Host) -> None:
        self._host = host
        self._proposals: list[_IsrProposal] = []

    def propose(self, replica: ReplicaRunner, proposal: ProposeIsr) -> None:
        """Ask the controller at the end of this turn; `IsrAnswered` comes back."""
        if not self._proposals:
            asyncio.get_running_loop().call_soon(self._send)
        self._proposals.append((replica, proposal))

    def _send(self) -> None:
        proposals, self._proposals = self._proposals, []
        for first in range(0, len(proposals), CHANGES_PER_COMMAND_MAX):
            self._host.spawn(self._ask(proposals[first : first + CHANGES_PER_COMMAND_MAX]))

    async def _ask(self, proposals: list[_IsrProposal]) -> None:
        command = ChangeIsr(changes=tuple(_change(*one) for one in proposals))
        outcomes = [Outcome.LOST] * len(proposals)
        try:
            result = await self._host.cluster.group.change(command, timeout_s=_CHANGE_S)
            outcomes = _outcomes(result, len(proposals))
        except (RefusedError, UnavailableError):
            pass
        for (replica, proposal), outcome in zip(proposals, outcomes, strict=True):
            replica.handle(IsrAnswered(proposal.leader_epoch, proposal.number, outcome))


def _change(replica: ReplicaRunner, proposal: ProposeIsr) -> IsrChange:
    basis = Basis(
        stream=replica.place.stream,
        partition=replica.place.partition,
        incarnation=proposal.incarnation,
        leader_epoch=proposal.leader_epoch,
        version=proposal.version,
    )
    return IsrChange(basis=basis, isr=tuple(sorted(proposal.isr)))


def _outcomes(result: Result, count: int) -> list[Outcome]:
    if isinstance(result, Each):
        return [to_outcome(part) for part in result.results]
    return [to_outcome(result)] * count


def to_outcome(result: Done | Refused) -> Outcome:
    if isinstance(result, Done):
        return Outcome.COMMITTED
    return _OUTCOMES.get(result.code, Outcome.REFUSED)


_WAIT_S: Final = 5.0
"""Seconds after a log has failed, or was last opened again."""


class _Replicas(Protocol):
    def reopen(self, place: PartitionKey) -> Coroutine[Any, Any, None]:
        """Open one again."""


class FailedLogReopener:
    """Reopener of the failed logs of one node. Used on the event loop.

    Args:
        replicas: Opens them.
        wait_s: Seconds after a log has failed, or was last opened again.
    """

    def __init__(self, replicas: _Replicas, *, wait_s: float = _WAIT_S) -> None:
        self._replicas = replicas
        self._wait_s = wait_s
        self._since_s: dict[PartitionKey, float] = {}

    async def look(self, failed: Iterable[ReplicaRunner]) -> int:
        """Open again what can be of those whose disk was full; how many."""
        now_s, opened = asyncio.get_running_loop().time(), 0
        before, self._since_s = self._since_s, {}
        for replica in failed:
            place = replica.place
            since_s = self._since_s[place] = before.get(place, now_s)
            if now_s - since_s >= self._wait_s:
                self._since_s[place] = now_s
                opened += await self._revive(replica)
        return opened

    async def _revive(self, replica: ReplicaRunner) -> bool:
        with suppress(OSError, LogdError):  # what it wants now its reason says
            free = await asyncio.to_thread(replica.log.disk.available_bytes, replica.log.directory)
            if free >= REOPEN_FREE_BYTES_MIN:
                await self._replicas.reopen(replica.place)
                return True
        return False


_TOGETHER_S: Final = 0.1
"""Seconds that an open log waits at most for others that are being opened."""


def _blocks_read() -> int:
    """Blocks that the disk has given to this thread so far; what it found in memory is none."""
    return getrusage(RUSAGE_THREAD).ru_inblock


class LogOpeners:
    """Threads that open logs. Used on the event loop.

    A log takes a dozen system calls, and each costs a thread its turn with the interpreter. So one
    thread opens them, one after the other, and others help as far as logs come from the disk.

    What came of several logs is reported in one turn of the loop, which costs a heartbeat and a
    look at everything that changed: a start opens thousands.

    Args:
        max_threads: Logs opened at a time, at most.
        blocks_read: Blocks that the disk has given to the calling thread so far.
    """

    def __init__(self, max_threads: int, *, blocks_read: Callable[[], int] = _blocks_read) -> None:
        self._max_threads = max_threads
        self._blocks_read = blocks_read
        self._lock = threading.Lock()
        self._waiting: deque[_Opening] = deque()
        self._opened: list[tuple[_Opening, RecoveredPartition | Exception]] = []
        self._since_s = 0.0
        self._threads = 0
        self._reporting = False

    async def run(self, open_log: Callable[[], RecoveredPartition]) -> RecoveredPartition:
        """Have a log opened, after those that wait already.

        Raises:
            LogdError, OSError: It cannot be.
        """
        loop = asyncio.get_running_loop()
        opening = _Opening(open_log, loop.create_future())
        with self._lock:
            self._waiting.append(opening)
            begins = self._threads == 0
            self._threads += begins
        if begins:
            self._begin(loop)
        return await opening.opened

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have one more thread work, with what log events have from here."""
        loop.run_in_executor(None, copy_context().run, self._work, loop)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """On a thread: open logs as long as any wait."""
        read = self._blocks_read()
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                opening = self._waiting.popleft()
            result: RecoveredPartition | Exception
            try:
                result = opening.open_log()
            except Exception as error:  # noqa: BLE001 - raised where the log is waited for
                result = error
            before, read = read, self._blocks_read()
            self._note(loop, opening, result, from_disk=read > before)

    def _note(
        self,
        loop: asyncio.AbstractEventLoop,
        opening: "_Opening",
        result: RecoveredPartition | Exception,
        *,
        from_disk: bool,
    ) -> None:
        with self._lock:
            if not self._opened:
                self._since_s = loop.time()
            self._opened.append((opening, result))
            due = not self._waiting or loop.time() - self._since_s >= _TOGETHER_S
            reports = due and not self._reporting
            self._reporting = self._reporting or due
            helped = from_disk and self._threads < min(self._max_threads, len(self._waiting))
            self._threads += helped
        if helped:
            loop.call_soon_threadsafe(self._begin, loop)
        if reports:
            loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        with self._lock:
            self._reporting = False
            opened, self._opened = self._opened, []
        for opening, result in opened:
            if opening.opened.done():
                continue  # its caller was cancelled
            if isinstance(result, Exception):
                opening.opened.set_exception(result)
            else:
                opening.opened.set_result(result)


class _Opening(Struct, frozen=True, eq=False):
    """A log that is to be opened, and who waits for it."""

    open_log: Callable[[], RecoveredPartition]
    opened: "asyncio.Future[RecoveredPartition]"


class ReplicaReconciler:
    """Used on the event loop.

    Args:
        reconcile: Makes one partition as is wanted by then.
    """

    def __init__(self, reconcile: Callable[[PartitionKey], Awaitable[None]]) -> None:
        self._bring_about = reconcile
        self._dirty: set[PartitionKey] = set()
        self._working: dict[PartitionKey, asyncio.Task[None]] = {}
        self._closing = False

    def touch(self, place: PartitionKey) -> None:
        """Something else is wanted of it; not after `close`."""
        if self._closing:
            return
        self._dirty.add(place)
        if place not in self._working:
            self._working[place] = asyncio.create_task(self._work(place))

    async def settled(self, place: PartitionKey) -> None:
        """Wait until nothing is being done about it."""
        while (task := self._working.get(place)) is not None:
            await asyncio.wait([task])

    async def idle(self) -> None:
        """Wait until nothing is being done about any."""
        while self._working:
            await asyncio.wait([*self._working.values()])

    async def close(self) -> None:
        """Begin nothing more; wait for what is being done."""
        self._closing = True
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    async def _work(self, place: PartitionKey) -> None:
        try:
            while place in self._dirty and not self._closing:
                self._dirty.discard(place)
                await self._bring_about(place)
        finally:
            del self._working[place]


_ASK_S: Final = 10.0
"""Seconds one try to end a pause may take; the next message begins another."""

_TEND_S: Final = 1.0
_FORGET_MAX: Final = 10_000
"""Message ids forgotten at a time: some milliseconds of the event loop."""


class AutoResumeContext(Protocol):
    """The node, as far as it is needed here."""

    @property
    def subscription_manager(self) -> SubscriptionManager: ...

    @property
    def cluster(self) -> ClusterNode:
        """The way to the controller."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside, until the node is closed."""


class PausedReplica:
    """A message handler for a paused stream: it takes messages, and says that there were any."""

    def __init__(
        self, publish_queue: PublishQueue, auto_resume: "AutoResume", replica: ReplicaRunner
    ) -> None:
        self._publish_queue = publish_queue
        self._auto_resume = auto_resume
        self._replica = replica
        self.stream = publish_queue.stream
        self.intake = publish_queue.intake
        self.budget = publish_queue.budget

    @property
    def skipped(self) -> int:
        return self._publish_queue.skipped

    @skipped.setter
    def skipped(self, count: int) -> None:
        self._publish_queue.skipped = count

    @property
    def label(self) -> str:
        return self._publish_queue.label

    @property
    def subject(self) -> str:
        return self._publish_queue.subject

    def take(self, messages: list[Message], *, alone: bool = False) -> None:
        """Take messages; the first one ends the pause. See `PublishQueue`."""
        if messages and self._publish_queue.leads:
            self._auto_resume.wake(self._replica)
        self._publish_queue.take(messages, alone=alone)


class AutoResume:
    """Auto-resume of the paused partitions of one node. Used on the event loop."""

    def __init__(self, host: AutoResumeContext) -> None:
        self._host = host
        self._paused: set[ReplicaRunner] = set()
        self._asking: set[str] = set()
        self._checking = False

    def handler(self, replica: ReplicaRunner) -> PublishQueue | PausedReplica:
        """Return the message handler of a partition that this node leads."""
        publish_queue = replica.partition.publish_queue
        return (
            PausedReplica(publish_queue, self, replica)
            if replica in self._paused
            else publish_queue
        )

    def rest(self, replica: ReplicaRunner, *, paused: bool) -> bool:
        """A replica's stream is paused, or is not; whether that is news."""
        if paused == (replica in self._paused):
            return False
        replica.partition.compaction_scheduler.paused = paused
        if paused:
            self._paused.add(replica)
        else:
            self._paused.discard(replica)
        if self._paused and not self._checking:
            self._checking = True
            self._host.spawn(self._check_paused())
        return True

    def forget(self, replica: ReplicaRunner) -> None:
        """It is closed."""
        self._paused.discard(replica)

    def wake(self, replica: ReplicaRunner) -> None:
        """A message has come for a partition whose stream is paused."""
        stream, incarnation = replica.place.stream, replica.key.incarnation
        if incarnation not in self._asking:
            self._asking.add(incarnation)
            self._host.spawn(self._ask(WakeStream(stream=stream, incarnation=incarnation)))

    async def _ask(self, command: WakeStream) -> None:
        try:
            result = await self._host.cluster.group.change(command, timeout_s=_ASK_S)
            problem = result.message if isinstance(result, Refused) else ""
        except LogdError as error:
            problem = str(error)
        finally:
            self._asking.discard(command.incarnation)
        if problem:
            _log.warning("stream_resume_failed", stream=command.stream, reason=problem)
        else:
            _log.info("stream_resumed", stream=command.stream)

    async def _check_paused(self) -> None:
        """Give back what a stream at rest has in mind and needs no more."""
        while self._paused:
            await asyncio.sleep(_TEND_S)
            now_ns = self._host.subscription_manager.now().unix_ns
            for replica in list(self._paused):
                replica.partition.intake.dedup.message_ids.expire(now_ns, _FORGET_MAX)
        self._checking = False


class _Subscribed(Struct, eq=False):
    """A partition on its subject, or about to be.

    Attributes:
        stands: Whether the subscription does.
    """

    replica: ReplicaRunner
    stands: bool = False


class SubscriptionContext(ReplicaContext, AutoResumeContext, Protocol):
    """The node, as far as it is needed here."""


class ReplicaSubscriptions:
    """Subscriptions of the partitions that one node leads. Used on the event loop.

    Args:
        host: Subscribes and unsubscribes partitions.
        record: Returns a partition with its stream; None: there is none.

    Attributes:
        closing: Whether no further partition is subscribed.
    """

    def __init__(
        self,
        host: SubscriptionContext,
        record: Callable[[PartitionKey], tuple[StreamRecord, PartitionRecord] | None],
    ) -> None:
        self.closing = False
        self._host = host
        self._subscription_manager = host.subscription_manager
        self._auto_resume = AutoResume(host)
        self._record = record
        self._subscribed: dict[PartitionKey, _Subscribed] = {}

    def look(self, replica: ReplicaRunner) -> None:
        """It leads or leads no more, is in sync or not, or its stream's options may be others."""
        record = self._record(replica.place)
        options = None if record is None else record[0].options
        turned = self._auto_resume.rest(replica, paused=options is not None and options.paused)
        if replica.partition.internal or record is None or options is None or not options.listens:
            self.end(replica)
            replica.subscribed = replica.leading  # it is on no subject, as it should
            return
        # Publishers must not take silence for a log that has failed, where no other node can lead.
        refuses = replica.partition.publish_queue.refuses
        if self.closing or not (replica.leading or refuses):
            self.end(replica)
            return
        found = self._subscribed.get(replica.place)
        if found is None or found.replica is not replica:
            found = self._subscribed[replica.place] = _Subscribed(replica)
            replica.subscribed = False  # what was said while it was to be on no subject
            self._host.spawn(self._begin(found, options.queue_group or ""))
            return
        if turned:
            self._subscription_manager.hand_over(self._auto_resume.handler(replica))
        if found.stands and replica.leading:
            self._take(replica)

    def end(self, replica: ReplicaRunner) -> None:
        """Take it off its subject, if it is on it."""
        found = self._subscribed.get(replica.place)
        if found is not None and found.replica is replica:
            del self._subscribed[replica.place]
            self._subscription_manager.remove(replica.partition.label)
            replica.subscribed = False
            if replica.leading:
                replica.led_ns = self._host.clock.monotonic_ns()

    def forget(self, replica: ReplicaRunner) -> None:
        """It is closed."""
        self.end(replica)
        self._auto_resume.forget(replica)

    async def _begin(self, found: _Subscribed, queue: str) -> None:
        replica, alone = found.replica, found.replica.partition.publish_queue.alone
        if self._subscribed.get(replica.place) is not found:
            return  # it was closed before this began
        try:
            handler = self._auto_resume.handler(replica)
            await self._subscription_manager.add(handler, queue, keep=alone)
        except NatsRefusedError as error:
            _log.error(
                "stream_subscription_failed", stream=replica.partition.label, reason=str(error)
            )
            if alone:  # no other node could: `SubscriptionManager.denied` says it
                self._stands(found)
                return
            if self._subscribed.get(replica.place) is found:
                del self._subscribed[replica.place]
            if replica.leading:
                replica.handle(StepDown())
            return
        self._stands(found)

    def _stands(self, found: _Subscribed) -> None:
        if self._subscribed.get(found.replica.place) is found:
            found.stands = True
            if found.replica.leading:
                self._take(found.replica)

    def _take(self, replica: ReplicaRunner) -> None:
        """It leads, and is on its subject: say what is missing."""
        if replica.subscribed:
            return
        replica.subscribed, label = True, replica.partition.label
        now_ns = self._host.clock.monotonic_ns()
        # No node led before the first epoch: the stream is new. And that the only node is started
        # says itself that no node was there.
        alone = replica.partition.publish_queue.alone
        if (replica.has_led or (replica.epoch > 1 and not alone)) and now_ns > replica.led_ns:
            self._subscription_manager.missed(label, now_ns - replica.led_ns)
        self._subscription_manager.begins(label)


_NOTE_S: Final = 1.0
"""Seconds between looks at what replicas know and has to be written down, and at failed ones."""

_UNCOLLECTED_S: Final = 60.0
"""Seconds in which the logs are opened that there are at a start; then garbage is collected again,
though one may still be waiting for its disk."""

_UNIT: Final = "replicas on this node"

_ELECTED_LOGGED_MAX: Final = 20
"""Partitions that this node leads since a turn of the event loop began, with a line each in the
log. At a start there may be thousands: each line would make the event loop wait for the lock."""

_OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})


class ReplicaManager:
    """The replicas of one node; see `node.Replicas` and `replica.ReplicaContext`.

    Args:
        data_dir: The data directory; it exists and is locked.
        link: The link for subscriptions.
        make_context: Returns the partitions' context, given the lookup of streams by subject.
        clock: The clock; its monotonic time goes on while the machine sleeps.
        reachability: Whether publishers reach this node.
        settings: The cluster's settings.
        descriptors: Bound on the open files, and so on the open replicas.

    Attributes:
        subscription_manager: The subscribed partitions.
        streams_import, rules_import: Imports of what 0.1.0 kept here outside of a cluster.
        problems: Why replicas are not open, by partition.
        masters: Keys with which this node encrypts.
        revived: Number of logs reopened since the start.
        ready: Whether it has the state as it was when the node started, or later.
        deleted: Set when a stream has been deleted, or may have been.
    """

    def __init__(  # noqa: PLR0913 - what a node gives its replicas
        self,
        data_dir: Path,
        link: Link,
        make_context: Callable[[StreamLookup], PartitionContext],
        *,
        clock: Clock,
        reachability: NatsReachability,
        settings: ReplicationSettings | None = None,
        descriptors: Descriptors | None = None,
    ) -> None:
        self.clock = clock
        self._reachability = reachability
        self.settings = settings or ReplicationSettings()
        self.problems: dict[Place, NotOpenError] = {}
        self._descriptors = descriptors or Descriptors()
        self._elected: list[ReplicaRunner] = []
        self._opening = 0
        self._without_files: dict[Place, str] = {}
        self._without_space: dict[Place, str] = {}
        self._not_removed: dict[Place, str] = {}
        self._to_reopen: set[Place] = set()
        self._offline: dict[Place, OfflinePartition] = {}
        context = self._context = make_context(self)
        self.node, self.masters, self.space = context.node, context.masters, context.space
        self.dispatcher = context.dispatcher
        self.subscription_manager = SubscriptionManager(
            link, context.budget, context.clock, context.admission
        )
        self._replica_directories = ReplicaDirectories(data_dir)
        self.streams_import = StreamsImport(self._replica_directories)
        self.rules_import = RulesImport(data_dir)
        self._cluster: ClusterNode | None = None
        self.ready, self.revived = False, 0
        self.resignations: dict[PartitionId, int] = {}
        self._hosted: dict[PartitionId, ReplicaRunner] = {}
        self._places: dict[Place, ReplicaRunner] = {}
        self._sorted: tuple[ReplicaRunner, ...] | None = None
        self._unsettled: list[Place] = []
        self._subscriptions_here = ReplicaSubscriptions(self, self._record)
        self._reconciler = ReplicaReconciler(self._bring_about)
        self._openers = LogOpeners(WORKERS_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reported: dict[PartitionId, PartitionReport] = {}
        self._changed_reports: dict[PartitionId, None] = {}
        self._isr = IsrProposals(self)
        self._applied, self.deleted = asyncio.Event(), asyncio.Event()

    # Made known to each other.

    def attach(self, cluster: ClusterNode) -> None:
        """The node's part in the cluster; before it runs."""
        self._cluster = cluster
        cluster.importing = self.streams_import.pending

    @property
    def cluster(self) -> ClusterNode:
        """The node's part in the cluster."""
        assert self._cluster is not None
        return self._cluster

    @property
    def replication(self) -> Replication:
        return self.cluster.replication

    # What there is.

    def find(self, key: PartitionId) -> ReplicaRunner | None:
        """A replica by its stream's incarnation."""
        return self._hosted.get(key)

    def at(self, place: Place) -> ReplicaRunner | None:
        """A replica by its stream's name."""
        return self._places.get(place)

    def hosted(self) -> list[ReplicaRunner]:
        """Every open replica, by stream and partition; the list is the caller's."""
        if (found := self._sorted) is None:
            replicas = list(self._places.values())
            replicas.sort(key=lambda one: (one.place.stream, one.place.partition))
            found = self._sorted = tuple(replicas)
        return list(found)

    def each(self) -> list[ReplicaRunner]:
        """Every open replica, as they come: for what is done to all of them all the time."""
        return list(self._hosted.values())

    def partitions(self) -> list[Partition]:
        """Every open partition, by stream and number."""
        return [replica.partition for replica in self.hosted()]

    def offline_partitions(self) -> list[OfflinePartition]:
        """Partitions that are on this node only and could not be opened, by stream and number."""
        return [offline for _, offline in sorted(self._offline.items())]

    def is_settled(self) -> bool:
        """Return whether every replica is open and accepts messages, or has a known problem."""
        if not self.ready:
            return False
        left = self._unsettled  # at the last look: one that still is not is enough for a no
        for count in range(len(left), 0, -1):
            if not self._is_settled(left[count - 1]):
                self._unsettled = left[:count]
                return False
        self._unsettled = [
            place
            for name, stream in list(self.cluster.group.state.streams.items())
            for place in map(partial(Place, name), range(len(stream.partitions)))
            if not self._is_settled(place)
        ]
        return not self._unsettled

    def match(self, subject: str) -> tuple[str, ...]:
        """Names of the streams that store what is published on a subject."""
        return self.cluster.group.state.match(subject)

    def knows(self, stream: str) -> bool:
        return self.cluster.group.state.knows(stream)

    # Life.

    async def run(self) -> None:
        """Look after the replicas until cancelled."""
        await self.cluster.group.catch_up()
        await self.rules_import.run(self.cluster.group)
        await self.streams_import.run(self.cluster)
        await self._look_at_space()
        self.ready = True
        self._look_at(self.cluster.group.state.streams)
        with uncollected():
            with suppress(TimeoutError):
                async with asyncio.timeout(_UNCOLLECTED_S):
                    await self._reconciler.idle()
            # Hardly any of it is garbage (0 to 5 objects of 5,000 logs), and a look at all of it
            # takes a second, in which no request is answered. `_forget` ends this.
            gc.freeze()
        reviving = FailedLogReopener(self)
        while True:
            await asyncio.sleep(_NOTE_S)
            await self._look_at_space()
            self.revived += await reviving.look(self._look_at_replicas())
            await self._retry_without_space()
            self._retry_without_files()
            self._retry_removals()

    def _look_at_replicas(self) -> list[ReplicaRunner]:
        """Look at those that have something to be noted; those whose disk was full."""
        out_of_space = []
        for replica in self.each():
            log = replica.log
            if replica.followed or log.damages.ranges:  # of thousands, most are neither
                replica.look()
            if log.out_of_space:
                out_of_space.append(replica)
        return out_of_space

    async def step_down(self, timeout_s: float) -> None:
        """Have other nodes lead what this one leads and they have, as far as they do in time."""
        shared = [one for one in self.hosted() if not one.partition.publish_queue.alone]
        for replica in shared:
            replica.handle(on.StepDown())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed(lambda: not any(map(self._is_led_here, shared)))

    async def close(self) -> list[str]:
        """Commit what was accepted and close every partition; none waits for another's disk.

        Returns:
            Streams of which something could not be written or synced at last, by name.
        """
        self._subscriptions_here.closing = True
        await self._reconciler.close()
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
            RefusedError: Nor will it be as long as nothing is changed, such as `WRONG_KEY`.
        """
        self._to_reopen.add(place)  # the reconciler does it, though the caller may go meanwhile
        self._reconciler.touch(place)
        await self._reconciler.settled(place)
        if problem := self.problems.get(place):
            where = f"partition {place.partition} of stream {place.stream!r}"
            message = f"{where} cannot be opened: {problem}"
            if problem.cause in ("CORRUPT", "UNAVAILABLE"):
                raise NotOpenError(message, cause=problem.cause)
            raise RefusedError(problem.cause, message)

    # As `Replicas`.

    def reports(self, *, full: bool) -> tuple[PartitionReport, ...]:
        report_changed, self._changed_reports = self._changed_reports, {}
        found = []
        for key in self._hosted if full else report_changed:
            replica = self._hosted.get(key)
            if replica is not None:
                report = replica.report()
                if full or self._reported.get(key) != report:
                    self._reported[key] = report
                    found.append(report)
        for report in self._closed_reports():
            key = PartitionId(report.incarnation, report.key.partition)
            if full or self._reported.get(key) != report:
                self._reported[key] = report
                found.append(report)
        return tuple(found)

    def unreachable(self) -> bool:
        return self._reachability.is_unreachable()

    def check_files(self, more: int) -> None:
        """See whether this node may have so many further replicas open.

        Raises:
            RefusedError: `TOO_MANY_STREAMS`.
        """
        streams = self.cluster.group.state.streams.values()
        if self._descriptors.are_enough(sum([len(one.partitions) for one in streams]) + more):
            return  # also where it is to hold all of them
        held = sum(
            self._is_to_hold(stream, partition)
            for stream in streams
            for partition in stream.partitions
        )
        self._descriptors.check(held + more, unit=_UNIT)

    def on_lease(self, *, held: bool) -> None:
        for replica in self.hosted():
            if held:
                replica.tick()
            else:
                replica.fence()

    def on_applied(self, command: Command, result: Result) -> None:
        if self.ready:
            self._look_at(streams_of(command, result))
        self._applied.set()
        if isinstance(command, DeleteStream):
            self.deleted.set()

    def on_restored(self) -> None:
        if self.ready:
            self.deleted.set()
            held = {place.stream for place in self._places}
            self._look_at({*self.cluster.group.state.streams, *held})

    # As `Host`.

    def lease_until_ns(self) -> int:
        return self.cluster.controlling.lease.until_ns

    def report_changed(self, replica: ReplicaRunner) -> None:
        self._changed_reports[replica.key] = None

    def on_lead(self, replica: ReplicaRunner) -> None:
        """Note an elected replica; subscribe it unless it is being closed."""
        if not self._elected:
            asyncio.get_running_loop().call_soon(self._log_elected)
        self._elected.append(replica)
        if self.at(replica.place) is replica:
            self._subscriptions_here.look(replica)

    def _log_elected(self) -> None:
        """Log what this node leads since the turn began: at a start, thousands, in one line."""
        elected, self._elected = self._elected, []
        if len(elected) > _ELECTED_LOGGED_MAX:
            labels = [replica.partition.label for replica in elected[:_ELECTED_LOGGED_MAX]]
            _log.info("leader_elected", partitions=len(elected), first=labels)
            return
        for replica in elected:
            place = replica.place
            _log.info(
                "leader_elected",
                stream=place.stream,
                partition=place.partition,
                epoch=replica.epoch,
            )

    def on_stop(self, replica: ReplicaRunner) -> None:
        if self.at(replica.place) is replica:
            self._subscriptions_here.look(replica)

    def propose_isr(self, replica: ReplicaRunner, proposal: do.ProposeIsr) -> None:
        self._isr.propose(replica, proposal)

    def look(self) -> None:
        self.cluster.controlling.look()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    # Parts.

    def _closed_reports(self) -> Iterable[PartitionReport]:
        """The report to the controller about replicas that are not open: they cannot lead."""
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
            _log.error("background_task_failed", exc_info=task.exception())

    def _is_led_here(self, replica: ReplicaRunner) -> bool:
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
            self._subscriptions_here.look(replica)
        if not self._is_as_wanted(place):
            self._reconciler.touch(place)

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

    def _is_settled(self, place: Place) -> bool:
        record, replica = self._record(place), self.at(place)
        if record is None or not self._is_to_hold(*record):
            return True
        if place in self.problems or (replica is not None and replica.partition.failure):
            return True
        if replica is None or not self._is_as_wanted(place) or not replica.leading:
            return False
        return (
            replica.subscribed
            or not record[0].options.listens
            or self.subscription_manager.is_denied(replica.partition.label)
        )

    def _is_to_hold(self, stream: StreamRecord, partition: PartitionRecord) -> bool:
        return stream.is_open and self.node in (*partition.replicas, *partition.observers)

    async def _bring_about(self, place: Place) -> None:
        record, replica = self._record(place), self.at(place)
        failed = self._failed_to_reopen(place)
        if replica is not None and (failed is not None or not self._is_as_wanted(place)):
            self._forget(replica)
            if record is None or not _is_of(replica, record[0]):
                self.resignations.pop(replica.key, None)  # no node asks about that stream again
            await finish(replica)
        if record is None or not self._is_to_hold(*record):
            self._no_longer_offline(place)
        if record is None:
            return
        if self._is_to_hold(*record):
            await self._open(place, record[0])
            if failed is not None and (again := self.at(place)) is not None:
                again.partition.count_on(failed)
        elif self.node in record[1].holders or not record[0].is_open:
            await self._remove(place, record[0])

    def _failed_to_reopen(self, place: Place) -> Partition | None:
        """Begin what `reopen` asks; the partition whose log has failed, if it is open."""
        if place not in self._to_reopen:
            return None
        self._to_reopen.discard(place)
        self.problems.pop(place, None)
        replica = self.at(place)
        return replica.partition if replica is not None and replica.partition.failure else None

    async def _open(self, place: Place, record: StreamRecord) -> None:
        if place in self._places or place in self.problems:
            return
        self._opening += 1  # other partitions are opened meanwhile
        try:
            self._descriptors.check(len(self._places) + self._opening, unit=_UNIT)
            partition = await self._open_partition(place, record)
        except (OSError, LogdError) as error:
            self._note_problem(place, error)
            await self._set_aside(place, record, error)
            return
        finally:
            self._opening -= 1
        replica = partition.role
        assert isinstance(replica, ReplicaRunner)
        replica.attach(partition)  # before a probe's thread finds it
        self._hosted[replica.key] = self._places[place] = replica
        self._sorted = None
        if (offline := self._no_longer_offline(place)) is not None:
            partition.publish_queue.intake.counts = offline.intake.counts
            partition.publish_queue.skipped = offline.skipped
        self._touch(place)
        self.look()

    async def _open_partition(self, place: Place, record: StreamRecord) -> Partition:
        stream = Stream(config=record.config, incarnation=record.incarnation)
        identified = Identified(
            place,
            PartitionId(record.incarnation, place.partition),
            alone=record.partitions[place.partition].replicas == (self.node,),
        )

        def recover_prepared() -> RecoveredPartition:
            directory = self._replica_directories.prepare(record, place.partition)
            make_role = partial(ReplicaRunner, identified, self)
            return recover(stream, (directory, place.partition), self._context, make_role)

        recovered = await self._openers.run(recover_prepared)
        return Partition(stream, place.partition, recovered, self._context)

    async def _set_aside(
        self, place: Place, record: StreamRecord, error: OSError | LogdError
    ) -> None:
        """Have what no other node has answer publishers that it cannot store anything."""
        if set(record.partitions[place.partition].replicas) != {self.node}:
            return
        stream = Stream(config=record.config, incarnation=record.incarnation)
        offline = OfflinePartition(stream, error, self._context, place.partition)
        before, self._offline[place] = self._offline.get(place), offline
        if before is not None:  # it is on its subject already
            offline.count_on(before)
            self.subscription_manager.hand_over(offline)
        elif not is_internal(place.stream) and record.options.listens:
            await self.subscription_manager.add(offline)

    def _no_longer_offline(self, place: Place) -> OfflinePartition | None:
        offline = self._offline.pop(place, None)
        if offline is not None:
            self.subscription_manager.remove(offline.label)
        return offline

    def _note_problem(self, place: Place, error: OSError | LogdError) -> None:
        self.problems[place] = NotOpenError(str(error), cause=cause_of(error))
        if _is_out_of_files(error):
            waiting = self._without_files
        elif isinstance(error, OSError) and error.errno in NO_SPACE:
            waiting = self._without_space
        else:
            waiting = None
        if waiting is not None:
            if waiting.get(place) == str(error):
                return  # it is in the log already
            waiting[place] = str(error)
        _log.error("replica_open_failed", stream=place.stream, partition=place.partition,
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

    async def _retry_without_space(self) -> None:
        """Open what could not be opened for want of space, once there is some."""
        for place in [*self._without_space]:
            if place not in self.problems:  # it is open, or not to be held any more
                del self._without_space[place]
            elif await self._has_space():
                with suppress(LogdError):  # what it wants now its reason says
                    await self.reopen(place)
                    self.revived += 1

    def _retry_removals(self) -> None:
        """Remove data that the disk did not let go before."""
        for place in [*self._not_removed]:
            if self._is_as_wanted(place):
                del self._not_removed[place]
            else:
                self._reconciler.touch(place)

    async def _look_at_space(self) -> None:
        """Have publishers refused, or taken again, by what is free on the disk now."""
        free = await self._free_bytes()
        if free is None or not self.space.observe(free):
            return
        for replica in self.each():
            replica.partition.publish_queue.space_changed()
        if refusal := self.space.refusal:
            _log.error("publishing_suspended", reason=refusal.description)
        else:
            _log.info("publishing_resumed", free_bytes=free)

    async def _has_space(self) -> bool:
        free = await self._free_bytes()
        return free is not None and free >= REOPEN_FREE_BYTES_MIN

    async def _free_bytes(self) -> int | None:
        """Return what is free on the fullest disk; None: one does not say, and is asked again."""
        disk, directories = self._context.disk, self._replica_directories.on_disks

        def free_bytes() -> int:
            return min(map(disk.available_bytes, directories))

        try:
            return await asyncio.to_thread(free_bytes)
        except OSError:
            return None

    async def _remove(self, place: Place, record: StreamRecord) -> None:
        """Move data out of the way that the state says is to go, and say that it is gone."""
        try:
            await asyncio.to_thread(self._replica_directories.remove, record, place.partition)
        except OSError as error:  # until then its node counts as having it
            if self._not_removed.get(place) != str(error):  # else it is in the log already
                self._not_removed[place] = str(error)
                _log.error("replica_removal_failed", stream=place.stream, partition=place.partition,
                           reason=str(error))  # fmt: skip
            return
        self._not_removed.pop(place, None)
        self.problems.pop(place, None)
        gone = DataGone(
            node=self.node,
            stream=place.stream,
            incarnation=record.incarnation,
            partitions=(place.partition,),
        )
        self.spawn(self.cluster.group.insist(gone))

    def _forget(self, replica: ReplicaRunner) -> None:
        self._hosted.pop(replica.key, None)
        self._reported.pop(replica.key, None)
        self._places.pop(replica.place, None)
        self._sorted = None
        self._subscriptions_here.forget(replica)
        replica.detach()
        gc.unfreeze()  # what is forgotten may be garbage by now


def _is_of(replica: ReplicaRunner, stream: StreamRecord) -> bool:
    return replica.key.incarnation == stream.incarnation


def _is_out_of_files(error: OSError | LogdError) -> bool:
    """Return whether the error is a lack of open files, by the budget or in fact."""
    if isinstance(error, RefusedError):
        return error.code == "TOO_MANY_STREAMS"
    return isinstance(error, OSError) and error.errno in _OUT_OF_FILES
