"""A leader that publishers do not reach gives way to one that they do."""

from penstock.logd.controller.liveness import PartitionReport
from tests.support.cluster_office import KEY, Office
from tests.support.cluster_state import Cluster


def test_a_deaf_leader_hands_over_to_one_who_hears() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a", "b", "c"))
    office = Office(cluster)
    office.begin()
    for node in ("a", "b", "c"):
        office.beat(node, reports=(report(cluster),), full=True)
    office.beat("b", deaf=True)
    office.beat("a", deaf=True)
    office.apply()
    office.beat("a", deaf=True)
    office.apply()
    assert cluster.partition().leader == "c"
    office.beat("c", deaf=True)
    assert office.apply() == [], "nobody is better"


def report(cluster: Cluster) -> PartitionReport:
    return PartitionReport(
        key=KEY,
        incarnation=cluster.stream().incarnation,
        leader_epoch=cluster.partition().leader_epoch,
        last_epoch=1,
        end_offset=0,
    )
