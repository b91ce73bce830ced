"""A node joins a cluster, takes data over, and an initial member leaves it for good."""

import json
from pathlib import Path
from shutil import rmtree

import pytest
from click.testing import CliRunner, Result

from penstock.logd.cli import cli
from penstock.logd.publisher import BlockingPublisher
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


def command(cluster: LogdCluster, words: str) -> str:
    """What a command says that is done."""
    done = invoke(cluster, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def invoke(cluster: LogdCluster, words: str, *names: str) -> Result:
    """A command to these nodes, or to all that run."""
    servers = ",".join(cluster.nodes[name].fetch for name in names or cluster.running())
    return CliRunner().invoke(cli, [*words.split(), "--server", servers])


def nodes(cluster: LogdCluster) -> dict[str, tuple[str, bool, int]]:
    """State, whether it lives, and replicas by node."""
    rows = json.loads(command(cluster, "cluster info --json"))["nodes"]
    return {row["node"]: (row["state"], row["live"], row["replicas"]) for row in rows}


def controller(cluster: LogdCluster, node: str) -> str | None:
    """Who decides, as a node knows it."""
    with cluster.client(node) as log:
        return log.cluster().controller


def test_a_fourth_node_joins_takes_data_over_and_an_initial_member_leaves(tmp_path: Path) -> None:
    with (
        nats_server(tmp_path / "nats") as server,
        LogdCluster(tmp_path, server.url, streams=[{"name": "s", "subject": "s"}]) as cluster,
        BlockingPublisher(server.url) as publisher,
    ):
        wait_until(lambda: command(cluster, "streams ls").count(" ok ") == 1)
        cluster.wait_in_sync("s", size=3)  # made when all the initial members had come
        sent = [b"%d" % number for number in range(150)]

        def publish(count: int) -> None:
            first = len(cluster.values("s"))
            for value in sent[first : first + count]:
                publisher.publish("s", value)

        publish(50)
        cluster.join("d")
        assert nodes(cluster)["d"] == ("active", True, 0)

        command(cluster, "streams move s --to d,b,c")
        wait_until(lambda: cluster.partition("s").replicas == ("d", "b", "c"), what="it has moved")
        cluster.wait_in_sync("s", size=3)
        publish(50)
        assert cluster.values("s") == sent[:100]

        command(cluster, "cluster drain a")
        wait_until(lambda: nodes(cluster)["a"][2] == 0, what="a has nothing left")
        command(cluster, "cluster remove a --yes")
        assert cluster.nodes["a"].daemon.wait(within_s=30) == 78
        assert "a was removed" in cluster.nodes["a"].daemon.log()
        assert sorted(nodes(cluster)) == ["b", "c", "d"]

        # The new node votes and the one that left does not: two of b, c and d are a majority.
        cluster.nodes["b"].daemon.kill()
        publish(50)
        cluster.create("another", "another", replication_factor=2)
        assert cluster.values("s") == sent[:150]

        # b finds d, which is no initial member, before anybody has told it what the state is.
        cluster.nodes["c"].daemon.kill()
        cluster.start("b")
        wait_until(lambda: controller(cluster, "b") in ("b", "d"), what="they have a controller")
        cluster.nodes["a"].daemon.launch()
        assert cluster.nodes["a"].daemon.wait(within_s=30) == 78, "it does not come back"


@pytest.mark.parametrize("role", ["follower", "controller"])
def test_a_node_whose_disk_was_wiped_does_not_answer_for_the_cluster(
    tmp_path: Path, nats_url: str, role: str
) -> None:
    with LogdCluster(tmp_path, nats_url) as cluster:
        cluster.create("s", "s", replication_factor=3)
        cluster.wait_in_sync("s", size=3)
        decides = str(wait_until(lambda: controller(cluster, "a"), what="a controller"))
        followers = [name for name in cluster.names if name != decides]
        gone = decides if role == "controller" else followers[0]
        kept = [name for name in cluster.names if name != gone]
        cluster.nodes[gone].daemon.kill()
        if role == "controller":  # the one that follows it never sent the lost disk anything
            wait_until(lambda: controller(cluster, kept[0]) in kept, what="a new controller")
        other = kept[0]
        rmtree(cluster.nodes[gone].data_dir)
        cluster.start(gone)
        asked = (gone, other)

        def refused() -> bool:
            return "refused: data lost" in invoke(cluster, "cluster info", *asked).stdout

        created = invoke(cluster, "streams create s2 --subject s2", *asked)
        assert created.exit_code == 0, created.output
        wait_until(refused, within_s=30, what=f"{gone} has said so")
        said = invoke(cluster, "cluster info", *asked)
        assert said.exit_code == 0, said.output
        assert "; 2 of 3 nodes live;" in said.stdout
        assert "another name and an empty data_dir" in said.stderr
        (reason,) = cluster.nodes[gone].daemon.status()["reasons"]
        assert reason.startswith("the cluster refuses this node: data lost: ")
        assert "cluster drain NODE" in reason
        alone = invoke(cluster, "cluster info", gone)
        assert alone.exit_code == 69
        assert f"node {gone} takes no part: data lost" in alone.stderr

        cluster.join("d")  # and as it says
        drained = invoke(cluster, f"cluster drain {gone}", *asked)
        assert drained.exit_code == 0, drained.output
        wait_until(lambda: nodes(cluster)[gone][2] == 0, what=f"{gone} has nothing left")
        removed = invoke(cluster, f"cluster remove {gone} --yes", *asked)
        assert removed.exit_code == 0, removed.output
        assert sorted(nodes(cluster)) == sorted([*kept, "d"])
