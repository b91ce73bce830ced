"""A cluster with default settings, a publisher and a reader outside, and how long each waits."""

import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from typing_extensions import override

from penstock.logd.errors import LogdError
from tests.bench import machine
from tests.bench.clusters import logd_cluster
from tests.bench.worker import ROOT
from tests.harness import outside
from tests.harness.faults.process import kill_daemon
from tests.harness.plan import SECOND_NS, Run, System
from tests.support.waiting import wait_until

_Process = subprocess.Popen[bytes]

WITHOUT_ACK: Final = "publisher without an ack"
WITHOUT_RECORD: Final = "reader without a record"

_STREAM: Final = "failover"
_KEPT_BYTES: Final = 2 * 1024**3
_QUIET_NS: Final = 1 * SECOND_NS
"""For so long everything goes well after a kill, and after the node is back."""

_BUSY_NS: Final = 3 * SECOND_NS
"""For so long messages come at the full rate before a kill."""

_REST: Final = 10
"""Of the rate, the part at which they come from when the failover is over until the killed node is
back and all is looked up, so that a hundred kills take half an hour and not two."""

_REST_MIN: Final = 200.0
"""Messages a second below that at most; the publisher sends at least one each 5 ms, or none."""

_ARRANGE_S: Final = 5.0
_BACK_S: Final = 60.0


class Tail:
    """A file of 64-bit integers that grows; so many of them are a row."""

    def __init__(self, path: Path, fields: int) -> None:
        self._path, self._fields = path, fields
        self._read = 0

    def rows(self) -> list[tuple[int, ...]]:
        """The rows that were not read before."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = len(data) - len(data) % (8 * self._fields)
        self._read += whole
        return list(zip(*[iter(array("q", data[:whole]))] * self._fields, strict=True))


def longest_gap_s(times_ns: Sequence[int], since_ns: int) -> float:
    """The longest time between two of these in order, of those that end after a moment."""
    gaps = [after - before for before, after in pairwise(times_ns) if after > since_ns]
    return max(gaps, default=0) / SECOND_NS


class MeasuredCluster(System):
    """`kill` ends a node; `recover` measures how long it was missed, starts it, looks up all acks.

    Args:
        run: Says where; `--rate` is messages a second.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._rate: float = run.options.rate
        self._rows: list[tuple[int, ...]] = []

    @override
    def begin(self, stack: ExitStack) -> None:
        directory = self.run.directory / "cluster"
        self.run.report.facts["machine"] = machine.facts(self.run.directory, mib=64)
        retention = {"bytes": _KEPT_BYTES}
        streams = [{"name": _STREAM, "subject": f"{_STREAM}.>", "retention": retention}]
        acks, seen = directory / "acks", directory / "seen"
        self._cluster, server = logd_cluster(stack, directory, streams)
        subject = f"{_STREAM}.a"
        self._publisher = _started(
            stack, "publish", server.url, subject, str(self._rate), str(acks)
        )
        addresses = ",".join(node.fetch for node in self._cluster.nodes.values())
        self._reader = _started(stack, "read", addresses, _STREAM, str(seen))
        wait_until(lambda: acks.exists() and seen.exists(), what="a publisher and a reader")
        self._acks, self._seen = Tail(acks, outside.ACK_FIELDS), Tail(seen, outside.READ_FIELDS)

    def kill(self, wanted: str) -> str:
        """Kill the node that leads the stream, the controller, or one that is both, under load."""
        self._set_rate(self._rate)
        self._busy_ns = perf_counter_ns()
        self._go_on(self._busy_ns + _BUSY_NS)
        leader, controller = self._arrange(wanted)
        self._kind = "both" if leader == controller else wanted.replace("both", "leader")
        self._node = controller if self._kind == "controller" else leader
        self._collect()
        self._seen_ns = [row[0] for row in self._seen.rows()][-1:]
        self._killed_ns = perf_counter_ns()
        kill_daemon(self._cluster.nodes[self._node].daemon, self.run)
        return f"kill {self._node}: {self._kind}"

    @override
    def recover(self) -> str:
        self._go_on(self._killed_ns + _QUIET_NS)
        busy = sum(row[2] >= self._busy_ns for row in self._rows)
        rate = busy / (self._rows[-1][2] - self._busy_ns) * SECOND_NS
        self._set_rate(max(self._rate / _REST, min(self._rate, _REST_MIN)))
        begun_ns = perf_counter_ns()
        self._cluster.start(self._node)
        self._cluster.wait_in_sync(_STREAM)
        back_s = (perf_counter_ns() - begun_ns) / SECOND_NS
        self._go_on(perf_counter_ns() + _QUIET_NS)
        times_ns = [row[2] for row in self._rows]
        slowest_ns = max(row[3] for row in self._rows if row[2] > self._killed_ns)
        seen_ns = self._seen_ns + [row[0] for row in self._seen.rows()]
        missed_s = longest_gap_s(times_ns, self._killed_ns)
        self._took(WITHOUT_ACK, missed_s)
        self._took("slowest message", slowest_ns / SECOND_NS)
        self._took(WITHOUT_RECORD, longest_gap_s(seen_ns, self._killed_ns))
        self._took("node started to in sync", back_s)
        self._check_processes()
        self._look_up()
        return f"{missed_s:.2f} s {WITHOUT_ACK} at {rate:,.0f}/s, back after {back_s:.1f} s"

    @override
    def conclude(self) -> None:
        """All are acked, stored, and the same on every node."""
        assert self._publisher.stdin is not None
        self._publisher.stdin.close()
        code = self._publisher.wait(timeout=_BACK_S)
        self.run.demand(code == 0, f"the publisher failed with {code}")
        self._collect()
        self._look_up()
        counts = self.run.report.counts
        self.run.demand(
            counts["acked"] == counts["found"], f"not all acks were looked up: {counts}"
        )

        def equal() -> bool:
            names = self._cluster.names
            found = [self._cluster.partition(_STREAM, node=name) for name in names]
            return len({(part.high_watermark, part.end_offset) for part in found}) == 1

        wait_until(equal, what="replicas are equal")

    def _took(self, what: str, seconds: float) -> None:
        self.run.report.took(what, seconds)
        self.run.report.took(f"{what}: {self._kind} killed", seconds)

    def _check_processes(self) -> None:
        self.run.demand(self._publisher.poll() is None, "the publisher failed: see above")
        self.run.demand(self._reader.poll() is None, "the reader failed: see above")

    def _go_on(self, after_ns: int) -> None:
        """Wait until messages are acked that were sent after a moment."""

        def acked() -> bool:
            self._collect()
            return bool(self._rows) and self._rows[-1][2] - self._rows[-1][3] > after_ns

        wait_until(acked, within_s=_BACK_S, what="messages are acked again")

    def _collect(self) -> None:
        rows = self._acks.rows()
        self.run.report.counts["acked"] += len(rows)
        self._rows += rows

    def _look_up(self) -> None:
        """Acked messages are where their acks say, and none is there twice."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        first, upto = min(row[1] for row in rows), max(row[1] for row in rows) + 1
        stored = [int(value[: outside.DIGITS]) for value in self._values(first, upto)]
        for number, offset, *_ in rows:
            found = stored[offset - first]
            self.run.demand(
                found == number, f"offset {offset} was acked for {number} and has {found}"
            )
        self.run.demand(len(set(stored)) == len(stored), "a message is stored twice")
        self.run.report.counts["found"] += len(rows)

    def _values(self, first: int, upto: int) -> Iterator[bytes]:
        reached = first
        with self._cluster.client() as log:
            for header, batch in log.batches(_STREAM, first, upto):
                values = batch.column("value").to_pylist()
                begin = max(0, first - header.base_offset)
                end = min(len(values), upto - header.base_offset)
                joins = header.base_offset + begin == reached
                self.run.demand(joins, f"a gap at {reached}: {header}")
                reached = header.base_offset + end
                yield from values[begin:end]

    def _arrange(self, wanted: str) -> tuple[str, str]:
        """Have the stream led where it is wanted, as far as that can be; leader and controller."""
        cluster = self._cluster
        leader, controller = cluster.leader(_STREAM), self._controller()
        together = wanted == "both"
        if (leader == controller) != together:
            others = [name for name in cluster.names if name != controller]
            order = [controller, *others] if together else [*others, controller]
            with suppress(LogdError, AssertionError), cluster.client() as log:
                log.move_partition(_STREAM, 0, order)
                wait_until(
                    lambda: [*cluster.partition(_STREAM).replicas] == order, within_s=_ARRANGE_S
                )
                log.rebalance()
                wait_until(lambda: cluster.leader(_STREAM) == order[0], within_s=_ARRANGE_S)
            cluster.wait_in_sync(_STREAM)
            leader, controller = cluster.leader(_STREAM), self._controller()
        return leader, controller

    def _controller(self) -> str:
        with self._cluster.client() as log:
            return str(wait_until(lambda: log.cluster().controller, what="a controller"))

    def _set_rate(self, rate: float) -> None:
        assert self._publisher.stdin is not None
        self._publisher.stdin.write(b"%d\n" % rate)
        self._publisher.stdin.flush()


def _started(stack: ExitStack, *arguments: str) -> _Process:
    process = subprocess.Popen(
        [sys.executable, "-m", outside.__name__, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        start_new_session=True,  # an interrupt is for the harness, which then ends it
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process
