"""The commands about nodes, replicas and partitions against a real cluster."""

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from penstock.logd.cli import cli
from penstock.logd.publisher import BlockingPublisher, partition_of
from tests.support.logd_cluster import LogdCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


@pytest.fixture
def cluster(tmp_path: Path, nats_url: str) -> Iterator[LogdCluster]:
    with LogdCluster(tmp_path, nats_url) as found:
        yield found


def command(cluster: LogdCluster, words: str) -> str:
    """What a command says that is done."""
    servers = ",".join(node.fetch for node in cluster.nodes.values())
    done = CliRunner().invoke(cli, [*words.split(), "--server", servers])
    assert done.exit_code == 0, done.output
    return done.stdout


def nodes(cluster: LogdCluster) -> dict[str, tuple[str, int, int]]:
    """State, leaderships and replicas by node."""
    rows = orjson.loads(command(cluster, "cluster info --json"))["nodes"]
    return {row["node"]: (row["state"], row["leads"], row["replicas"]) for row in rows}


def test_a_stream_with_partitions_is_filled_by_key_read_moved_and_changed(
    cluster: LogdCluster, nats_url: str
) -> None:
    command(cluster, "streams create s --subject s --partitions 3 --replication-factor 2")
    assert sum(leads for _, leads, _ in nodes(cluster).values()) == 3
    with BlockingPublisher(nats_url) as publisher:
        for number in range(12):
            publisher.publish("s", b"%d" % number, key=b"k%d" % number, partitions=3)
    for part in range(3):
        lines = command(cluster, f"tail s --partition {part} --from earliest --json").splitlines()
        values = [orjson.loads(line)["value"] for line in lines]
        assert values == [str(n) for n in range(12) if partition_of(b"k%d" % n, 3) == part]
    rows = command(cluster, "streams ls").splitlines()[1:]
    assert [row.split()[1] for row in rows] == ["ok"] * 3

    said = command(cluster, "streams move s --partition 1 --to a,c")
    assert said.splitlines() == ["s/1 moves to a, c", "s/1 is on a, c"]
    assert cluster.partition("s", 1).replicas == ("a", "c")
    said = command(cluster, "streams move s --partition 1 --to a,b --json")
    assert orjson.loads(said) == {
        "stream": "s", "partition": 1, "replicas": ["a", "b"], "done": True,
    }  # fmt: skip
    command(cluster, "streams alter s --replication-factor 3 --min-isr 1")
    wait_until(lambda: all(len(cluster.partition("s", part).isr) == 3 for part in range(3)))
    command(cluster, "streams readonly s")
    assert {row.split()[1] for row in command(cluster, "streams ls").splitlines()[1:]} == {
        "read-only"
    }
    command(cluster, "streams writable s")
    command(cluster, "streams alter s --replication-factor 2")
    said = command(cluster, "cluster drain b")
    assert said.startswith("node b is draining\nnode b has nothing: ")
    assert nodes(cluster)["b"] == ("draining", 0, 0)
    command(cluster, "cluster undrain b")
    assert command(cluster, "cluster rebalance").endswith("nothing is under way any more\n")
    assert nodes(cluster)["b"][0] == "active"
