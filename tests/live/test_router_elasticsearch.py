"""What documents of one bulk request have of their own: no room, and what breaks the cluster."""

import gzip
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from penstock.router.cli.main import cli
from tests.support.fake_elasticsearch import API_KEY, FakeElasticsearch
from tests.support.fault_door import Asked, Backend, FaultDoor, Proxy
from tests.support.real_products import ELASTICSEARCH_URL
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
    (dead_letter,) = dead_letters(its)
    assert (dead_letter["offset"], dead_letter["code"], dead_letter["status"]) == (
        7,
        "http_500",
        500,
    )
    assert "null_pointer_exception" in dead_letter["reason"]
    assert dead_letter["attempt"] > 1, "it may have been the cluster's own trouble"
    others = [offset for offsets in sent(door)[2:] for offset in offsets if offset != 7]
    assert others == [], "what is there is not sent again"


ODD_ATTRIBUTES: tuple[dict[str, Any], ...] = (
    {"order": 17},
    {"order": "A-17"},
    {"size": 5},
    {"size": 1 << 63},
    {"user": "ann"},
    {"user.id": "7"},
    {"user": {"id": 7, "name": {"first": "Ann"}}},
    {"when": "2026-11-26", "http.response.status_code": 200},
    {"when": "soon", "http.response.status_code": "200 OK"},
)


@pytest.mark.parametrize("documents", ["ecs", "record"])
@pytest.mark.parametrize("product", [[], ["--opensearch"]])
def test_the_template_of_bulk_documents_takes_attributes_of_another_type_each_time(
    tmp_path: Path, product: list[str], documents: str
) -> None:
    """Each of these pairs was a dead letter, and is without the template."""
    if ELASTICSEARCH_URL and not product:
        pytest.skip("the product there is OpenSearch, which has no type `flattened`")
    records = [
        log_record(number, attributes=odd, resource={"service.name": "shop", **odd})
        for number, odd in enumerate(ODD_ATTRIBUTES)
    ]
    index = f"odd-{uuid.uuid4().hex[:8]}-{{kind}}"
    keys: dict[str, Any] = {"documents": documents}
    backend: Backend = Proxy(ELASTICSEARCH_URL) if ELASTICSEARCH_URL else FakeElasticsearch()
    door = FaultDoor(backend)
    try:
        (tmp_path / "without").mkdir()
        sink, its = CASES["elasticsearch"].sink(
            door, tmp_path / "without", index=f"no-{index}", **keys
        )
        sink.write(batch(records))
        assert len(dead_letters(its)) >= 4

        search = {"type": "elasticsearch", "url": door.url, "index": index, **keys}
        printed = template_of(tmp_path, search, product)
        assert printed.exit_code == 0, printed.output
        headers = {"authorization": f"ApiKey {API_KEY}", "content-type": "application/json"}
        place = f"/_index_template/{index.removesuffix('-{kind}')}"
        answer = backend.handle(Asked(place, headers, printed.stdout.encode(), "PUT"))
        assert answer.status == 200, answer.body

        (tmp_path / "with").mkdir()
        sink, its = CASES["elasticsearch"].sink(door, tmp_path / "with", index=index, **keys)
        sink.write(batch(records))
        assert [it["reason"] for it in dead_letters(its)] == []
        assert its.meter.stage("x", received=0, lag=0).sent == len(records)
    finally:
        door.close()


def template_of(directory: Path, sink: dict[str, Any], product: list[str]) -> Result:
    """What the command prints for a job with one sink, `out`."""
    path = directory / "job.yaml"
    job = {
        "job": "test",
        "logd": "127.0.0.1:1",
        "streams": ["logs"],
        "checkpoint_dir": str(directory / "checkpoint"),
        "routes": [{"name": "all", "sinks": ["out"]}],
        "sinks": {"out": sink},
    }
    path.write_text(yaml.safe_dump(job))
    return CliRunner().invoke(cli, ["index-template", str(path), "out", *product])


def test_a_template_is_for_a_sink_of_that_type(tmp_path: Path) -> None:
    printed = template_of(tmp_path, {"type": "console"}, [])
    assert printed.exit_code != 0
    assert "no sink 'out' of the type elasticsearch" in printed.output


@pytest.mark.parametrize(
    ("index", "pattern", "is_stream"),
    [
        ("logs-penstock-default", "logs-penstock-default", True),
        ("logs-{service}-{kind}", "logs-*-*", True),
        ("app-{kind}", "app-*", False),
        ("<app-{now/d{yyyy.MM.dd}}>", "app-*", False),
    ],
)
def test_a_template_is_for_the_indices_of_its_sink(
    tmp_path: Path, index: str, pattern: str, is_stream: bool
) -> None:
    sink = {"type": "elasticsearch", "url": "http://127.0.0.1:9", "index": index}
    printed = json.loads(template_of(tmp_path, sink, []).stdout)
    assert printed["index_patterns"] == [pattern]
    assert ("data_stream" in printed) is is_stream
    assert "data_stream" not in json.loads(template_of(tmp_path, sink, ["--opensearch"]).stdout)
