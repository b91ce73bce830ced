"""A cluster of real processes on a network under control, under load, and the end of it."""

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import nats.errors
from nats import connect
from typing_extensions import override

from penstock.logd.client import PartitionInfo
from penstock.logd.errors import LogdError
from penstock.logd.format.acks import PubAck, decode_ack
from penstock.logd.format.rows import batch_records
from penstock.logd.offline.dump import Dump
from tests.harness.checkers.history import Log, Row, Verdict, judge, judge_group
from tests.harness.faults.process import freeze, thaw
from tests.harness.load import Load
from tests.harness.network import NATS, Network
from tests.harness.plan import Run, System
from tests.harness.publishers import Publisher, mixed
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import RestartableNatsServer
from tests.support.waiting import wait_until


class FaultyCluster:
    """A cluster, its network, its NATS server, and what may happen to them.

    Args:
        server: Of NATS; it runs.
        network: It runs.
        cluster: It runs; every node reaches every other, and NATS, over the network.
    """

    def __init__(
        self, server: RestartableNatsServer, network: Network, cluster: LogdCluster
    ) -> None:
        self.nats, self.network, self.cluster = server, network, cluster
        self.frozen: set[str] = set()

    @property
    def names(self) -> list[str]:
        return self.cluster.names

    @property
    def replicas_wanted(self) -> int:
        """How many each partition has in the end: the default of a stream."""
        return min(3, len(self.names))

    @contextmanager
    def load(
        self,
        *streams: str,
        publishers: Sequence[Publisher] | None = None,
        grouped: str | None = None,
    ) -> Iterator[Load]:
        """Create the streams, publish to them and read them, one of them by a group as well."""
        for stream in streams:
            self.cluster.create(stream, f"soak.{stream}.>")
        chosen = publishers or [p for number, s in enumerate(streams) for p in mixed(s, number)]
        fetch = ",".join(self.cluster.nodes[name].fetch for name in self.names)
        with Load(self.nats.url, chosen, fetch=fetch, grouped=grouped) as load:
            yield load

    # Faults.

    def kill(self, *nodes: str) -> None:
        for node in nodes:
            self.frozen.discard(node)
            code = self.cluster.nodes[node].daemon.kill()
            assert code == -signal.SIGKILL, f"{node} had ended by itself: {code}"

    def stop(self, node: str) -> None:
        """SIGTERM, and wait for the end."""
        daemon = self.cluster.nodes[node].daemon
        code = daemon.stop()
        assert code == 0, f"{node} ended with {code}: {daemon.log()[-3000:]}"

    def start(self, *nodes: str) -> None:
        """Start what was killed; it need not take part on return."""
        self.cluster.start(*nodes)

    def freeze(self, node: str) -> None:
        freeze([self.cluster.nodes[node].daemon.pid])
        self.frozen.add(node)

    def thaw(self, node: str) -> None:
        thaw([self.cluster.nodes[node].daemon.pid])
        self.frozen.discard(node)

    def isolate(self, node: str, *, peers: bool = True, nats: bool = False) -> None:
        """Cut a node off from the others, from NATS, or both."""
        if peers:
            self.network.cut(node, self.names)
        if nats:
            self.network.cut(node, [NATS])

    def mute(self, node: str, *, towards: Sequence[str] | None = None) -> None:
        """What a node says does not arrive; it hears the others."""
        others = self.names if towards is None else towards
        self.network.hold(*[(node, other) for other in others if other != node])

    def deafen(self, node: str) -> None:
        """What others say to a node does not arrive; they hear it."""
        self.network.hold(*[(other, node) for other in self.names if other != node])

    # Single messages.

    def ask(self, subject: str, payload: bytes, **headers: str) -> PubAck | None:
        """Publish once; the answer, unless nobody answers in a second."""

        async def ask() -> PubAck | None:
            client = await connect(self.nats.url)
            try:
                reply = await client.request(subject, payload, timeout=1, headers=headers or None)
            except nats.errors.Error:
                return None
            finally:
                await client.close()
            return decode_ack(reply.data)

        return asyncio.run(ask())

    def refusal(self, subject: str) -> str:
        """Why a message is refused; empty when it is stored, or nobody answers."""
        answer = self.ask(subject, b"refuse me")
        return answer.nack.name if answer is not None and answer.nack else ""

    def store(self, subject: str, payload: bytes) -> PubAck:
        """Publish with an id until it is stored; the ack."""
        headers = {"Nats-Msg-Id": payload.decode()}

        def stored() -> PubAck | None:
            answer = self.ask(subject, payload, **headers)
            return answer if answer is not None and answer.nack is None else None

        found = wait_until(stored, within_s=30, what=f"{payload!r} stored")
        assert found is not None
        return found

    # Views.

    def knows(self, node: str, stream: str) -> PartitionInfo:
        """A partition as a node sees it, once it does."""

        def seen() -> PartitionInfo | None:
            with suppress(LookupError):
                return self.cluster.partition(stream, node=node)
            return None

        found = wait_until(seen, within_s=30, what=f"{node} describes {stream}")
        assert found is not None
        return found

    def others(self, node: str) -> list[str]:
        return [name for name in self.names if name != node]

    def leader_among(self, stream: str, nodes: Sequence[str]) -> str:
        """Who leads, as these nodes see it, once it is one of them."""

        def found() -> str | None:
            with suppress(LookupError):
                leader = self.cluster.partition(stream, node=nodes[0]).leader
                return leader if leader in nodes else None
            return None

        try:
            return str(wait_until(found, within_s=30, what=f"a leader of {stream} in {nodes}"))
        except AssertionError as error:
            raise AssertionError(f"{error}; {self._views(stream)}") from None

    def _views(self, stream: str) -> str:
        """What each node says of a stream and of the cluster, for the message of a failure."""
        views: list[str] = []
        for node in self.standing():
            try:
                with self.cluster.client(node) as log:
                    views.append(f"{node} sees {log.cluster()}")
                views.append(f"{node} sees {self.cluster.partition(stream, node=node)}")
            except (LogdError, LookupError) as error:
                views.append(f"{node} says {error!r}")
        return "; ".join(views)

    def standing(self) -> list[str]:
        """Nodes that run and are not frozen."""
        return [name for name in self.cluster.running() if name not in self.frozen]

    def controller(self, *nodes: str) -> str:
        """Who leads the metadata group, as some nodes see it."""

        def found() -> str | None:
            with self.cluster.client(*(nodes or self.cluster.running())) as log:
                return log.cluster().controller

        return str(wait_until(found, within_s=30, what="a controller"))

    def replica(self, node: str, stream: str, number: int = 0) -> Log:
        """A node's log of a partition, as it lies on its disk."""
        return read_log(self.directory(node, stream, number))

    def directory(self, node: str, stream: str, number: int = 0) -> Path:
        """Where a node has the log of a partition."""
        streams = self.cluster.nodes[node].data_dir / "streams"
        (found,) = streams.glob(f"{stream}-*/{number}")
        return found

    # The end.

    def recover(self) -> None:
        """No more faults: everything runs, and reaches everything."""
        self.network.heal()
        for node in list(self.frozen):
            self.thaw(node)
        gone = [name for name in self.names if name not in self.cluster.running()]
        self.start(*gone)

    def settle(self, load: Load, *streams: str) -> dict[str, Verdict]:
        """End the faults and the load; wait until the replicas agree; judge."""
        self.recover()
        load.goes_on()
        load.stop()
        verdicts = {}
        for stream in streams:
            self.wait_quiet(stream)
            end = self.cluster.partition(stream).high_watermark + 1
            reads = load.read_to(stream, end)
            verdicts[stream] = judge(
                load.acked(stream), load.publishing(stream), self.replicas(stream), reads
            )
            if stream == load.grouped:
                judge_group(verdicts[stream], load.given_to(end), self.replicas(stream))
        return verdicts

    def wait_quiet(self, stream: str) -> None:
        """Wait until every replica has everything; nobody publishes any more."""
        wait_until(lambda: self._is_quiet(stream), within_s=30, what=f"{stream} is quiet")

    def _is_quiet(self, stream: str) -> bool:
        """Whether all nodes know the same of it, and every replica has everything, committed.

        A node that was cut off shows what it knew before; disks show what is there.
        """
        try:
            views = [self.cluster.partition(stream, node=name) for name in self.names]
        except LookupError:
            return False
        if len({(part.leader, part.leader_epoch, part.replicas, part.isr) for part in views}) > 1:
            return False
        part = views[0]
        if len(part.replicas) != self.replicas_wanted or set(part.isr) != set(part.replicas):
            return False
        ends = {log_end(self.directory(name, stream)) for name in part.replicas}
        return ends == {view.high_watermark + 1 for view in views if view.is_known}

    def replicas(self, stream: str, number: int = 0) -> dict[str, Log]:
        """The log of a partition on each node that has a replica, as it lies on its disk."""
        holders = self.cluster.partition(stream, number).replicas
        return {name: self.replica(name, stream, number) for name in holders}


def log_end(directory: Path) -> int:
    return Dump(directory, on_damage=lambda _: None).end_offset


def read_log(directory: Path) -> Log:
    """A log as it lies in its directory; nothing may be damaged."""
    damage: list[str] = []
    dump = Dump(directory, on_damage=damage.append)
    start, end = dump.start_offset, dump.end_offset
    rows = {
        offset: Row(header.leader_epoch, record)
        for header, batch in dump.batches(start, end)
        for offset, record in batch_records(header, batch)
    }
    assert not damage, damage
    return Log(start, end, rows)


@contextmanager
def faulty_cluster(directory: Path, *, size: int = 3, **options: Any) -> Iterator[FaultyCluster]:
    """Run a cluster on a network until the block ends.

    Args:
        directory: For everything.
        size: Nodes.
        options: Further keys of the configuration of each.
    """
    with ExitStack() as stack:
        server = RestartableNatsServer(directory / "nats")
        stack.callback(server.close)
        server.start()
        address = server.url.removeprefix("nats://")
        network = stack.enter_context(Network())
        cluster = LogdCluster(
            directory,
            lambda name: f"nats://{network.relay(NATS, address, dialer=name)}",
            size=size,
            reached=network.relay,
            **options,
        )
        stack.enter_context(cluster)
        yield FaultyCluster(server, network, cluster)


class ClusterUnderLoad(System):
    """A cluster that publishers, readers and a consumer group use while faults meet it.

    Args:
        run: Says where, and how many nodes (`--nodes`).
        streams: By name their publishers; the first one is read by the group, moved and altered.
    """

    def __init__(self, run: Run, streams: Mapping[str, Sequence[Publisher]]) -> None:
        super().__init__(run)
        self.stream = next(iter(streams))
        self.draining: set[str] = set()
        self._streams = streams

    @override
    def begin(self, stack: ExitStack) -> None:
        publishers = [publisher for some in self._streams.values() for publisher in some]
        self.cluster = stack.enter_context(
            faulty_cluster(self.run.directory, size=self.run.options.nodes)
        )
        self._load = stack.enter_context(
            self.cluster.load(*self._streams, publishers=publishers, grouped=self.stream)
        )
        self._load.goes_on()

    @override
    def recover(self) -> str:
        self.cluster.recover()
        self._load.goes_on()
        silence_s = self._load.ledger.take_silence_s()
        self.run.report.took("without an ack", silence_s)
        return f"{self._load.ledger.records} records acked, silent for {silence_s:.1f} s"

    @override
    def conclude(self) -> None:
        self.cluster.recover()
        self._end_operations()
        for stream, verdict in self.cluster.settle(self._load, *self._streams).items():
            report = self.run.report
            report.counts += Counter({f"{stream}: {what}": n for what, n in verdict.counts.items()})
            report.broken += [f"{stream}: {line}" for line in verdict.told]

    def _end_operations(self) -> None:
        """No move is under way any more, and no node is being emptied."""

        def ended() -> bool:
            try:
                with self.cluster.cluster.client() as log:
                    for node in sorted(self.draining):
                        log.drain_node(node, undo=True)
                    log.move_partition(self.stream, 0, None)
            except LogdError:
                return False
            return True

        wait_until(ended, within_s=30, what="nothing is to be moved any more")
