"""Rules that 0.1.0 kept outside of a cluster come into one that has none, whatever happens."""

import copy
from pathlib import Path

import orjson
import pytest

from penstock.logd.cluster.import_standalone import RulesImport
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.access import (
    AccessCommand,
    AccessTable,
    PutAcl,
    PutQuota,
    apply_access,
    record_of,
)
from penstock.logd.metadata.codec import write_document
from penstock.logd.metadata.state import Refused, Result
from penstock.logd.metadata.tables import Done
from penstock.logd.security.quotas import Quota
from penstock.logd.storage import Checkpoint
from tests.support.guarded_api import rule

RULES = tuple(rule(f"allow user-{number} read orders") for number in range(90))
QUOTAS = tuple(Quota(principal=one, requests_per_s=1) for one in ("alice", "bob"))


class Office:
    """A cluster's metadata group; after `lives` commands its node is lost."""

    def __init__(self, lives: int = 1000) -> None:
        self.access = AccessTable()
        self.lives = lives
        self._index = 7

    @property
    def state(self) -> "Office":
        return self

    async def catch_up(self) -> None:
        """It is."""

    async def insist(self, command: AccessCommand) -> Result:
        if self.lives == 0:
            raise ConnectionError
        self.lives -= 1
        self._index += 1
        try:
            apply_access(self.access, self._index, command)
        except RefusedError as error:
            return Refused(code=error.code, message=str(error))
        return Done()


@pytest.fixture
def own(tmp_path: Path) -> AccessTable:
    """Rules and quotas of the node, in the file that an earlier release wrote."""
    table = AccessTable()
    for index, command in enumerate((PutAcl(rules=RULES), *map(quota_put, QUOTAS)), start=1):
        assert apply_access(table, index, command)
    document = orjson.loads(write_document(record_of(table)))
    Checkpoint(tmp_path / "access").save(document)
    return table


def quota_put(quota: Quota) -> AccessCommand:
    return PutQuota(quota=quota)


async def test_they_come_along_also_when_the_node_is_lost_on_the_way(
    tmp_path: Path, own: AccessTable
) -> None:
    group = Office(lives=0)
    for _ in range(5):  # 40, 40 and 10 rules, two quotas
        with pytest.raises(ConnectionError):
            await RulesImport(tmp_path).run(group)
        assert (tmp_path / "access").exists()
        group.lives = 1
    rules_import = RulesImport(tmp_path)
    await rules_import.run(group)
    assert (group.access.rules, group.access.quotas) == (own.rules, own.quotas)
    assert not (tmp_path / "access").exists()
    assert rules_import.problem == ""
    before = copy.deepcopy(group.access)
    await RulesImport(tmp_path).run(group)
    assert group.access == before


@pytest.mark.parametrize(
    "other",
    [
        PutAcl(rules=(rule("deny * read orders"),)),
        PutQuota(quota=Quota(principal="carol", requests_per_s=1)),
        PutQuota(quota=Quota(principal="alice", requests_per_s=2)),
    ],
)
async def test_a_cluster_with_rules_of_its_own_keeps_to_those(
    tmp_path: Path, own: AccessTable, other: AccessCommand
) -> None:
    del own
    group = Office()
    await group.insist(other)
    before = copy.deepcopy(group.access)
    rules_import = RulesImport(tmp_path)
    await rules_import.run(group)
    assert group.access == before
    assert "the cluster has its own rules or quotas" in rules_import.problem
    assert (tmp_path / "access").exists()


async def test_a_damaged_file_is_told_and_followed_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "access").write_bytes(b"damage")
    group, rules_import = Office(), RulesImport(tmp_path)
    await rules_import.run(group)
    assert group.access.version == 0
    assert "not in the cluster" in rules_import.problem
