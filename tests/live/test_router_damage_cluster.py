"""What one replica of a real cluster has damaged is read where another one has it sound."""

import random
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.router.read.logd_reader import LogdReader
from penstock.router.read.offsets import Span
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import running_nats_server
from tests.support.router import publish

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

VALUES = [random.Random(number).randbytes(100) for number in range(3000)]


@pytest.mark.parametrize("read_from", ["leader", "replica"])
def test_damage_of_those_that_are_read_from_costs_no_record_that_another_has(
    tmp_path: Path, read_from: str
) -> None:
    with running_nats_server(tmp_path / "nats") as url, LogdCluster(tmp_path, url) as cluster:
        cluster.create("s", "s.a")
        publish(url, "s.a", VALUES, records=100)
        cluster.wait_in_sync("s")
        leader = cluster.leader("s")
        others = [name for name in cluster.nodes if name != leader]
        for name in [leader] if read_from == "leader" else others:
            flip(cluster.nodes[name].data_dir)
        servers = ",".join(node.fetch for node in cluster.nodes.values())
        rack = None if read_from == "leader" else ""
        with LogdReader(servers, retry_timeout_s=60, clock=SystemClock(), rack=rack) as log:
            read = log.rows(Span("s", 0, 0, len(VALUES)), fail_on_data_loss=False)
            got = [value for rows in read for value in rows.column("value").to_pylist()]
    assert (len(got), log.lost) == (len(VALUES), 0)
    assert got == VALUES


def flip(directory: Path) -> None:
    """Damage a record in the middle, under a running logd."""
    (file,) = (directory / "streams").glob("s*/0/*.log")
    with file.open("r+b") as segment:
        at = segment.read().index(VALUES[1500])
        segment.seek(at)
        segment.write(bytes([VALUES[1500][0] ^ 1]))
