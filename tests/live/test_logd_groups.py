"""Consumer groups of a real cluster: members that are stopped and killed, a lost coordinator."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import orjson
import pytest
from click.testing import CliRunner

from penstock.logd.cli import cli
from penstock.logd.client import (
    AsyncLogClient,
    Cursor,
    GroupInfo,
    GroupOptions,
    GroupPartition,
    LogClient,
    calls,
)
from penstock.logd.errors import LogdError, RefusedError
from penstock.logd.format.batch import Record
from penstock.logd.publisher import BlockingPublisher, PublishOptions
from tests.support.group_member import MemberProcess
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

PARTITIONS = 3
KEYS = [b"a", b"g", b"b"]
"""Of partitions 0, 1 and 2."""


class Traffic:
    """Publishes to every partition until it is closed."""

    def __init__(self, url: str) -> None:
        self.acked = 0
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        options = PublishOptions(ack_timeout_s=1)
        with BlockingPublisher(self._url, options) as publisher:
            while not self._stop.wait(0.01):
                for key in KEYS:
                    publisher.publish("s.a", b"%d" % self.acked, key=key, partitions=PARTITIONS)
                    self.acked += 1


class Run:
    """A cluster with a stream, and members of the group."""

    def __init__(self, directory: Path, cluster: LogdCluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self.members: list[MemberProcess] = []
        self._directory, self._stack = directory, stack
        self.server = ",".join(cluster.nodes[name].fetch for name in cluster.names)

    def member(self, name: str, how: str = "block") -> MemberProcess:
        started = MemberProcess(self._directory, self.server, name, how=how)
        self.members.append(self._stack.enter_context(started))
        return started

    def group(self) -> GroupInfo | None:
        try:
            with self.cluster.client(*self.cluster.running()) as log:
                return log.group("g")
        except LogdError:
            return None

    def wait_shared(self, members: int) -> GroupInfo:
        """Wait until so many members read all partitions, and nothing is on its way to another."""

        def shared() -> GroupInfo | None:
            group = self.group()
            if group is None or len(group.members) != members:
                return None
            parts = group.partitions
            settled = all(part.member == part.wanted for part in parts)
            readers = {part.member for part in parts}
            done = settled and len(parts) == PARTITIONS and len(readers) == members
            return group if done else None

        return wait_until(shared, what=f"{members} members share all partitions") or self.fail()

    def fail(self) -> GroupInfo:
        raise AssertionError

    def wait_for_more(self, *members: MemberProcess) -> None:
        """Wait until between them they have been given more of every partition."""
        seen = {member.name: len(member.records()) for member in members}

        def more() -> bool:
            new = [line for one in members for line in one.records()[seen[one.name] :]]
            return {line["partition"] for line in new} == set(range(PARTITIONS))

        wait_until(more, what="more of every partition")


@contextmanager
def running(tmp_path: Path) -> Iterator[tuple[Run, str]]:
    with ExitStack() as stack:
        server = stack.enter_context(nats_server(tmp_path / "nats"))
        cluster = stack.enter_context(LogdCluster(tmp_path, server.url))
        cluster.create("s", "s.a", partitions=PARTITIONS)
        yield Run(tmp_path, cluster, stack), server.url


def commit_as(log: LogClient, line: dict[str, Any], incarnation: str) -> list[Cursor]:
    """Commit as the member that wrote a line did, or would have done."""
    cursor = Cursor(
        consumer="g",
        stream="s",
        partition=line["partition"],
        offset=line["offset"] + 1,
        incarnation=incarnation,
        epoch=line["epoch"],
    )
    return log.ask(calls.set_cursors([cursor], member=line["member"]))


def test_members_and_the_coordinator_are_lost_and_nothing_is_skipped(tmp_path: Path) -> None:
    with running(tmp_path) as (run, url):
        with Traffic(url):
            a, b = run.member("a"), run.member("b", how="async")
            first = run.wait_shared(2)
            run.wait_for_more(a, b)
            check_fencing(run, a, b, first)
            c = run.member("c")
            run.wait_shared(2)
            lose_the_controller(run, b, c)
            c.process.kill()
            run.wait_shared(1)
            run.wait_for_more(b)
        check_nothing_skipped(run)
        b.process.send_signal(signal.SIGTERM)
        assert b.process.wait(60) == 0
        wait_until(lambda: run.group() is None, what="the group has no members")


def check_fencing(run: Run, a: MemberProcess, b: MemberProcess, first: GroupInfo) -> None:
    """One is stopped; what it read goes over; its commits are refused; it is told."""
    a.process.send_signal(signal.SIGSTOP)
    last = a.records()[-1]
    incarnation = first.partitions[0].incarnation
    group = run.wait_shared(1)
    assert {part.member for part in group.partitions} == {b.records()[0]["member"]}
    run.wait_for_more(b)
    with run.cluster.client() as log:
        with pytest.raises(RefusedError) as refused:
            commit_as(log, last | {"offset": last["offset"] + 1}, incarnation)
        assert refused.value.code == "FENCED"
        with pytest.raises(RefusedError) as refused:
            log.cursor("g", "s", last["partition"]).commit(0, rewind=True)
        assert refused.value.code == "GROUP_ACTIVE"
    a.process.send_signal(signal.SIGCONT)
    assert a.process.wait(60) == 0
    assert a.lines()[-1] == {"refused": "FENCED"}


def lose_the_controller(run: Run, *members: MemberProcess) -> None:
    before = run.group()
    with run.cluster.client() as log:
        controller = log.cluster().controller
    assert controller is not None
    run.cluster.nodes[controller].daemon.kill()
    run.wait_for_more(*members)
    after = run.wait_shared(2)
    assert before is not None
    assert after.members == before.members
    run.cluster.start(controller)


def check_nothing_skipped(run: Run) -> None:
    """Every record was given to somebody, and in the end all of them are committed."""
    with run.cluster.client() as log:
        ends = [log.offsets("s", number).end for number in range(PARTITIONS)]
        wait_until(lambda: _committed(log) == ends, what="everything is committed")
    given: list[set[int]] = [set() for _ in range(PARTITIONS)]
    for line in (line for member in run.members for line in member.records()):
        given[line["partition"]].add(line["offset"])
    assert given == [set(range(end)) for end in ends]
    check_commands(run, ends)


def check_commands(run: Run, ends: list[int]) -> None:
    shown = CliRunner().invoke(cli, ["groups", "ls", "--server", run.server, "--json"])
    row = orjson.loads(shown.stdout)
    assert (row["group"], row["members"], row["partitions"], row["lag"]) == ("g", 1, PARTITIONS, 0)
    shown = CliRunner().invoke(cli, ["groups", "info", "g", "--server", run.server, "--json"])
    found = orjson.loads(shown.stdout)
    assert [part["offset"] for part in found["partitions"]] == ends
    assert {part["member"] for part in found["partitions"]} == {found["members"][0]["member"]}
    shown = CliRunner().invoke(cli, ["cursors", "ls", "--server", run.server])
    assert [line.split()[3:] for line in shown.stdout.splitlines()[1:]] == [
        [str(end), "0"] for end in ends
    ]


def _committed(log: LogClient) -> list[int]:
    return [cursor.offset for cursor in log.cursors(consumer="g")]


def test_a_store_of_results_and_positions_has_every_record_once(tmp_path: Path) -> None:
    with running(tmp_path) as (run, url):
        with BlockingPublisher(url) as publisher:
            for number in range(60):
                publisher.publish(
                    "s.a", b"%d" % number, key=KEYS[number % PARTITIONS], partitions=PARTITIONS
                )
        store: dict[GroupPartition, int] = {}
        results: list[bytes | None] = []

        def put(item: Any) -> None:
            results.append(item.record.value)
            store[item.partition] = item.next_offset

        options = GroupOptions(
            commit=None
        )  # a member that leaves says so: nobody waits for a session
        with run.cluster.client() as log:
            for _ in range(2):  # each is gone before it has committed anything
                with log.join_group("g", "s", options, positions=store.get) as consumer:
                    for item in consumer:
                        put(item)
                        if len(results) % 25 == 0:
                            break
        asyncio.run(_rest(run.server, options, store, put, lambda: len(results) == 60))
        assert sorted(int(value or b"-1") for value in results) == list(range(60))


async def _rest(server: str, options: GroupOptions, store: Any, put: Any, ends: Any) -> None:
    async def positions(partition: GroupPartition) -> int | None:
        return store.get(partition)  # type: ignore[no-any-return]

    async with AsyncLogClient(server) as log:
        async with log.join_group("g", "s", options, positions=positions) as consumer:
            given = set()
            async for item in consumer:
                put(item)
                given.add(item.partition)
                if ends():
                    break
            await consumer.commit()
        committed = {cursor.partition: cursor.offset for cursor in await log.cursors(consumer="g")}
        for partition in given:  # the others' ends are committed by nobody
            assert committed[partition.partition] == store[partition]


def test_the_python_of_the_readme_runs_as_it_is_written(tmp_path: Path) -> None:
    """But for the address, which is this test's. Each goes on for ever, so it is ended."""
    text = Path("docs/logd/reading.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(programs) == 3
    with running(tmp_path) as (run, url):
        for name in ("logs", "orders", "payments"):
            run.cluster.create(name, f"shop.{name}")
        with BlockingPublisher(url) as publisher:
            publisher.publish_batch("shop.logs", [Record("shop.logs", b"x", 1)] * 1202)
            for name in ("orders", "payments"):
                publisher.publish(f"shop.{name}", name.encode())
        wanted = [{"1200 b'x'", "1201 b'x'"}, {"b'orders'", "b'payments'"}, {"b'orders'"}]
        for program, parts in zip(programs, wanted, strict=True):
            assert "127.0.0.1:9293" in program
            check_prints(program.replace("127.0.0.1:9293", run.server), parts, tmp_path / "out")


def check_prints(program: str, parts: set[str], out: Path) -> None:
    with out.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=file, stderr=file)
    try:
        wait_until(
            lambda: process.poll() is not None or all(part in out.read_text() for part in parts),
            what="the program prints its records",
        )
        assert process.poll() is None, out.read_text()
    finally:
        process.terminate()
        process.wait(10)


def test_one_node_shares_partitions_out_to_the_members_of_a_group(
    tmp_path: Path, nats_url: str
) -> None:
    with Logd(tmp_path, nats_url, []) as logd, logd.client() as log:
        log.create_stream("s", "s.a", partitions=2)
        with log.join_group("g", "s") as one, log.join_group("g", "s") as other:
            wait_until(
                lambda: sorted(len(member.partitions()) for member in (one, other)) == [1, 1],
                what="each member has a partition",
            )
            assert [group.group for group in log.groups()] == ["g"]
