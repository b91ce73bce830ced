"""Mappings lose no value, and nothing takes the place of what is mapped."""

import itertools
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.router.sinks import make_sink
from penstock.router.sinks.registry import sink_kind
from penstock.router.transforms.mappings import PRESETS, to_cim, to_loki
from penstock.specs.formats.ecs import to_ecs
from tests.support.sink_batches import NOW_NS, batch, context

HEAD = {"schema": "log/1.0", "kind": "log", "time_unix_nano": NOW_NS, "severity_number": 17}
GROUPS: dict[str, dict[str, Any]] = {
    "context": {"user.id": "u1", "client.address": "c-src", "shared": "c-shared"},
    "resource": {"service.name": "shop", "host.name": "web1", "shared": "r-shared", "dest": "r"},
    "attributes": {
        "user_id": "other", "message": "m2", "host": "h2", "app": "a2", "shared": "a-shared",
        "client.address": "a-src", "severity": "mine", "_time": "noon", "resource": "res",
        "attributes.host": "h3", "resource.shared": "r3", "penstock.severity_number": "k2",
        "plain": "p",
        "time_unix_nano": "t2", "kind": "k3", "level": "l2", "trace_id": "t3", "a.b": "ab1",
        "a_b": "ab2", "service_name": "s2", "penstock_id": "p2", "user.id": "u2",
    },
}  # fmt: skip
RECORD = {**HEAD, "body": "hi", "trace_id": "0af7", **GROUPS}
VALUES = [value for members in GROUPS.values() for value in members.values()]


def orders() -> list[dict[str, Any]]:
    """The record with its parts, and their members, in every other order."""
    turned = {group: dict(reversed(members.items())) for group, members in GROUPS.items()}
    named = (HEAD | {"body": "hi", "trace_id": "0af7"}).items()
    return [
        dict([*parts, *named]) if behind else dict([*named, *parts])
        for groups in (GROUPS, turned)
        for parts in itertools.permutations(groups.items())
        for behind in (False, True)
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_each_value_is_there_whatever_its_name_and_its_place(name: str) -> None:
    assert len(set(VALUES)) == len(VALUES)
    for record in orders():
        text = orjson.dumps(PRESETS[name](record)).decode()
        assert [value for value in [*VALUES, "hi", "0af7"] if f'"{value}"' not in text] == []


def test_an_event_is_the_same_whatever_the_order_of_keys() -> None:
    first = to_cim(RECORD)
    assert all(to_cim(record) == first for record in orders())
    assert all(to_ecs(record) == to_ecs(RECORD) for record in orders())


def test_what_is_mapped_has_its_name_and_what_is_not_another() -> None:
    event = to_cim(RECORD)
    mapped = {"user_id": "u1", "message": "hi", "host": "web1", "app": "shop", "src": "c-src"}
    others = {
        "attributes.user_id": "other", "attributes.message": "m2", "attributes.host": "h2",
        "attributes.app": "a2", "attributes.client.address": "a-src", "attributes.severity": "mine",
        "attributes._time": "noon", "attributes.resource": "res", "resource.dest": "r",
        "shared": "c-shared", "resource.shared": "r-shared", "attributes.shared": "a-shared",
        "attributes.attributes.host": "h3", "attributes.resource.shared": "r3", "plain": "p",
        "attributes.penstock.severity_number": "k2", "vendor_kind": "log", "severity": "high",
        "attributes.time_unix_nano": "t2", "attributes.trace_id": "t3", "trace_id": "0af7",
    }  # fmt: skip
    assert {**event, **mapped, **others} == event


def test_a_name_of_the_model_is_not_taken_though_nothing_has_it() -> None:
    event = to_cim({**HEAD, "attributes": {"host": "h2", "app": "a2", "user_id": "u2"}})
    assert not {"host", "app", "user_id"} & event.keys()
    assert event["attributes.host"] == "h2"


@pytest.mark.parametrize("resource", [{"host.name": "web1", "service.name": "shop"}, {}])
def test_no_attribute_says_where_splunk_has_an_event_from(
    tmp_path: Path, resource: dict[str, str]
) -> None:
    evil = {"host": "h2", "app": "a2", "resource": {"host.name": "h3"}, "time_unix_nano": 1}
    groups = {"attributes": evil, "resource": resource}.items()
    for parts in (tuple(groups), tuple(reversed(groups))):
        said = json.loads(sent("splunk_hec", tmp_path, to_cim({**HEAD, **dict(parts)}), token="t"))
        assert said.get("host") == resource.get("host.name")
        assert said.get("source") == resource.get("service.name")
        assert said["time"] == NOW_NS / 10**9


def sent(name: str, directory: Path, value: dict[str, Any], **keys: Any) -> str:
    """What a sink would post of a row with this value."""
    settings = {"type": name, "url": "http://127.0.0.1:1", **keys}
    made = make_sink(sink_kind(name).config.model_validate(settings), context(directory))
    (shown,) = made.preview(batch([{"kind": "log"} | value]))
    return shown.body


def test_lokis_labels_and_ids_are_no_attributes() -> None:
    entry = to_loki(RECORD)
    said = entry["metadata"]
    assert entry["labels"] == {"service_name": "shop", "kind": "log"}
    wanted = {
        "trace_id": "0af7", "attributes_trace_id": "t3", "attributes_kind": "k3",
        "attributes_service_name": "s2", "attributes_penstock_id": "p2", "attributes_level": "l2",
        "user_id": "u1", "attributes_user_id": "other", "attributes_attributes_user_id": "u2",
        "host_name": "web1", "a_b": "ab1", "attributes_a_b": "ab2",
    }  # fmt: skip
    assert {**said, **wanted} == said


def test_the_loki_sink_has_each_value_too(tmp_path: Path) -> None:
    records = orders()
    assert len(records) > 1
    for record in records:
        said = json.loads(sent("loki", tmp_path, record))
        ((_, _, metadata),) = said["streams"][0]["values"]
        assert set(VALUES) <= set(metadata.values())
        assert metadata["trace_id"] == "0af7"
        assert metadata["penstock_id"] == "logs.5f2c19aa/0/0"
