"""What a change of a consumer group must respect when it is applied."""

from penstock.logd.limits import GROUP_MEMBERS_MAX
from penstock.logd.metadata.commands import NewShare, PutGroup, Release
from penstock.logd.metadata.records import GroupMember, GroupPartition
from tests.support.cluster_state import Cluster

P0, P1 = GroupPartition("s", "i", 0), GroupPartition("s", "i", 1)


def put(
    cluster: Cluster,
    members: str,
    *shares: tuple[GroupPartition, str, str | None],
    based_on: int | None = None,
    released: tuple[Release, ...] = (),
) -> str:
    group = cluster.state.groups.get("g")
    epoch = group.epoch if group else 0
    return cluster.code(
        PutGroup(
            group="g",
            based_on=epoch if based_on is None else based_on,
            members=tuple(GroupMember(id=id_, streams=("s",), session_ms=1) for id_ in members),
            shares=tuple(NewShare(partition=p, wanted=w, owner=o) for p, w, o in shares),
            released=released,
        )
    )


def test_an_epoch_is_the_index_of_its_command_and_is_named_by_the_next() -> None:
    cluster = Cluster("a")
    assert put(cluster, "x", (P0, "x", "x")) == ""
    first = cluster.state.groups["g"].epoch
    assert first == cluster.state.index
    assert put(cluster, "xy", (P0, "x", "x"), based_on=first - 1) == "STALE_EPOCH"
    assert put(cluster, "xy", (P0, "x", "x"), (P1, "y", "y")) == ""
    shares = cluster.state.groups["g"].shares
    assert [share.epoch for share in shares] == [first, cluster.state.index]


def test_a_partition_is_revoked_before_it_is_granted() -> None:
    cluster = Cluster("a")
    put(cluster, "xy", (P0, "x", "x"))
    granted = cluster.state.groups["g"].shares[0].epoch
    assert put(cluster, "xy", (P0, "y", "y")) == "NOT_RELEASED"
    assert put(cluster, "xy", (P0, "y", None)) == "NOT_RELEASED"
    late = Release(partition=P0, member="x", epoch=granted - 1)
    assert put(cluster, "xy", (P0, "y", "y"), released=(late,)) == "NOT_RELEASED"
    assert put(cluster, "xy", (P0, "y", "x")) == ""
    right = Release(partition=P0, member="x", epoch=granted)
    assert put(cluster, "xy", (P0, "y", "y"), released=(right,)) == ""


def test_the_partition_of_one_who_left_is_granted_at_once() -> None:
    cluster = Cluster("a")
    put(cluster, "xy", (P0, "x", "x"))
    assert put(cluster, "y", (P0, "y", "y")) == ""


def test_a_group_without_members_is_forgotten_and_its_epochs_still_rise() -> None:
    cluster = Cluster("a")
    put(cluster, "x", (P0, "x", "x"))
    first = cluster.state.groups["g"].epoch
    assert put(cluster, "") == ""
    assert cluster.state.groups == {}
    assert put(cluster, "x", (P0, "x", "x"), based_on=first) == "STALE_EPOCH"
    assert put(cluster, "x", (P0, "x", "x")) == ""
    assert cluster.state.groups["g"].shares[0].epoch > first


def test_what_is_no_group_is_refused() -> None:
    cluster = Cluster("a")
    assert put(cluster, "xx") == "BAD_GROUP"
    assert put(cluster, "x", (P0, "x", None), (P0, "x", None)) == "BAD_GROUP"
    assert put(cluster, "x", (P0, "y", None)) == "BAD_GROUP"
    assert put(cluster, "x", (P0, "x", "y")) == "BAD_GROUP"
    assert put(cluster, " ") == "BAD_CONSUMER"
    many = "".join(chr(0x4E00 + n) for n in range(GROUP_MEMBERS_MAX + 1))
    assert put(cluster, many) == "TOO_MANY_MEMBERS"
