"""What a cluster is put through with its network and its disks.

Numbers are those of the failure scenarios in `tests/harness/README.md`. All share one cluster.
"""

import contextlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.logd.client import calls
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.security.quotas import Quota
from tests.harness.load import Load
from tests.harness.network import NATS
from tests.harness.publishers import few, mixed
from tests.harness.systems.cluster import FaultyCluster, faulty_cluster
from tests.support.mounts import small_file_system
from tests.support.processes import Daemon
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

_NUMBERS = count(1000)


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


@pytest.mark.parametrize("held", [False, True], ids=["cut", "held up"])
def test_a_leader_without_its_peers_stops_acking(ring: FaultyCluster, *, held: bool) -> None:
    """7, 21: publishers reach it, the others do not; of two leaders one acks."""
    name = "held" if held else "cut"
    with ring.load(name) as load:
        load.goes_on()
        leader = ring.cluster.leader(name)
        if held:
            ring.mute(leader)
            ring.deafen(leader)
        else:
            ring.isolate(leader)
        ring.leader_among(name, ring.others(leader))
        load.goes_on()
        ring.network.heal()
        load.goes_on()
        judge(ring, load, name)


def test_a_leader_without_its_peers_acks_by_its_own_policy_no_longer_than_its_lease(
    ring: FaultyCluster,
) -> None:
    """7: what the leader alone acks, it acks no more when its lease has ended."""
    ring.cluster.create("own", "own.>", ack_policy="leader")
    ring.store("own.x", b"0")
    leader = ring.cluster.leader("own")
    ring.isolate(leader)
    ring.leader_among("own", ring.others(leader))
    epochs = [ring.store("own.x", b"%d" % number).epoch for number in range(1, 4)]
    assert len({*epochs}) == 1, "the new leader alone answers"
    ring.network.heal()
    ring.wait_quiet("own")
    assert [*filter(None, ring.cluster.values("own"))][-3:] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("way", ["says", "hears"])
def test_a_leader_that_is_heard_or_hears_one_way_only(ring: FaultyCluster, way: str) -> None:
    """7: a partition in one direction."""
    with ring.load(way) as load:
        load.goes_on()
        leader = ring.cluster.leader(way)
        if way == "says":
            ring.deafen(leader)
        else:
            ring.mute(leader)
        ring.leader_among(way, ring.others(leader))
        load.goes_on()
        ring.network.heal()
        load.goes_on()
        judge(ring, load, way)


def test_a_leader_without_nats_is_replaced_and_the_gap_is_told(ring: FaultyCluster) -> None:
    """8: its followers are sound; publishers get another leader, and it says what it missed."""
    with ring.load("unheard") as load:
        load.goes_on()
        leader = ring.cluster.leader("unheard")
        ring.isolate(leader, peers=False, nats=True)
        ring.leader_among("unheard", ring.others(leader))
        load.goes_on()
        judge(ring, load, "unheard")
    gaps = [
        gap
        for name in ring.names
        for gap in ring.cluster.nodes[name].daemon.status()["info"]["ingest_gaps"]["ended"]
    ]
    assert any("unheard" in str(gap) for gap in gaps)


def test_the_nats_server_restarts(ring: FaultyCluster) -> None:
    """24: no node listens twice afterwards, and what was replicated is not touched."""
    with ring.load("nats") as load:
        load.goes_on()
        leader = ring.cluster.leader("nats")
        ring.nats.end()
        ring.nats.start()
        load.goes_on()
        judge(ring, load, "nats")
        assert ring.cluster.leader("nats") == leader


def test_what_nats_sends_late_comes_to_a_leader_that_is_none_any_more(ring: FaultyCluster) -> None:
    """21, 23: its subscription is held up until another one leads."""
    with ring.load("late") as load:
        load.goes_on()
        leader = ring.cluster.leader("late")
        ring.network.hold((NATS, leader))
        ring.isolate(leader)
        ring.leader_among("late", ring.others(leader))
        load.goes_on()
        ring.network.heal()
        load.goes_on()
        judge(ring, load, "late")


def test_a_damaged_record_is_fetched_from_a_peer(ring: FaultyCluster) -> None:
    """16: a bit flips in the middle of one replica's log, while its node is down."""
    with ring.load("flipped") as load:
        load.goes_on(100)
        victim = ring.others(ring.cluster.leader("flipped"))[0]
        ring.kill(victim)
        _flip(ring.directory(victim, "flipped"))
        load.goes_on()
        judge(ring, load, "flipped")


@pytest.mark.parametrize("file", ["replica", "epochs"])
def test_a_damaged_checkpoint_costs_no_record(ring: FaultyCluster, file: str) -> None:
    """17: what a replica notes of itself is unreadable: it is made again, or it says so."""
    stream = f"without-{file}"
    ring.cluster.create(stream, f"soak.{stream}.>")
    with ring.load(publishers=few(stream, 1)) as load:
        load.goes_on()
        victim = ring.others(ring.cluster.leader(stream))[0]
        ring.stop(victim)
        before = ring.replica(victim, stream).rows
        path = ring.directory(victim, stream) / file
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        ring.start(victim)
        wait_until(lambda: _is_told_or_mended(ring, victim, stream))
        assert before.items() <= ring.replica(victim, stream).rows.items(), "nothing is deleted"
        if ring.cluster.nodes[victim].daemon.running:
            ring.kill(victim)
        path.write_bytes(whole)
        judge(ring, load, stream)


def _is_told_or_mended(ring: FaultyCluster, node: str, stream: str) -> bool:
    """Whether a replica takes part again, or its node says why not."""
    daemon = ring.cluster.nodes[node].daemon
    told = any(stream in reason for reason in daemon.status()["reasons"])
    return told or node in ring.cluster.partition(stream).isr


def _flip(directory: Path) -> None:
    """Damage what is in the middle of a log."""
    log = max(directory.glob("*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)


def test_a_leader_whose_disk_is_full_is_replaced_until_there_is_space(tmp_path: Path) -> None:
    """18: it acks nothing that it could not write; afterwards it has everything again."""
    disk = tmp_path / "a" / "data"
    disk.parent.mkdir()
    with small_file_system(disk, "160m"), faulty_cluster(tmp_path, min_free_bytes=0) as ring:
        streams = ["full-0", "full-1", "full-2"]
        for stream in streams:
            ring.cluster.create(stream, f"soak.{stream}.>")
        name = next(stream for stream in streams if ring.cluster.leader(stream) == "a")
        with ring.load(publishers=mixed(name, 1)) as load:
            load.goes_on()
            _fill(disk / "filler")
            ring.leader_among(name, ["b", "c"])
            load.goes_on()
            daemon = ring.cluster.nodes["a"].daemon
            # A block that was begun takes some changes yet.
            wait_until(lambda: _metadata_failed(ring, daemon), what="its metadata fail, too")
            assert daemon.log().count('"leadership_released"') <= 2 * len(streams), (
                "once for each epoch"
            )
            (disk / "filler").unlink()
            ring.kill("a")  # its part in the metadata ended with its disk, until it starts again
            judge(ring, load, name)


def _metadata_failed(ring: FaultyCluster, daemon: Daemon) -> bool:
    """Whether a node says so, once the metadata have changed again."""
    refused = contextlib.suppress(RefusedError, UnavailableError)
    with ring.cluster.nodes["b"].client() as log, refused:
        log.ask(calls.put_quota(Quota(principal="p", requests_per_s=next(_NUMBERS))))
    return any("metadata" in reason for reason in daemon.status()["reasons"])


def _fill(path: Path) -> None:
    """Leave no byte of a file system."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
