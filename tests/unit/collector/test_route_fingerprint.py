"""What decides the subject of a record, and what may decide otherwise the next time."""

from pathlib import Path
from typing import Any

import pytest

from penstock.collector.agent.derived_config import graph_of
from penstock.collector.agent.route_fingerprint import route_fingerprint
from penstock.collector.config import CollectorConfig

FILE = {"type": "file", "name": "files", "include": ["/x.log"], "service": "shop"}
SOURCES = [{"type": "unix", "name": "app", "path": "/a.sock"}, FILE]


def fingerprint(tmp_path: Path, **keys: Any) -> str:
    document = {"data_dir": tmp_path, "sources": SOURCES} | keys
    config = CollectorConfig.model_validate(document)
    return route_fingerprint(config, graph_of(config))


def routed(where: str, *before: str, subject: str | None = "a.{kind}") -> dict[str, Any]:
    routes = {"one": {"where": where, "subject": subject}}
    return {"type": "route", "inputs": [*(before or ("app", "files"))], "routes": routes}


def enriched(**more: Any) -> dict[str, Any]:
    return {"type": "enrich", "inputs": ["app", "files"], **more}


def table(tmp_path: Path, text: str) -> dict[str, Any]:
    file = tmp_path / "owners.csv"
    file.write_text(text)
    return {"file": file, "key": "body", "column": "service"}


@pytest.mark.parametrize(
    "keys",
    [
        {"batch": {"max_age_ms": 7}},
        {"resource": {"zone": "b"}},
        {"sources": [*SOURCES, {"type": "unix", "name": "more", "path": "/b.sock"}]},
        {"sources": [SOURCES[0], FILE | {"poll_ms": 77, "exclude": ["*.gz"]}]},
        {"sensitive": {"search": False}},
    ],
    ids=["batches", "another fact", "a source", "how files are looked at", "redaction"],
)
def test_what_moves_no_record_changes_no_fingerprint(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert fingerprint(tmp_path, **keys) == fingerprint(tmp_path)


@pytest.mark.parametrize(
    "keys",
    [
        {"subject_prefix": "other"},
        {"output": {"subject": "a.{service}"}},
        {"resource": {"service.name": "b"}},
        {"transforms": {"r": routed("body == 'a'")}},
    ],
    ids=["prefix", "template", "service", "route"],
)
def test_what_moves_records_changes_it(tmp_path: Path, keys: dict[str, Any]) -> None:
    before, after = fingerprint(tmp_path), fingerprint(tmp_path, **keys)
    assert after not in {"", before}


@pytest.mark.parametrize(
    "change", [{"service": "b"}, {"format": "cri"}, {"multiline": {"start": "^x"}}]
)
def test_how_lines_of_files_are_made_changes_it(tmp_path: Path, change: dict[str, Any]) -> None:
    before, after = (
        fingerprint(tmp_path),
        fingerprint(tmp_path, sources=[SOURCES[0], FILE | change]),
    )
    assert after not in {"", before}


def test_the_order_of_routes_changes_it(tmp_path: Path) -> None:
    one, two = {"where": "true", "subject": "a.b"}, {"where": "true", "subject": "a.c"}
    route = {"type": "route", "inputs": ["app"], "routes": {"x": one, "y": two}}
    turned = route | {"routes": {"y": two, "x": one}}
    assert fingerprint(tmp_path, transforms={"r": route}) != fingerprint(
        tmp_path, transforms={"r": turned}
    )


def test_rows_of_a_table_change_it(tmp_path: Path) -> None:
    def found(text: str) -> str:
        steps = {"own": enriched(tables=[table(tmp_path, text)]), "r": routed("true", "own")}
        return fingerprint(tmp_path, transforms=steps)

    ann, bob = "service,owner\nshop,ann\n", "service,owner\nshop,bob\n"
    assert found(ann) == found(ann)
    assert found(ann) != found(bob)


def test_facts_of_the_host_change_it_where_somebody_reads_them(tmp_path: Path) -> None:
    def found(where: str, zone: str) -> str:
        steps = {"r": routed(where)}
        return fingerprint(tmp_path, transforms=steps, resource={"zone": zone})

    assert found("resource.zone == 'a'", "a") != found("resource.zone == 'a'", "b")
    assert found("body == 'a'", "a") == found("body == 'a'", "b")


@pytest.mark.parametrize(
    ("where", "varies"),
    [
        ('resource["container.name"] == "a"', True),
        ('has(resource) && body == "a"', True),
        ('resource["k8s.namespace.name"] == "a"', True),
        ('startsWith(attributes["log.file.path"], "/a")', True),
        ("observed_time_unix_nano > 7", True),
        ("body == 'a'", False),
        ("attributes.path == 'a'", False),
    ],
    ids=["docker", "resource", "a pod's path", "a path", "when it was read", "body", "another"],
)
def test_it_is_unknown_where_records_may_go_elsewhere_the_next_time(
    tmp_path: Path, where: str, *, varies: bool
) -> None:
    transforms = {"c": enriched(container=True), "r": routed(where, "c")}
    assert (fingerprint(tmp_path, transforms=transforms) == "") is varies


def test_what_is_spooled_has_the_path_and_the_time_that_it_came_with(tmp_path: Path) -> None:
    route = routed('attributes["log.file.path"] == "/a"', "app")
    assert fingerprint(tmp_path, sources=SOURCES[:1], transforms={"r": route})


@pytest.mark.parametrize("subject", ["a.{attributes.log.file.name}", "a.{resource.container.name}"])
def test_it_is_unknown_where_a_subject_is_filled_with_it(tmp_path: Path, subject: str) -> None:
    transforms = {"c": enriched(container=True)}
    assert fingerprint(tmp_path, transforms=transforms, output={"subject": subject}) == ""


def test_hashes_that_change_with_the_day_vary_in_subjects(tmp_path: Path) -> None:
    key = "k:0123456789abcdef0123456789abcdef"
    output = {"subject": "a.{attributes.user}"}
    assert fingerprint(tmp_path, output=output, sensitive={"hash_key": key})
    assert fingerprint(tmp_path, output=output, sensitive={"hash_key": f"{key}:1"}) == ""
    file = tmp_path / "key"
    file.write_text(f"{key}:1\n")
    assert fingerprint(tmp_path, output=output, sensitive={"hash_key": {"file": str(file)}}) == ""
    assert fingerprint(tmp_path, sensitive={"hash_key": f"{key}:1"}) == fingerprint(tmp_path)


def test_copies_that_are_numbered_by_what_is_remembered_vary(tmp_path: Path) -> None:
    dedupe = {"type": "dedupe", "inputs": ["app"]}
    direct = {"type": "filter", "inputs": ["app"], "where": "true"}
    counted = {"type": "logs_to_metrics", "inputs": ["app"], "name": "n"}
    assert fingerprint(tmp_path, transforms={"d": dedupe, "f": direct}) == ""
    assert fingerprint(tmp_path, transforms={"d": dedupe, "c": counted})
    assert fingerprint(tmp_path, transforms={"f": direct, "g": direct})
    throttle = {"type": "throttle", "inputs": ["app"], "rate": 1}
    assert fingerprint(tmp_path, transforms={"t": throttle, "f": direct}) == ""
    throttle["when_exceeded"] = "block"
    assert fingerprint(tmp_path, transforms={"t": throttle, "f": direct})
