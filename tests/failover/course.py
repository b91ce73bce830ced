"""The kills, one after another: a cluster, a publisher and a reader outside, and what both saw."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from penstock.logd.errors import LogdError
from tests.bench.clusters import logd_cluster
from tests.bench.worker import ROOT
from tests.failover import publisher, reader
from tests.failover.records import Tail, longest_gap_s
from tests.support.logd_cluster import LogdCluster
from tests.support.waiting import wait_until

_Process = subprocess.Popen[bytes]

STREAM: Final = "failover"
KINDS: Final = ("leader", "controller", "both")
"""Which part the killed node had: it led the stream, decided for the cluster, or both."""

_KEPT_BYTES: Final = 2 * 1024**3
_QUIET_NS: Final = 1_000_000_000
"""For so long everything goes well before a kill, and after the node is back."""

_BUSY_NS: Final = 3_000_000_000
"""For so long messages come at the full rate before a kill."""

_REST: Final = 10
"""Of the rate, the part at which they come from when the failover is over until the killed node is
back and all is looked up, so that a hundred kills take half an hour and not two."""

_REST_MIN: Final = 200.0
"""Messages a second below that at most; the publisher sends at least one each 5 ms, or none."""

_ARRANGE_S: Final = 5.0
_BACK_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill.

    Attributes:
        kind: One of `KINDS`.
        publisher_s: The longest time without an ack around it.
        slowest_s: The longest that a message waited for its ack.
        reader_s: The longest time in which the reader got nothing.
        rate: Messages acked a second, from the first at the full rate to those after the kill.
        back_s: From the start of the killed node until its replica is in sync.
    """

    kind: str
    node: str
    publisher_s: float
    slowest_s: float
    reader_s: float
    rate: float
    back_s: float


@dataclass
class Course:
    """Made by `run`.

    Attributes:
        kills: So far.
        acked: Messages, so far.
        checked: Of those, which were found where their ack says.
    """

    directory: Path
    rate: float
    tell: Callable[[str], None]
    kills: list[Kill] = field(default_factory=list)
    acked: int = 0
    checked: int = 0
    _round: list[tuple[int, ...]] = field(default_factory=list)

    def run(self, count: int) -> None:
        """Kill so often, and check what was acked.

        Raises:
            AssertionError: An acked message is not where its ack said, or nothing came back.
        """
        with ExitStack() as stack:
            streams = [{"name": STREAM, "subject": f"{STREAM}.>",
                        "retention": {"bytes": _KEPT_BYTES}}]  # fmt: skip
            cluster, server = logd_cluster(stack, self.directory, streams)
            acks, seen = self.directory / "acks", self.directory / "seen"
            arguments = [server.url, f"{STREAM}.a", str(self.rate), str(acks)]
            publishing = _started(stack, publisher.__name__, *arguments)
            addresses = ",".join(node.fetch for node in cluster.nodes.values())
            reading = _started(stack, reader.__name__, addresses, STREAM, str(seen))
            wait_until(lambda: acks.exists() and seen.exists(), what="a publisher and a reader")
            self._acks, self._seen = Tail(acks, publisher.FIELDS), Tail(seen, reader.FIELDS)
            kinds = cycle(KINDS)
            for number in range(1, count + 1):
                self.tell(f"kill {number} of {count}: {self.acked:,} acked so far")
                _set_rate(publishing, self.rate)
                busy_ns = perf_counter_ns()
                self._go_on(busy_ns + _BUSY_NS)
                self._kill(cluster, next(kinds), publishing, busy_ns)
                assert publishing.poll() is None, "the publisher failed"
                assert reading.poll() is None, "the reader failed: see above"
                self._check(cluster, self._round)
                self._round = []
            self._end(cluster, publishing)

    def _kill(self, cluster: LogdCluster, wanted: str, publishing: _Process, busy_ns: int) -> None:
        leader, controller = _arrange(cluster, wanted)
        kind = (
            "both" if leader == controller else "controller" if wanted == "controller" else "leader"
        )
        node = controller if kind == "controller" else leader
        self._collect()
        seen = [row[0] for row in self._seen.rows()][-1:]
        killed_ns = perf_counter_ns()
        cluster.nodes[node].daemon.kill()
        self._go_on(killed_ns + _QUIET_NS)
        busy = sum(row[2] >= busy_ns for row in self._round)
        rate = busy / (self._round[-1][2] - busy_ns) * 1e9
        _set_rate(publishing, max(self.rate / _REST, min(self.rate, _REST_MIN)))
        started_ns = perf_counter_ns()
        cluster.start(node)
        cluster.wait_in_sync(STREAM)
        back_s = (perf_counter_ns() - started_ns) / 1e9
        self._go_on(perf_counter_ns() + _QUIET_NS)
        seen += [row[0] for row in self._seen.rows()]
        times_ns = [row[2] for row in self._round]
        slowest_ns = max(row[3] for row in self._round if row[2] > killed_ns)
        self.kills.append(
            Kill(
                kind,
                node,
                longest_gap_s(times_ns, killed_ns),
                slowest_ns / 1e9,
                longest_gap_s(seen, killed_ns),
                rate,
                back_s,
            )
        )

    def _go_on(self, after_ns: int) -> None:
        """Wait until messages are acked that were sent after a moment."""

        def acked() -> bool:
            self._collect()
            return bool(self._round) and self._round[-1][2] - self._round[-1][3] > after_ns

        wait_until(acked, within_s=_BACK_S, what="messages are acked again")

    def _collect(self) -> None:
        rows = self._acks.rows()
        self.acked += len(rows)
        self._round += rows

    def _check(self, cluster: LogdCluster, rows: list[tuple[int, ...]]) -> None:
        """Whether acked messages are where their acks say."""
        if not rows:
            return
        first, upto = min(row[1] for row in rows), max(row[1] for row in rows) + 1
        stored = [int(value[: publisher.DIGITS]) for value in _values(cluster, first, upto)]
        for number, offset, *_ in rows:
            found = stored[offset - first]
            assert found == number, f"offset {offset} was acked for {number} and has {found}"
        assert len(set(stored)) == len(stored), "a message is stored twice"
        self.checked += len(rows)

    def _end(self, cluster: LogdCluster, publishing: _Process) -> None:
        """No more messages: all are acked, stored, and the same on every node."""
        self.tell("checking")
        assert publishing.stdin is not None
        publishing.stdin.close()
        assert publishing.wait(timeout=_BACK_S) == 0, "the publisher failed"
        self._collect()
        self._check(cluster, self._round)
        assert self.checked == self.acked, (self.checked, self.acked)

        def equal() -> bool:
            found = [cluster.partition(STREAM, node=name) for name in cluster.names]
            return len({(part.high_watermark, part.end_offset) for part in found}) == 1

        wait_until(equal, what="replicas are equal")


def _arrange(cluster: LogdCluster, wanted: str) -> tuple[str, str]:
    """Have the stream led where it is wanted, as far as that can be; leader and controller."""
    leader, controller = cluster.leader(STREAM), _controller(cluster)
    together = wanted == "both"
    if (leader == controller) != together:
        others = [name for name in cluster.names if name != controller]
        order = [controller, *others] if together else [*others, controller]
        with suppress(LogdError, AssertionError), cluster.client() as log:
            log.move_partition(STREAM, 0, order)
            wait_until(lambda: _moved(cluster, order), within_s=_ARRANGE_S)
            log.rebalance()
            wait_until(lambda: cluster.leader(STREAM) == order[0], within_s=_ARRANGE_S)
        cluster.wait_in_sync(STREAM)
        leader, controller = cluster.leader(STREAM), _controller(cluster)
    return leader, controller


def _moved(cluster: LogdCluster, order: list[str]) -> bool:
    return list(cluster.partition(STREAM).replicas) == order


def _controller(cluster: LogdCluster) -> str:
    with cluster.client() as log:
        found = wait_until(lambda: log.cluster().controller, what="a controller")
    return str(found)


def _values(cluster: LogdCluster, first: int, upto: int) -> Iterator[bytes]:
    reached = first
    with cluster.client() as log:
        for header, batch in log.batches(STREAM, first, upto):
            values = batch.column("value").to_pylist()
            begin = max(0, first - header.base_offset)
            end = min(len(values), upto - header.base_offset)
            assert header.base_offset + begin == reached, (header, reached)
            reached = header.base_offset + end
            yield from values[begin:end]


def _set_rate(publishing: _Process, rate: float) -> None:
    assert publishing.stdin is not None
    publishing.stdin.write(b"%d\n" % rate)
    publishing.stdin.flush()


def _started(stack: ExitStack, module: str, *arguments: str) -> _Process:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        start_new_session=True,  # an interrupt is for the course, which then ends it
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process
