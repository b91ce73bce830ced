"""What the controller decides, and when; its timing under faults is simulated elsewhere."""

import pytest
from msgspec.structs import replace

from penstock.logd.controller.controller import (
    HeartbeatReceived,
    LostController,
    Tick,
    UncleanElectionAsked,
)
from penstock.logd.controller.liveness import (
    NS_PER_MS,
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRefusal,
)
from penstock.logd.limits import COMMAND_BYTES_MAX
from penstock.logd.metadata.commands import (
    ChangeIsr,
    Drain,
    ElectLeaders,
    IsrChange,
    encode_command,
)
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.replication.events import Ineligible
from tests.support.cluster_office import ALWAYS, KEY, Office, report
from tests.support.cluster_state import Cluster, register


@pytest.fixture
def office() -> Office:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a", "b", "c"))
    return Office(cluster)


def test_one_who_is_not_the_controller_gives_no_lease(office: Office) -> None:
    answer = office.beat("a")
    assert isinstance(answer, HeartbeatRefusal)
    assert answer.reason == "not_controller"
    assert office.controller.next_deadline_ns() is None
    assert office.controller.admit(IsrChange(basis=office.cluster.basis(), isr=("a",)))
    office.begin()
    assert isinstance(office.beat("a"), HeartbeatAnswer)
    office.tell(LostController())
    assert office.tell(Tick(ALWAYS)) == []
    assert isinstance(office.beat("a"), HeartbeatRefusal)
    assert office.controller.live() == set()


def test_a_new_controller_does_not_know_at_once_who_is_there(office: Office) -> None:
    office.begin()
    office.pass_time(600, "a", "b")
    assert office.controller.live() == {"a", "b"}
    assert not office.controller.knows_nodes()
    office.pass_time(700, "a", "b")
    assert office.controller.knows_nodes(), "who was not heard for so long is away"
    office.tell(LostController())
    assert not office.controller.knows_nodes()


def test_a_process_that_is_not_registered_gets_no_lease(office: Office) -> None:
    office.begin()
    office.cluster.apply(register("a", boot="boot-2"))
    old = Heartbeat(node="a", storage="storage-a", boot="boot-1", sequence=9, applied_index=99)
    office.tell(HeartbeatReceived(old, ALWAYS))
    assert office.answers == [HeartbeatRefusal(boot="boot-1", sequence=9, reason="register")]
    unknown = office.beat("x")
    assert isinstance(unknown, HeartbeatRefusal)
    assert unknown.reason == "register"


def test_a_lease_needs_the_controllers_own(office: Office) -> None:
    office.begin()
    office.now = 10
    refused = office.beat("a", raft_lease_until_ns=10 * NS_PER_MS)
    assert isinstance(refused, HeartbeatRefusal)
    assert refused.reason == "no_raft_lease"
    assert isinstance(office.beat("a", raft_lease_until_ns=11 * NS_PER_MS), HeartbeatAnswer)


def test_every_node_is_asked_for_a_full_report_once(office: Office) -> None:
    office.begin()
    assert office.beat("a").send_full
    assert not office.beat("a", full=True).send_full
    assert not office.beat("a").send_full


def test_a_new_controller_waits_for_leases_of_before(office: Office) -> None:
    office.begin()
    office.pass_time(650, "b", "c")
    assert office.apply() == []
    office.pass_time(700, "b", "c")
    (command,) = office.apply()
    assert isinstance(command, ElectLeaders)
    partition = office.cluster.partition()
    assert (partition.leader, partition.leader_epoch, partition.isr) == ("b", 2, ("b", "c"))
    assert office.controller.counts["elections"] == 1


def test_a_dead_leader_is_replaced_when_its_lease_has_ended(office: Office) -> None:
    office.begin()
    office.pass_time(1000, "a", "b", "c")
    office.pass_time(1650, "b", "c")
    assert office.apply() == []
    office.pass_time(1700, "b", "c")
    office.apply()
    assert office.cluster.partition().leader == "b"


def test_who_has_lost_dedup_state_leads_only_if_nobody_else_is_there(office: Office) -> None:
    office.begin()
    lost = replace(report(office.cluster, end_offset=9), forgetful=True)
    office.beat("b", reports=(lost,), full=True)
    office.beat("c", reports=(report(office.cluster, end_offset=7),), full=True)
    office.pass_time(700, "b", "c")
    office.apply()
    assert office.cluster.partition().leader == "c"
    office.pass_time(1400, "b")
    office.apply()
    assert office.cluster.partition().leader == "b"


def test_who_has_the_longest_log_leads(office: Office) -> None:
    office.begin()
    for node, end_offset in (("a", 9), ("b", 5), ("c", 7)):
        office.beat(node, reports=(report(office.cluster, end_offset=end_offset),), full=True)
    office.pass_time(700, "b", "c")
    office.apply()
    assert office.cluster.partition().leader == "c"


def test_a_leader_who_comes_back_during_its_election_gets_no_lease(office: Office) -> None:
    office.begin()
    office.pass_time(700, "b", "c")
    assert len(office.proposed) == 1
    answer = office.beat("a")
    assert isinstance(answer, HeartbeatRefusal)
    assert answer.reason == "behind"
    office.apply()
    applied = office.cluster.state.nodes["a"].deposed_at
    assert isinstance(office.beat("a", applied=applied - 1), HeartbeatRefusal)
    assert isinstance(office.beat("a", applied=applied), HeartbeatAnswer)


def test_one_election_is_under_way_for_a_partition(office: Office) -> None:
    office.begin()
    office.pass_time(3000, "b", "c")
    office.beat("b", reports=(report(office.cluster, unfit="failed"),))
    assert len(office.proposed) == 1
    office.apply()  # b is elected, and says that it does not lead
    office.beat("b", reports=(report(office.cluster, unfit="failed", resigned=True),))
    office.apply()
    assert office.cluster.partition().leader == "c"


def test_without_a_live_replica_in_sync_nobody_leads(office: Office) -> None:
    office.do(office.cluster.isr_change("a"))
    office.begin()
    office.pass_time(700, "b", "c")
    office.apply()
    assert office.cluster.partition().leader is None
    office.pass_time(60_000, "b", "c")
    assert office.apply() == []
    office.beat("a")
    office.apply()
    partition = office.cluster.partition()
    assert (partition.leader, partition.isr, partition.leader_epoch) == ("a", ("a",), 3)


def test_an_unclean_election_waits_and_needs_the_option(office: Office) -> None:
    cluster = Cluster("a", "b", "c")
    options = ReplicationOptions(replication_factor=3, unclean_election=True)
    cluster.create("s", ("a", "b", "c"), options=options)
    office = Office(cluster)
    office.do(cluster.isr_change("a"))
    office.begin()
    office.pass_time(700, "b", "c")
    office.apply()
    office.pass_time(5600, "b", "c")
    assert office.apply() == []
    office.pass_time(5800, "b", "c")
    office.apply()
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.unclean_elections) == ("b", ("b",), 1)
    assert office.controller.counts["unclean elections"] == 1


def test_damaged_logs_are_better_than_none(office: Office) -> None:
    office.do(office.cluster.isr_change("a"))
    office.begin()
    office.beat("b", reports=(report(office.cluster, unfit="hole"),), full=True)
    office.beat("c", reports=(report(office.cluster, unfit="failed"),), full=True)
    office.pass_time(700, "b", "c")
    office.apply()
    office.tell(UncleanElectionAsked(KEY))
    office.apply()
    assert office.cluster.partition().leader == "b"


def test_a_stream_that_allows_it_gets_a_leader_after_one_that_resigned() -> None:
    cluster = Cluster("a", "b", "c")
    options = ReplicationOptions(replication_factor=3, unclean_election=True)
    cluster.create("s", ("a", "b", "c"), options=options)
    office = Office(cluster)
    office.do(cluster.isr_change("a"))
    office.begin()
    office.beat("a", reports=(report(cluster, unfit="failed", resigned=True),), full=True)
    office.pass_time(4900, "a", "b", "c")
    assert office.apply() == []
    office.pass_time(5200, "a", "b", "c")
    office.apply()
    assert (cluster.partition().leader, cluster.partition().unclean_elections) == ("b", 1)


def test_dead_followers_leave_the_isr_and_are_not_taken_in(office: Office) -> None:
    office.begin()
    office.pass_time(700, "a", "b")
    (command,) = office.apply()
    assert isinstance(command, ChangeIsr)
    assert office.cluster.partition().isr == ("a", "b")
    back = office.cluster.isr_change("a", "b", "c").changes[0]
    refused = office.controller.admit(back)
    assert refused is not None
    assert refused.code == "NODE_NOT_LIVE"
    office.beat("c")
    assert office.controller.admit(back) is None


def test_dead_members_that_the_minimum_needs_stay_in_the_isr(office: Office) -> None:
    """Nothing is committed without them, so each has everything and may be elected (KIP-966)."""
    office.begin()
    office.pass_time(700, "a", "b")
    office.apply()
    office.pass_time(1500, "a")
    office.apply()
    assert office.cluster.partition().isr == ("a", "b")
    office.pass_time(2300, "b")
    office.apply()
    partition = office.cluster.partition()
    assert (partition.leader, partition.isr) == ("b", ("a", "b"))
    office.pass_time(3100, "a")
    office.apply()
    partition = office.cluster.partition()
    assert (partition.leader, partition.isr) == ("a", ("a", "b"))


def test_a_controller_without_a_raft_lease_calls_no_node_dead(office: Office) -> None:
    """It may be the controller that does not receive; the others may commit what it proposes."""
    office.begin()
    office.beat("a", "b", "c")
    office.now = 700
    lease = office.now * NS_PER_MS
    assert office.tell(Tick(lease)) == []
    due = office.controller.next_deadline_ns()
    assert due is not None
    assert due > lease
    assert office.tell(Tick(lease + 1)) != []
    office.apply()
    assert office.cluster.partition().leader is None


def test_a_leader_whose_disk_failed_is_replaced_at_once(office: Office) -> None:
    office.begin()
    office.pass_time(300, "a", "b", "c")
    office.beat("a", reports=(report(office.cluster, unfit="failed", resigned=True),))
    office.apply()
    partition = office.cluster.partition()
    assert (partition.leader, partition.isr) == ("b", ("b", "c"))


def test_a_resigned_leader_leads_on_in_a_new_epoch_if_nobody_else_can() -> None:
    cluster = Cluster("a")
    cluster.create("s", ("a",), options=ReplicationOptions(replication_factor=1))
    office = Office(cluster)
    office.begin()
    office.beat("a", reports=(report(cluster, unfit="failed", resigned=True),), full=True)
    assert office.apply() == []
    assert cluster.partition().leader == "a"
    office.beat("a", reports=(report(cluster, resigned=True),))
    office.apply()
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == ("a", 2)
    office.beat("a", reports=(report(cluster, epoch=1, resigned=True),))
    assert office.apply() == []


@pytest.mark.parametrize("unfit", ["failed", "hole", "diverged"])
def test_a_replica_that_is_not_fit_does_not_lead(office: Office, unfit: Ineligible) -> None:
    office.begin()
    office.beat("b", reports=(report(office.cluster, end_offset=99, unfit=unfit),), full=True)
    office.pass_time(700, "b", "c")
    office.apply()
    assert office.cluster.partition().leader == "c"


def test_the_only_replica_leads_when_its_log_is_open_again(office: Office) -> None:
    """While a log that failed is opened again, a full report does not name it."""
    office.do(office.cluster.isr_change("a"))
    office.begin()
    office.pass_time(1000, "b", "c")
    office.apply()
    assert office.cluster.partition().leader is None
    office.beat("a", reports=(report(office.cluster, unfit="failed"),))
    office.beat("a", full=True)
    assert office.apply() == []
    office.beat("a", reports=(report(office.cluster),))
    office.apply()
    assert office.cluster.partition().leader == "a"


def test_an_old_heartbeat_gives_no_lease_and_changes_nothing(office: Office) -> None:
    office.begin()
    office.beat("a")
    old = Heartbeat(
        node="a",
        storage="storage-a",
        boot="boot-1",
        sequence=1,
        applied_index=99,
        reports=(report(office.cluster, unfit="failed", resigned=True),),
    )
    office.tell(HeartbeatReceived(old, ALWAYS))
    late = HeartbeatRefusal(boot="boot-1", sequence=1, reason="late", send_full=True)
    assert office.answers[-1] == late
    assert office.apply() == []


def test_a_leadership_is_handed_over_when_its_leader_knows(office: Office) -> None:
    office.begin()
    office.pass_time(1050, "a", "b", "c")
    office.do(Drain(node="a"))
    (proposal,) = office.proposed
    assert isinstance(proposal.command, ElectLeaders)
    assert proposal.command.elections[0].successor == "b"
    office.apply()
    assert office.cluster.partition().leader is None
    assert office.tell(UncleanElectionAsked(KEY)) == []  # it need not be one
    deposed_at = office.cluster.state.nodes["a"].deposed_at
    office.beat("a", applied=deposed_at - 1)
    office.beat("b", "c")
    assert office.proposed == []
    office.beat("a", applied=deposed_at)
    office.apply()
    assert office.cluster.partition().leader == "b"


def test_a_leadership_is_handed_over_when_its_leaders_lease_has_ended(office: Office) -> None:
    office.begin()
    office.pass_time(1050, "a", "b", "c")
    office.do(Drain(node="a"))
    office.apply()
    office.pass_time(1700, "b", "c")
    office.beat("a", applied=0)  # it is there, and gets no lease
    assert office.proposed == []
    office.pass_time(1750, "b", "c")
    office.apply()
    assert office.cluster.partition().leader == "b"


def test_a_dead_leader_waits_for_one_who_is_just_starting(office: Office) -> None:
    office.do(office.cluster.isr_change("a", "c"))
    office.begin()
    office.pass_time(500, "b")
    office.do(register("c", boot="boot-2"))
    office.pass_time(1000, "b")
    assert office.proposed == []
    office.beat("c")
    office.apply()
    partition = office.cluster.partition()
    assert (partition.leader, partition.leader_epoch) == ("c", 2)


def test_a_new_controller_goes_on_with_a_handover() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a", "b", "c"))
    cluster.apply(cluster.election(None, successor="c"))
    office = Office(cluster)
    office.begin()
    office.beat("b", "c", applied=cluster.state.index)
    assert office.proposed == []
    office.beat("a", applied=cluster.state.index)
    office.apply()
    assert cluster.partition().leader == "c"


def test_its_deadline_is_the_first_that_matters(office: Office) -> None:
    office.begin()
    assert office.controller.next_deadline_ns() == 660 * NS_PER_MS
    office.pass_time(500, "a", "b", "c")
    assert office.controller.next_deadline_ns() == 1000 * NS_PER_MS


def test_many_leaderships_of_one_node_go_in_few_commands() -> None:
    cluster = Cluster("a", "b")
    two = ReplicationOptions(replication_factor=2)
    cluster.create("s", *[("a", "b")] * 700, options=two)
    office = Office(cluster)
    office.begin()
    office.pass_time(700, "b")
    commands = [one.command for one in office.proposed]
    counts = [len(one.elections) for one in commands if isinstance(one, ElectLeaders)]
    assert counts == [500, 200]
    assert all(len(encode_command(one)) < COMMAND_BYTES_MAX for one in commands)
