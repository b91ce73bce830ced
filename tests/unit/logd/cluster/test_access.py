"""Rules and quotas in the state of a cluster."""

from pathlib import Path

import pytest

from penstock.logd.errors import RefusedError
from penstock.logd.limits import ACL_RULES_MAX, QUOTAS_MAX
from penstock.logd.metadata.access import (
    AccessTable,
    DeleteAcl,
    DeleteQuota,
    PutAcl,
    PutQuota,
    apply_access,
)
from penstock.logd.metadata.commands import CreateStream, DeleteStream
from penstock.logd.metadata.state import ClusterState
from penstock.logd.metadata.tables import Done
from penstock.logd.security.acl import AclRule, Action, Effect
from penstock.logd.security.quotas import Quota
from tests.support.cluster_state import Cluster, create
from tests.support.one_node import one_node


def rule(principal: str = "alice", resource: str = "orders") -> AclRule:
    return AclRule(principal=principal, effect=Effect.ALLOW, action=Action.READ, resource=resource)


def test_rules_and_quotas_come_and_go_and_are_in_the_snapshot() -> None:
    cluster = Cluster("a", "b", "c")
    put = PutAcl(rules=(rule(), rule("bob")))
    assert cluster.apply(put) == Done()
    first = cluster.state.access.version
    assert first == cluster.state.index
    assert cluster.apply(put) == Done(changed=False)
    assert cluster.state.access.version == first
    assert cluster.apply(PutQuota(quota=Quota(principal="*", streams=1))) == Done()
    again = ClusterState.restore(cluster.state.snapshot())
    assert again.access == cluster.state.access
    assert cluster.apply(DeleteAcl(rules=(rule().id,))) == Done()
    assert cluster.apply(DeleteQuota(principal="*")) == Done()
    assert list(cluster.state.access.rules.values()) == [rule("bob")]
    assert cluster.state.access.quotas == {}
    assert again.digest() != cluster.state.digest()


def test_a_snapshot_from_before_there_were_rules_is_read() -> None:
    old = b'{"version": 1, "index": 1, "nodes": [], "streams": [], "groups": []}'
    assert ClusterState.restore(old).access == AccessTable()


def test_of_two_changes_based_on_one_version_only_one_is_made() -> None:
    cluster = Cluster("a")
    for order in (("alice", "bob"), ("bob", "alice")):
        version = cluster.state.access.version
        codes = [
            cluster.code(PutAcl(rules=(rule(name, f"s{version}"),), based_on=version))
            for name in order
        ]
        assert codes == ["", "STALE_VERSION"]
    assert cluster.code(DeleteQuota(principal="x", based_on=0)) == "STALE_VERSION"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (PutAcl(rules=(rule("group:"),)), "BAD_RULE"),
        (PutAcl(rules=(rule(), rule(resource="a b"))), "BAD_RULE"),
        (DeleteAcl(rules=("000000000000",)), "UNKNOWN_RULE"),
        (DeleteQuota(principal="alice"), "UNKNOWN_QUOTA"),
        (PutQuota(quota=Quota(principal="alice")), "BAD_QUOTA"),
        (PutQuota(quota=Quota(principal="group:ops", streams=1)), "BAD_QUOTA"),
        (PutQuota(quota=Quota(principal="alice", requests_per_s=0)), "BAD_QUOTA"),
        (PutQuota(quota=Quota(principal="alice", bytes_in_per_s=1 << 60)), "BAD_QUOTA"),
        (PutQuota(quota=Quota(principal="alice", streams=-1)), "BAD_QUOTA"),
    ],
)
def test_what_means_nothing_changes_nothing(
    command: PutAcl | DeleteAcl | PutQuota | DeleteQuota, code: str
) -> None:
    cluster = Cluster("a")
    digest = cluster.state.digest()
    assert cluster.code(command) == code
    assert cluster.state.digest() == digest


def test_there_is_a_bound_on_rules_and_quotas() -> None:
    table = AccessTable()
    rules = tuple(rule(f"p{number}") for number in range(ACL_RULES_MAX))
    assert apply_access(table, 1, PutAcl(rules=rules))
    with pytest.raises(RefusedError) as error:
        apply_access(table, 2, PutAcl(rules=(rule("one-more"),)))
    assert (error.value.code, table.version) == ("TOO_MANY_RULES", 1)
    assert not apply_access(table, 2, PutAcl(rules=rules[:1]))
    for number in range(QUOTAS_MAX):
        apply_access(table, number + 2, PutQuota(quota=Quota(principal=f"p{number}", streams=1)))
    with pytest.raises(RefusedError) as error:
        apply_access(table, 9999, PutQuota(quota=Quota(principal="one-more", streams=1)))
    assert error.value.code == "TOO_MANY_QUOTAS"
    assert apply_access(table, 9999, PutQuota(quota=Quota(principal="p0", streams=2)))


def owned(name: str, creator: str) -> CreateStream:
    command = create(name, ("a", "b", "c"))
    fields = {key: getattr(command, key) for key in ("config", "options", "placements", "nonce")}
    return CreateStream(**fields, creator=creator)


def test_a_principal_creates_no_more_streams_than_its_quota() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.apply(PutQuota(quota=Quota(principal="*", streams=1)))
    assert cluster.code(owned("one", "alice")) == ""
    assert cluster.code(owned("two", "alice")) == "QUOTA_EXCEEDED"
    assert cluster.code(owned("one", "alice")) == ""  # it is there
    assert cluster.code(owned("two", "bob")) == ""
    assert cluster.code(owned("three", "")) == ""  # logd's own configuration
    found = cluster.state.streams["one"]
    assert found.creator == "alice"
    cluster.apply(DeleteStream(stream="one", incarnation=found.incarnation))
    assert cluster.code(owned("four", "alice")) == ""
    assert ClusterState.restore(cluster.state.snapshot()).streams["four"].creator == "alice"


async def test_one_node_keeps_rules_over_a_restart(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        access = node.engine.access
        assert await access.change(PutAcl(rules=(rule(),)))
        assert not await access.change(PutAcl(rules=(rule(),)))
        assert await access.change(PutQuota(quota=Quota(principal="alice", streams=3)))
        with pytest.raises(RefusedError, match="at version"):
            await access.change(PutAcl(rules=(rule("bob"),), based_on=1))
        before = access.table
    async with one_node(tmp_path) as node:
        after = node.engine.access.table
        assert (after.rules, after.quotas) == (before.rules, before.quotas)
