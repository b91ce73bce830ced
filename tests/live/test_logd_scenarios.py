"""What a cluster is put through with its processes: killed, frozen, started in any order.

Numbers are those of the failure scenarios in `tests/harness/README.md`. All share one cluster.
"""

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from penstock.base.errors import ExitCode
from penstock.logd.cli import cli
from penstock.logd.client import LogClient, StreamInfo
from penstock.logd.errors import RefusedError, UnavailableError
from tests.harness.load import Load
from tests.harness.publishers import few, mixed
from tests.harness.systems.cluster import FaultyCluster, faulty_cluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    with faulty_cluster(tmp_path_factory.mktemp("scenarios")) as made:
        yield made


@pytest.fixture
def ring(shared: FaultyCluster) -> FaultyCluster:
    shared.recover()
    return shared


def judge(ring: FaultyCluster, load: Load, stream: str) -> None:
    """Nothing that was promised is broken."""
    verdict = ring.settle(load, stream)[stream]
    assert verdict.sound, "\n".join(verdict.told)
    assert verdict.counts["kept"] == 3 * verdict.counts["acked"] > 0


def test_leader_is_killed_under_load(ring: FaultyCluster) -> None:
    """1, 20: kill -9 of the leader; what is published again across that is stored once."""
    with ring.load("killed") as load:
        for _ in range(2):
            load.goes_on()
            leader = ring.cluster.leader("killed")
            ring.kill(leader)
            load.goes_on()
            ring.start(leader)
        judge(ring, load, "killed")


def test_each_node_in_turn_is_stopped_and_started_as_for_an_upgrade(ring: FaultyCluster) -> None:
    """What is acked meanwhile is stored once; `cluster wait` says when the next one may go."""
    server = ",".join(ring.cluster.nodes[name].fetch for name in ring.names)

    def wait(seconds: int) -> tuple[int, str]:
        asked = ["cluster", "wait", "--seconds", str(seconds), "--server", server]
        told = CliRunner().invoke(cli, asked)
        return told.exit_code, told.output

    with ring.load("upgraded") as load:
        for node in ring.names:
            load.goes_on()
            ring.stop(node)
            wait_until(lambda: f"node {node} is away" in wait(0)[1], what="it is told")  # noqa: B023
            assert wait(0)[0] == ExitCode.UNAVAILABLE
            load.goes_on()
            ring.start(node)
            code, told = wait(100)
            assert code == 0, told
            assert set(ring.cluster.partition("upgraded").isr) == set(ring.names)
        judge(ring, load, "upgraded")


def test_what_only_a_killed_leader_had_is_gone(ring: FaultyCluster) -> None:
    """2: the leader is killed when it has appended and nobody has fetched."""
    unfetched = b"nobody fetches it"
    with ring.load("alone") as load:
        load.goes_on()
        leader = ring.cluster.leader("alone")
        ring.mute(leader)
        ring.ask("soak.alone.x", unfetched)
        ring.isolate(leader)  # what was held up is lost
        ring.kill(leader)
        before = ring.replica(leader, "alone")
        ring.network.heal()
        ring.leader_among("alone", ring.others(leader))
        load.goes_on()
        ring.start(leader)
        judge(ring, load, "alone")
    assert unfetched in [row.record.value for row in before.rows.values()]
    after = ring.replica(leader, "alone")
    assert unfetched not in [row.record.value for row in after.rows.values()]


def test_all_nodes_are_killed_and_return_in_any_order(ring: FaultyCluster) -> None:
    """4, 14, 22: meanwhile nobody listens, and publishers that try again lose nothing."""
    with ring.load("all") as load:
        load.goes_on()
        ring.kill("a", "b", "c")
        ring.start("c", "a", "b")
        load.goes_on()
        ring.kill("b", "c", "a")
        ring.start("c")
        ring.start("b", "a")
        judge(ring, load, "all")


def test_a_follower_misses_a_whole_epoch(ring: FaultyCluster) -> None:
    """5: two leaders in a row, while a third node hears of neither."""
    with ring.load("missed") as load:
        ring.cluster.wait_in_sync("missed")
        first = ring.cluster.leader("missed")
        second, absent = ring.others(first)
        ring.isolate(absent)
        load.goes_on()
        ring.kill(first)
        ring.start(first)
        second = ring.leader_among("missed", [first, second])
        load.goes_on()
        ring.kill(second)
        ring.start(second)
        load.goes_on()
        judge(ring, load, "missed")


def test_a_leader_that_was_stopped_acks_nothing_that_is_not_kept(ring: FaultyCluster) -> None:
    """6, 21: SIGSTOP for longer than the lease, another leader, SIGCONT."""
    with ring.load("frozen") as load:
        load.goes_on()
        leader = ring.cluster.leader("frozen")
        ring.freeze(leader)
        ring.leader_among("frozen", ring.others(leader))
        load.goes_on()
        ring.thaw(leader)
        load.goes_on()
        judge(ring, load, "frozen")


def test_a_follower_that_stands_still_is_taken_out_before_messages_count_without_it(
    ring: FaultyCluster,
) -> None:
    """9, 10: and it is let in again, upon which the leader is killed at once."""
    with ring.load("slow") as load:
        ring.cluster.wait_in_sync("slow")
        leader = ring.cluster.leader("slow")
        follower, other = ring.others(leader)
        ring.freeze(follower)
        load.goes_on(200)
        assert set(ring.cluster.partition("slow", node=leader).isr) == {leader, other}
        ring.thaw(follower)
        wait_until(lambda: follower in ring.cluster.partition("slow", node=other).isr)
        ring.kill(leader)
        load.goes_on()
        judge(ring, load, "slow")


def test_below_the_minimum_of_replicas_messages_are_refused(ring: FaultyCluster) -> None:
    """11: with an answer that says why; when the replica is back all goes on."""
    for stream in ("minimum", "asked"):
        ring.cluster.create(stream, f"soak.{stream}.>", min_isr=3)
    with ring.load(publishers=mixed("minimum", 3)) as load:
        load.goes_on()
        follower = ring.others(ring.cluster.leader("minimum"))[0]
        ring.kill(follower)
        wait_until(lambda: ring.refusal("soak.asked.x") == "NOT_ENOUGH_REPLICAS")
        ring.start(follower)
        judge(ring, load, "minimum")


def test_a_stale_replica_is_not_elected(ring: FaultyCluster) -> None:
    """12: it was not in sync when the last one that was went away."""
    ring.cluster.create("stale", "soak.stale.>", replication_factor=2, min_isr=1)
    with ring.load(publishers=few("stale", 1)) as load:
        load.goes_on()
        leader = ring.cluster.leader("stale")
        (stale,) = set(ring.cluster.partition("stale").replicas) - {leader}
        third = next(name for name in ring.names if name not in (leader, stale))
        ring.kill(stale)
        load.goes_on()
        ring.kill(leader)
        ring.start(stale)
        wait_until(lambda: ring.knows(third, "stale").leader is None, what="no leader")
        wait_until(lambda: ring.knows(stale, "stale").leader is None, what="none there either")
        ring.start(leader)
        load.goes_on()
        assert ring.cluster.leader("stale") == leader


def test_streams_are_made_while_controllers_are_lost(ring: FaultyCluster) -> None:
    """25: nobody has to ask again; a stream made again has nothing of the one before."""
    with ring.cluster.client() as log:
        ring.kill(ring.controller())
        made = log.create_stream("made", "made.>")
        ring.store("made.x", b"old")
        ring.recover()
        assert log.create_stream("made", "made.>").incarnation == made.incarnation
        log.delete_stream("made")
        again = wait_until(lambda: _made(log), within_s=30, what="made again")
        assert again is not None
        assert again.incarnation != made.incarnation
        ring.store("made.x", b"new")
        assert ring.cluster.values("made") == [b"new"]
        log.delete_stream("made")
    for name in ring.names:
        streams = ring.cluster.nodes[name].data_dir / "streams"
        wait_until(lambda where=streams: not [*where.glob("made-*")], what="no orphans")  # type: ignore[misc]


def test_a_node_that_knows_nothing_says_so(ring: FaultyCluster) -> None:
    """26: without a majority it cannot know what there is, and does not guess."""
    ring.cluster.create("known", "soak.known.>")
    ring.kill(*ring.names)
    ring.start("a")
    with ring.cluster.nodes["a"].client(timeout_s=1) as log:
        for ask in (lambda: log.stream("known"), log.streams, lambda: log.match("soak.known.x")):
            assert wait_until(lambda ask=ask: _refusal(ask)) == "UNAVAILABLE"  # type: ignore[misc]


def _made(log: LogClient) -> StreamInfo | None:
    """Create it, once the one before is gone from every node."""
    try:
        return log.create_stream("made", "made.>")
    except RefusedError as error:
        if error.code != "STREAM_DELETING":
            raise
        return None


def _refusal(ask: Callable[[], object]) -> str:
    """How a question is refused; empty while nobody answers."""
    try:
        return f"answered: {ask()}"
    except RefusedError as error:
        return error.code
    except UnavailableError as error:
        return "UNAVAILABLE" if "does not know yet" in str(error) else ""
