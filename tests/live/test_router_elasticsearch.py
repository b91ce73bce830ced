"""What documents of one bulk request have of their own: no room, and what breaks the cluster."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_elasticsearch import FakeElasticsearch
from tests.support.fault_door import FaultDoor
from tests.support.sink_batches import batch, dead_letters, log_record
from tests.support.sink_cases import CASES

pytestmark = pytest.mark.live

COUNT = 12
RECORDS = [log_record(number) for number in range(COUNT)]


@pytest.fixture
def cluster() -> FakeElasticsearch:
    return FakeElasticsearch()


@pytest.fixture
def door(cluster: FakeElasticsearch) -> Iterator[FaultDoor]:
    made = FaultDoor(cluster)
    yield made
    made.close()


def sent(door: FaultDoor) -> list[list[int]]:
    """The offsets of each request's documents."""
    bodies = [gzip.decompress(asked.body).splitlines()[::2] for asked in door.asked]
    return [
        [int(json.loads(action)["create"]["_id"].rpartition("-")[2]) for action in body]
        for body in bodies
    ]


def stored(cluster: FakeElasticsearch) -> list[int]:
    (documents,) = cluster.indices.values()
    return sorted(int(identity.rpartition("-")[2]) for identity in documents)


def test_only_documents_that_there_was_no_room_for_are_sent_again(
    cluster: FakeElasticsearch, door: FaultDoor, tmp_path: Path
) -> None:
    cluster.full_for = 5
    sink, its = CASES["elasticsearch"].sink(door, tmp_path)
    sink.write(batch(RECORDS))
    assert sent(door) == [[*range(COUNT)], [*range(5)]]
    assert stored(cluster) == [*range(COUNT)]
    assert dead_letters(its) == []
    stage = its.meter.stage("x", received=COUNT, lag=0)
    assert (stage.sent, stage.detail["retries"], its.meter.problem) == (COUNT, 1, None)


def test_a_document_that_breaks_the_cluster_each_time_is_found_and_the_others_arrive(
    cluster: FakeElasticsearch, door: FaultDoor, tmp_path: Path
) -> None:
    """While there is no room for others, too; those are not to blame."""
    cluster.broken_id, cluster.full_for = "logs.5f2c19aa-0-7", 3
    sink, its = CASES["elasticsearch"].sink(door, tmp_path)
    sink.write(batch(RECORDS))
    assert stored(cluster) == [it for it in range(COUNT) if it != 7]
    (letter,) = dead_letters(its)
    assert (letter["offset"], letter["code"], letter["status"]) == (7, "http_500", 500)
    assert "null_pointer_exception" in letter["reason"]
    assert letter["attempt"] > 1, "it may have been the cluster's own trouble"
    others = [offset for offsets in sent(door)[2:] for offset in offsets if offset != 7]
    assert others == [], "what is there is not sent again"
