"""A cluster's stream is purged, and stays so under every leader; the controller can be moved."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.logd.cli import cli
from penstock.logd.errors import RefusedError
from penstock.logd.publisher import BlockingPublisher
from tests.support.logd_cluster import LogdCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


@pytest.fixture
def cluster(tmp_path: Path, nats_url: str) -> Iterator[LogdCluster]:
    with LogdCluster(tmp_path, nats_url) as found:
        yield found


def command(cluster: LogdCluster, words: str) -> str:
    """What a command says that is done."""
    servers = ",".join(cluster.nodes[name].fetch for name in cluster.running())
    done = CliRunner().invoke(cli, [*words.split(), "--server", servers])
    assert done.exit_code == 0, done.output
    return done.stdout


def files(cluster: LogdCluster, node: str) -> list[str]:
    """The segments of a node's replica, by their first offsets."""
    paths = (cluster.nodes[node].data_dir / "streams").glob("logs-*/0/*.log")
    return sorted(path.stem.lstrip("0") for path in paths)


def _holds_only(cluster: LogdCluster, node: str, segment: str) -> bool:
    return files(cluster, node) == [segment]


def test_what_is_purged_stays_so_when_another_leads(cluster: LogdCluster, nats_url: str) -> None:
    command(cluster, "streams create logs --subject t.> --replication-factor 3")
    with BlockingPublisher(nats_url) as publisher:
        for number in range(50):
            publisher.publish("t.a", b"%d" % number)
        said = command(cluster, "streams purge logs --before 30 --yes")
        assert said == "logs/0 begins at offset 30; deleted: 30 records\n"
        leader = cluster.leader("logs")
        cluster.nodes[leader].daemon.kill()
        other = cluster.leader("logs")
        assert other != leader
        with cluster.client(other) as log:
            wait_until(lambda: log.offsets("logs").end == 50, what="it knows what is committed")
            assert log.offsets("logs").start == 30
            with pytest.raises(RefusedError) as refused:
                log.fetch("logs", 29)
            assert refused.value.code == "OUT_OF_RANGE"
        publisher.publish("t.a", b"50")
        command(cluster, "streams purge logs --all --yes")
        for node in cluster.running():
            wait_until(partial(_holds_only, cluster, node, "51"), what=f"files of {node}")
        cluster.start(leader)
        wait_until(partial(_holds_only, cluster, leader, "51"), within_s=30, what="it follows")
        publisher.publish("t.a", b"51")
    assert command(cluster, "tail logs --from earliest").startswith("51  ")
    command(cluster, "streams readonly logs")
    with cluster.client(other) as log, pytest.raises(RefusedError) as refused:
        log.purge("logs", 52)
    assert refused.value.code == "READ_ONLY"


def _done(words: list[str]) -> Result | None:
    """The command's result, once it is done."""
    result = CliRunner().invoke(cli, words)
    return result if result.exit_code == 0 else None


def test_the_controller_is_another_on_demand(cluster: LogdCluster) -> None:
    with cluster.client("a") as log:
        before = log.cluster().controller
        assert before is not None
        after = log.step_down()
        assert after != before
        cluster.have_decide(before)
        assert log.step_down(before) == before, "it is already"
        wait_until(lambda: log.cluster().controller == before)
        with pytest.raises(RefusedError) as refused:
            log.step_down("nobody")
        assert refused.value.code == "NO_CANDIDATE"
    other = next(name for name in cluster.names if name != before)
    servers = ",".join(cluster.nodes[name].fetch for name in cluster.running())
    asked = ["cluster", "step-down", "--to", other, "--server", servers]
    done = wait_until(lambda: _done(asked), what=f"{other} is heard of by the new controller")
    assert done is not None
    assert done.output == f"node {other} is the controller\n"
    assert command(cluster, "gaps").startswith("no stream has missed messages")
    cluster.nodes[before].daemon.kill()
    servers = ",".join(cluster.nodes[name].fetch for name in cluster.running())
    done = CliRunner().invoke(cli, ["gaps", "--server", servers])
    assert done.exit_code == 69
    assert f"node {before} was not asked" in done.stderr
