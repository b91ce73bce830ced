"""Elections of replicas that lack acked records, on an operator's word."""

import pytest

from penstock.logd.controller.controller import Tick, UncleanElectionAsked
from penstock.logd.controller.liveness import NS_PER_MS
from penstock.logd.metadata.records import PartitionKey
from tests.support.cluster_office import ALWAYS, KEY, Office, report
from tests.support.cluster_state import Cluster


@pytest.fixture
def office() -> Office:
    """Three nodes have a stream; the controller knows them by their registration."""
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a", "b", "c"))
    return Office(cluster)


def test_an_operator_gets_an_unclean_election_at_once(office: Office) -> None:
    office.do(office.cluster.isr_change("a"))
    office.begin()
    assert objection(office) == "NOT_YET"
    assert office.tell(UncleanElectionAsked(KEY)) == []
    office.beat("a", reports=(report(office.cluster, end_offset=9),), full=True)
    office.beat("b", reports=(report(office.cluster, end_offset=7),), full=True)
    office.beat("c")
    assert objection(office) == "HAS_LEADER"
    office.pass_time(700, "b", "c")
    office.apply()
    assert objection(office) == ""
    assert [office.controller.known_end(KEY, [node]) for node in "abcx"] == [9, 7, None, None]
    office.tell(UncleanElectionAsked(KEY))
    assert objection(office) == "NOT_YET"
    office.apply()
    assert objection(office) == "HAS_LEADER"
    assert office.cluster.partition().leader == "b"
    assert office.cluster.partition().unclean_elections == 1


def objection(office: Office) -> str:
    """Why an operator's election is not held now; empty: it is."""
    found = office.controller.objection(KEY, office.now * NS_PER_MS)
    return found.code if found else ""


def test_an_operator_is_told_that_nobody_is_there(office: Office) -> None:
    office.do(office.cluster.isr_change("a"))
    office.begin()
    office.now = 700
    office.tell(Tick(ALWAYS))
    office.apply()
    assert objection(office) == "NO_REPLICA"
    assert office.controller.objection(PartitionKey("x", 0), 0).code == "UNKNOWN_PARTITION"  # type: ignore[union-attr]


def test_an_operator_may_have_a_damaged_log_rather_than_a_short_one(office: Office) -> None:
    office.do(office.cluster.isr_change("a"))
    office.begin()
    office.beat("a", reports=(report(office.cluster, unfit="hole", resigned=True),), full=True)
    office.pass_time(300, "a", "b", "c")
    assert office.apply() == []
    office.tell(UncleanElectionAsked(KEY))
    office.apply()
    partition = office.cluster.partition()
    assert (partition.leader, partition.isr) == ("a", ("a",))
    assert (partition.unclean_elections, partition.unclean_epoch) == (1, 2)
    office.tell(UncleanElectionAsked(KEY))  # somebody leads
    assert office.apply() == []
