"""Rules of a lone logd come into a cluster that has none, whatever happens on the way."""

import asyncio
import copy
from pathlib import Path

import pytest

from penstock.logd.cluster.import_standalone import AccessAdoption
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.access import AccessCommand, AccessTable, PutAcl, PutQuota, apply_access
from penstock.logd.metadata.state import Refused, Result
from penstock.logd.metadata.tables import Done
from penstock.logd.security.quotas import Quota
from penstock.logd.standalone import LoneAccess
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
def lone(tmp_path: Path) -> LoneAccess:
    access = LoneAccess(tmp_path)

    async def fill() -> None:
        await access.change(PutAcl(rules=RULES))
        for quota in QUOTAS:
            await access.change(PutQuota(quota=quota))

    asyncio.run(fill())
    return access


async def test_they_come_along_also_when_the_node_is_lost_on_the_way(
    tmp_path: Path, lone: LoneAccess
) -> None:
    group = Office(lives=0)
    for _ in range(5):  # 40, 40 and 10 rules, two quotas
        with pytest.raises(ConnectionError):
            await AccessAdoption(tmp_path).run(group)
        assert (tmp_path / "access").exists()
        group.lives = 1
    adoption = AccessAdoption(tmp_path)
    await adoption.run(group)
    assert (group.access.rules, group.access.quotas) == (lone.table.rules, lone.table.quotas)
    assert not (tmp_path / "access").exists()
    assert adoption.problem == ""
    before = copy.deepcopy(group.access)
    await AccessAdoption(tmp_path).run(group)
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
    tmp_path: Path, lone: LoneAccess, other: AccessCommand
) -> None:
    del lone
    group = Office()
    await group.insist(other)
    before = copy.deepcopy(group.access)
    adoption = AccessAdoption(tmp_path)
    await adoption.run(group)
    assert group.access == before
    assert "the cluster has rules or quotas of its own" in adoption.problem
    assert (tmp_path / "access").exists()


async def test_a_damaged_file_is_told_and_followed_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "access").write_bytes(b"damage")
    group, adoption = Office(), AccessAdoption(tmp_path)
    await adoption.run(group)
    assert group.access.version == 0
    assert "not in the cluster" in adoption.problem
