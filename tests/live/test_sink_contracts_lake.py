"""What the fake of Iceberg's REST catalog says, and catalogs say too: the same tests for both.

As in `test_sink_contracts.py`: without more, the fake is asked; an environment variable names a
real catalog instead, which holds an empty table of these tests afterwards.

    PENSTOCK_TEST_ICEBERG_URL=https://host/api/catalog  PENSTOCK_TEST_ICEBERG_TOKEN=…
    PENSTOCK_TEST_ICEBERG_WAREHOUSE=…                   (where the catalog has several)
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField, StringType

from tests.support.fake_iceberg_catalog import TOKEN, FakeIcebergCatalog
from tests.support.fault_door import FaultDoor

pytestmark = pytest.mark.live

NAMESPACE = "penstock_contract"
SCHEMA = Schema(NestedField(1, "offset", LongType(), required=False))


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a catalog that lets us in."""
    if real := os.environ.get("PENSTOCK_TEST_ICEBERG_URL"):
        token = os.environ.get("PENSTOCK_TEST_ICEBERG_TOKEN", "")
        given = {"type": "rest", "uri": real, "token": token}
        if warehouse := os.environ.get("PENSTOCK_TEST_ICEBERG_WAREHOUSE"):
            given["warehouse"] = warehouse
        yield given
        return
    place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    behind = load_catalog("behind", type="sql", **place)
    door = FaultDoor(FakeIcebergCatalog(behind))
    yield {"type": "rest", "uri": door.url, "token": TOKEN}
    door.close()
    behind.close()


@pytest.fixture
def catalog(settings: dict[str, str]) -> Any:
    made = load_catalog("contract", **settings)
    made.create_namespace_if_not_exists(NAMESPACE)
    return made


@pytest.fixture
def name(catalog: Any) -> str:
    """Of a new table."""
    made = f"{NAMESPACE}.t{uuid.uuid4().hex[:8]}"
    catalog.create_table_transaction(made, schema=SCHEMA).commit_transaction()
    return made


def test_a_catalog_lets_nobody_in_without_a_token(settings: dict[str, str]) -> None:
    with pytest.raises(UnauthorizedError):
        load_catalog("contract", **settings | {"token": "wrong"})


def test_a_namespace_is_made_once(catalog: Any) -> None:
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace(NAMESPACE)


def test_a_table_is_there_from_the_commit_that_makes_it(catalog: Any) -> None:
    name = f"{NAMESPACE}.t{uuid.uuid4().hex[:8]}"
    staged = catalog.create_table_transaction(name, schema=SCHEMA)
    with pytest.raises(NoSuchTableError):
        catalog.load_table(name)
    staged.commit_transaction()
    assert [field.name for field in catalog.load_table(name).schema().fields] == ["offset"]


def test_a_table_is_made_by_one_of_two(catalog: Any) -> None:
    name = f"{NAMESPACE}.t{uuid.uuid4().hex[:8]}"
    first, second = (catalog.create_table_transaction(name, schema=SCHEMA) for _ in range(2))
    first.commit_transaction()
    with pytest.raises(CommitFailedException):
        second.commit_transaction()
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table_transaction(name, schema=SCHEMA)


def test_of_two_commits_on_one_state_the_second_is_refused(catalog: Any, name: str) -> None:
    first, second = (catalog.load_table(name).update_schema() for _ in range(2))
    first.add_column("a", StringType()).commit()
    with pytest.raises(CommitFailedException):
        second.add_column("b", StringType()).commit()
    assert [it.name for it in catalog.load_table(name).schema().fields] == ["offset", "a"]


def test_a_commit_behind_a_snapshot_that_is_not_the_last_is_refused(
    catalog: Any, name: str
) -> None:
    table, update = catalog.load_table(name), SetPropertiesUpdate(updates={"k": "v"})
    stale = AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": 7})
    with pytest.raises(CommitFailedException):
        catalog.commit_table(table, (stale,), (update,))
    assert "k" not in catalog.load_table(name).properties
    empty = AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": None})
    catalog.commit_table(table, (empty,), (update,))
    assert catalog.load_table(name).properties["k"] == "v"
