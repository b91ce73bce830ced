"""What decides into which lane a record goes, and what may decide otherwise the next time."""

from pathlib import Path
from typing import Any

import pytest

from penstock.collector.agent.route_fingerprint import fingerprint_of
from penstock.collector.agent.settings import graph_of
from penstock.collector.checkpoint.routing import RouteFingerprint
from penstock.collector.config import CollectorConfig

FILE = {"type": "file", "name": "files", "include": ["/x.log"], "service": "shop"}
SOURCES = [{"type": "unix", "name": "app", "path": "/a.sock"}, FILE]


def rules(tmp_path: Path, **keys: Any) -> RouteFingerprint:
    document = {"data_dir": tmp_path, "sources": SOURCES} | keys
    config = CollectorConfig.model_validate(document)
    return fingerprint_of(config, graph_of(config))


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
        {"batch": {"age_ms": 7}},
        {"resource": {"zone": "b"}},
        {"sources": [*SOURCES, {"type": "unix", "name": "more", "path": "/b.sock"}]},
        {"sources": [SOURCES[0], FILE | {"poll_ms": 77, "exclude": ["*.gz"]}]},
        {"sensitive": {"search": False}},
    ],
    ids=["batches", "another fact", "a source", "how files are looked at", "redaction"],
)
def test_what_moves_no_record_is_no_other_rule(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert rules(tmp_path, **keys) == rules(tmp_path)


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
def test_what_moves_records_is_another_rule(tmp_path: Path, keys: dict[str, Any]) -> None:
    before, after = rules(tmp_path), rules(tmp_path, **keys)
    assert after.spools not in {"", before.spools}
    assert after.files not in {"", before.files}


@pytest.mark.parametrize(
    "change", [{"service": "b"}, {"format": "cri"}, {"multiline": {"start": "^x"}}]
)
def test_how_lines_of_files_are_made_is_a_rule_for_files_alone(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    before, after = rules(tmp_path), rules(tmp_path, sources=[SOURCES[0], FILE | change])
    assert after.spools == before.spools
    assert after.files not in {"", before.files}


def test_the_order_of_routes_is_a_rule(tmp_path: Path) -> None:
    one, two = {"where": "true", "subject": "a.b"}, {"where": "true", "subject": "a.c"}
    route = {"type": "route", "inputs": ["app"], "routes": {"x": one, "y": two}}
    turned = route | {"routes": {"y": two, "x": one}}
    assert rules(tmp_path, transforms={"r": route}) != rules(tmp_path, transforms={"r": turned})


def test_rows_of_a_table_are_a_rule_where_somebody_reads_what_they_add(tmp_path: Path) -> None:
    def found(where: str, text: str) -> RouteFingerprint:
        steps = {"own": enriched(tables=[table(tmp_path, text)]), "r": routed(where, "own")}
        return rules(tmp_path, transforms=steps)

    ann, bob = "service,owner\nshop,ann\n", "service,owner\nshop,bob\n"
    assert found("attributes.owner == 'ann'", ann) != found("attributes.owner == 'ann'", bob)
    assert found("body == 'ann'", ann) == found("body == 'ann'", bob)


@pytest.mark.parametrize(
    ("where", "spools_vary"),
    [
        ('resource["container.name"] == "a"', True),
        ('has(resource) && body == "a"', True),
        ('resource["k8s.namespace.name"] == "a"', False),
        ('startsWith(attributes["log.file.path"], "/a")', False),
        ("observed_time_unix_nano > 7", False),
    ],
    ids=["docker", "all of the resource", "a pod's path", "a path", "when it was read"],
)
def test_what_may_be_otherwise_the_next_time_is_no_rule(
    tmp_path: Path, where: str, *, spools_vary: bool
) -> None:
    transforms = {"c": enriched(container=True), "r": routed(where, "c")}
    found = rules(tmp_path, transforms=transforms)
    assert found.files == ""
    assert (found.spools == "") is spools_vary
    without = rules(tmp_path, transforms=transforms | {"r": routed("body == 'a'", "c")})
    assert without.files
    assert without.spools


def test_what_is_spooled_has_the_path_and_the_time_that_it_came_with(tmp_path: Path) -> None:
    route = routed('attributes["log.file.path"] == "/a"', "app")
    found = rules(tmp_path, sources=SOURCES[:1], transforms={"r": route})
    assert found.files
    assert found.spools


@pytest.mark.parametrize("subject", ["a.{attributes.log.file.name}", "a.{resource.container.name}"])
def test_a_subject_that_is_filled_with_it_varies_too(tmp_path: Path, subject: str) -> None:
    transforms = {"c": enriched(container=True)}
    assert rules(tmp_path, transforms=transforms, output={"subject": subject}).files == ""


def test_hashes_that_change_with_the_day_vary_in_subjects(tmp_path: Path) -> None:
    key = "k:0123456789abcdef0123456789abcdef"
    output = {"subject": "a.{attributes.user}"}
    assert rules(tmp_path, output=output, sensitive={"hash_key": key}).files
    assert rules(tmp_path, output=output, sensitive={"hash_key": f"{key}:1"}).files == ""
    file = tmp_path / "key"
    file.write_text(f"{key}:1\n")
    assert rules(tmp_path, output=output, sensitive={"hash_key": {"file": str(file)}}).files == ""
    assert rules(tmp_path, sensitive={"hash_key": f"{key}:1"}) == rules(tmp_path)


def test_copies_that_are_numbered_by_what_is_remembered_vary(tmp_path: Path) -> None:
    dedupe = {"type": "dedupe", "inputs": ["app"]}
    direct = {"type": "filter", "inputs": ["app"], "where": "true"}
    counted = {"type": "logs_to_metrics", "inputs": ["app"], "name": "n"}
    assert rules(tmp_path, transforms={"d": dedupe, "f": direct}) == RouteFingerprint()
    assert rules(tmp_path, transforms={"d": dedupe, "c": counted}).spools
    assert rules(tmp_path, transforms={"f": direct, "g": direct}).spools
    throttle = {"type": "throttle", "inputs": ["app"], "rate": 1}
    assert rules(tmp_path, transforms={"t": throttle, "f": direct}) == RouteFingerprint()
    throttle["when_exceeded"] = "block"
    assert rules(tmp_path, transforms={"t": throttle, "f": direct}).spools


@pytest.mark.parametrize(
    "ending",
    [
        {"type": "filter", "where": 'attributes["log.file.name"] == "a"'},
        {"type": "sample", "ratio": 0.5, "keep": 'attributes["log.file.name"] == "a"'},
    ],
    ids=["filter", "sample"],
)
def test_what_only_ends_records_decides_where_there_are_copies(
    tmp_path: Path, ending: dict[str, Any]
) -> None:
    one = ending | {"inputs": ["files"]}
    other = {"type": "filter", "inputs": ["files"], "where": "true"}
    assert rules(tmp_path, transforms={"e": one}).files
    assert rules(tmp_path, transforms={"e": one, "other": other}).files == ""


def test_what_a_sample_keeps_decides_where_somebody_reads_the_weight(tmp_path: Path) -> None:
    keep = 'attributes["log.file.name"] == "a"'
    sample = {"type": "sample", "inputs": ["files"], "ratio": 0.5, "keep": keep}
    route = routed("sample_weight > 1", "s")
    assert rules(tmp_path, transforms={"s": sample, "r": routed("true", "s")}).files
    assert rules(tmp_path, transforms={"s": sample, "r": route}).files == ""
