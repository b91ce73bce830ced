"""A search goes on when a node of the log goes away in its middle, and says what it lacks."""

import json
from pathlib import Path

import pytest

from penstock.base.errors import ExitCode
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.trace.answer import answer_question
from penstock.deploy.trace.find import Progress
from penstock.deploy.trace.parts import Parts, PartsClient
from penstock.deploy.trace.question import TraceQuestion
from tests.support.logd_cluster import LogdCluster
from tests.support.router import publish
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SINGLE = 6
"""Partitions with one replica, two on each node."""

RECORDS = 40


def record(number: int) -> bytes:
    about = {"schema": "log/1.0", "kind": "log", "body": f"order {number}"}
    return json.dumps(about | {"resource": {"service.name": "shop"}}).encode()


def test_what_the_other_nodes_have_is_told_and_what_none_has_is_named(
    tmp_path: Path, nats_url: str
) -> None:
    values = [record(number) for number in range(RECORDS)]
    with LogdCluster(tmp_path, nats_url) as cluster:
        cluster.create("begin", "telemetry.begin", replication_factor=3)
        cluster.create("kept", "telemetry.kept", replication_factor=3)
        cluster.create("single", "telemetry.single", replication_factor=1, partitions=SINGLE)
        single = ["telemetry.single", *(f"telemetry.single.{it}" for it in range(1, SINGLE))]
        for subject in ("telemetry.begin", "telemetry.kept", *single):
            publish(nats_url, subject, values)
        leaders = {number: cluster.leader("single", number) for number in range(SINGLE)}
        victim = cluster.leader("kept")
        assert 0 < sum(leader == victim for leader in leaders.values()) < SINGLE
        with cluster.client() as log:
            ends = {number: log.offsets("single", number).end for number in range(SINGLE)}
        wanted = sum(end for number, end in ends.items() if leaders[number] != victim)

        def kill_once() -> bool:
            if progress.looked_at and cluster.nodes[victim].daemon.running:
                cluster.nodes[victim].daemon.kill()
            return False

        progress = Progress(is_to_end=kill_once)
        config = ConsoleConfig(logd=",".join(node.fetch for node in cluster.nodes.values()))
        question = TraceQuestion(service="shop", limit=1000)
        trace = answer_question(config, question, PartsClient(config), Parts(), progress=progress)

        found = [it.record.stream for it in trace.records]
        assert (found.count("begin"), found.count("kept")) == (RECORDS, RECORDS)
        assert found.count("single") == wanted
        lost = [number for number, leader in leaders.items() if leader == victim]
        assert [it.partition(":")[0] for it in trace.silent] == [f"single/{it}" for it in lost]
        assert trace.exit_code is ExitCode.UNAVAILABLE

        cluster.start(victim)
        wait_until(lambda: {cluster.leader("single", it) for it in lost}, what="leaders again")
        again = answer_question(config, question, PartsClient(config), Parts())
        assert (len(again.records), again.silent) == (2 * RECORDS + sum(ends.values()), {})
