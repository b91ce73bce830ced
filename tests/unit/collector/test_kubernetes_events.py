"""Events of Kubernetes, with a fake of its API server that is made from its documentation."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.decode.formats.kubernetes_events import event_line
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.sources.containers.kubernetes_api import ChangeReader, GoneError
from penstock.collector.sources.kubernetes_events import (
    KubernetesEventsSettings,
    KubernetesEventsSource,
)
from penstock.logd.storage import Checkpoint
from penstock.service import ConfigError
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.support.certificates import Authority
from tests.support.fake_kubernetes import FakeKubernetes, event
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

NOW = 1_700_000_000_000_000_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def server(authority: Authority) -> Iterator[FakeKubernetes]:
    with FakeKubernetes(authority.sign("server", "IP:127.0.0.1"), "secret") as fake:
        yield fake


def decoded(given: dict[str, Any]) -> tuple[dict[str, Any], Counter[str]]:
    notes: Counter[str] = Counter()
    line = event_line(given, {"service.name": "kubernetes"}, NOW, notes)
    assert isinstance(check_line(line), Accepted), (check_line(line), line)
    return json.loads(line), notes


def test_an_event_becomes_a_log_record() -> None:
    found, notes = decoded(event("e1", "Pulled image", type="Warning", action="Pull"))
    assert (found["body"], found["severity_number"], found["severity_text"]) == (
        "Pulled image", 13, "WARN",
    )  # fmt: skip
    assert found["time_unix_nano"] == 1_767_323_046_000_000_000
    assert found["resource"] == {
        "service.name": "kubernetes",
        "k8s.object.kind": "Pod", "k8s.object.name": "cart-7f9", "k8s.object.uid": "u1",
        "k8s.object.fieldpath": "spec.containers{app}", "k8s.object.api_version": "v1",
        "k8s.object.resource_version": "7", "k8s.namespace.name": "shop",
        "k8s.node.name": "node-1", "k8s.pod.name": "cart-7f9", "k8s.pod.uid": "u1",
    }  # fmt: skip
    assert found["attributes"] == {
        "k8s.event.reason": "Pulled", "k8s.event.action": "Pull", "k8s.event.count": 1,
        "k8s.event.start_time": "2026-01-02T03:04:05Z", "k8s.event.name": "e1",
        "k8s.event.uid": "uid-e1", "k8s.event.reporting_controller": "kubelet",
    }  # fmt: skip
    assert not notes


def test_an_event_of_another_form_is_a_record_and_what_is_not_understood_is_counted() -> None:
    series = {"count": 7, "lastObservedTime": "2026-01-02T03:04:07.5Z"}
    found, notes = decoded(event("e", "m", series=series, involvedObject={"kind": "Widget"}))
    assert found["attributes"]["k8s.event.count"] == 7
    assert found["time_unix_nano"] == 1_767_323_047_500_000_000
    assert "k8s.pod.name" not in found["resource"]
    assert not notes
    found, notes = decoded({"metadata": {"name": 5}, "message": ["x"], "type": "Odd"})
    assert (found["body"], found["time_unix_nano"]) == ("", NOW)
    assert notes == {"levels_unknown": 1, "timestamps_unreadable": 1}


def test_what_a_record_has_not_of_an_event_is_counted() -> None:
    given = event("e", "m", related={"kind": "Node", "name": "n"})
    given["metadata"] |= {"labels": {"a": "b"}, "annotations": {"c": "d"}, "managedFields": [{}]}
    _, notes = decoded(given)
    assert notes == {
        "event_labels_dropped": 1, "event_annotations_dropped": 1, "managed_fields_dropped": 1,
        "related_objects_dropped": 1,
    }  # fmt: skip


def test_a_watch_is_read_line_by_line_however_it_is_cut() -> None:
    lines = [
        {"type": "ADDED", "object": {"metadata": {"resourceVersion": "5"}}},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}},
    ]
    data = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
    reader = ChangeReader("1")
    found = [one for at in range(len(data)) for one in reader.feed(data[at : at + 1])]
    assert [one.kind for one in found] == ["ADDED"]
    assert reader.version == "9"
    with pytest.raises(GoneError):
        reader.feed(b'{"type":"ERROR","object":{"code":410}}\n')
    with pytest.raises(RemoteProtocolError, match="broken"):
        reader.feed(b'{"type":"ERROR","object":{"code":500,"message":"broken"}}\n')
    for wrong in (b"{}\n", b"[]\n", b"x\n", b'{"type":"ADDED","object":{}}\n'):
        with pytest.raises(RemoteProtocolError, match="no change"):
            reader.feed(wrong)


@asynccontextmanager
async def watching(
    directory: Path, server: FakeKubernetes, authority: Authority, **options: Any
) -> AsyncIterator[tuple[KubernetesEventsSource, SpoolingIntake]]:
    token = directory / "token"
    token.write_text("secret")
    section = KubernetesEventsSettings.model_validate(
        {"type": "kubernetes_events", "server": server.url, "token_file": token,
         "ca_file": authority.cert} | options
    )  # fmt: skip
    async with spooling(directory, "kubernetes_events", drop_newest=False) as spool_writer:
        source = KubernetesEventsSource(
            section, {"host.name": "own"}, Checkpoint(directory / "position"),
            spool_writer=spool_writer,
        )  # fmt: skip
        await source.start()
        running = asyncio.ensure_future(source.run())
        try:
            yield source, spool_writer
        finally:
            await source.stop()
            await running


def bodies(spool_writer: SpoolingIntake) -> list[str]:
    return [json.loads(line)["body"] for line in spool_writer.lines()]


async def saved(directory: Path, server: FakeKubernetes, namespace: str = "") -> None:
    """Wait until the position is the server's."""
    checkpoint = Checkpoint(directory / "position")
    await wait_until_async(
        lambda: (checkpoint.load() or {}).get("versions", {}).get(namespace) == str(server.version)
    )


async def test_each_event_and_each_change_is_a_record_once_across_restarts(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    for number in range(3):
        server.put("events", event(f"e{number}", f"m{number}"))
    server.page_items = 2
    async with watching(tmp_path, server, authority, cluster="blue") as (_, spool_writer):
        await wait_until_async(lambda: bodies(spool_writer) == ["m0", "m1", "m2"])
        server.put("events", event("e1", "m1 again", count=2))
        server.remove("events", event("e0", "m0"))
        await wait_until_async(lambda: bodies(spool_writer)[3:] == ["m1 again"])
        await saved(tmp_path, server)
        (resource,) = [
            json.loads(line)["resource"] for line in spool_writer.lines() if b"again" in line
        ]
        assert resource["k8s.cluster.name"] == "blue"
        assert "host.name" not in resource, "that is the collector's"
    server.put("events", event("e4", "m4"))
    async with watching(tmp_path, server, authority) as (_, spool_writer):
        await wait_until_async(lambda: "m4" in bodies(spool_writer))
        await saved(tmp_path, server)
        assert bodies(spool_writer) == ["m0", "m1", "m2", "m1 again", "m4"]


async def test_a_position_that_the_server_has_forgotten_repeats_nothing(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    server.put("events", event("e0", "m0"))
    async with watching(tmp_path, server, authority) as (_, spool_writer):
        await wait_until_async(lambda: bodies(spool_writer) == ["m0"])
        await saved(tmp_path, server)
        server.forget()
        server.put("events", event("e1", "m1"))
        await wait_until_async(lambda: bodies(spool_writer)[1:] == ["m1"])
        await saved(tmp_path, server)
    server.put("events", event("e2", "m2"))
    server.forget()
    async with watching(tmp_path, server, authority) as (_, spool_writer):
        await wait_until_async(lambda: "m2" in bodies(spool_writer))
        await saved(tmp_path, server)
        assert bodies(spool_writer) == ["m0", "m1", "m2"]
        assert spool_writer.account.notes["positions_forgotten"] == 1


async def test_a_server_that_was_restored_is_read_from_the_beginning(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    Checkpoint(tmp_path / "position").save({"versions": {"": "99999"}})
    server.put("events", event("e0", "m0"))
    async with watching(tmp_path, server, authority) as (_, spool_writer):
        await wait_until_async(lambda: bodies(spool_writer) == ["m0"])
        assert spool_writer.account.notes["positions_reset"] == 1


async def test_only_namespaces_and_types_that_are_wanted_are_asked_for(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    server.put("events", event("e0", "normal"))
    server.put("events", event("e1", "warning", type="Warning"))
    options = {"namespaces": ["shop", "other"], "types": ["Warning"], "start_at": "beginning"}
    async with watching(tmp_path, server, authority, **options) as (_, spool_writer):
        await wait_until_async(lambda: bodies(spool_writer) == ["warning"])
        await saved(tmp_path, server, "shop")
        await saved(tmp_path, server, "other")
    assert all("/namespaces/" in one and "type%3DWarning" in one for one in server.requests)


async def test_namespaces_save_their_positions_one_after_the_other(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    namespaces = [f"team-{number}" for number in range(24)]
    async with watching(tmp_path, server, authority, namespaces=namespaces):
        for namespace in namespaces:
            await saved(tmp_path, server, namespace)
    assert Checkpoint(tmp_path / "position").load() == {
        "versions": dict.fromkeys(namespaces, str(server.version))
    }


async def test_the_first_start_may_leave_out_what_is_there(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    server.put("events", event("e0", "before"))
    async with watching(tmp_path, server, authority, start_at="end") as (_, spool_writer):
        await saved(tmp_path, server)
        server.put("events", event("e1", "after"))
        await wait_until_async(lambda: bodies(spool_writer) == ["after"])


async def test_a_server_that_refuses_is_named_until_it_answers(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    server.allowed = False
    server.put("events", event("e0", "m0"))
    async with watching(tmp_path, server, authority) as (source, spool_writer):
        await wait_until_async(lambda: "list and watch events" in source.trouble)
        server.allowed = True
        await wait_until_async(lambda: bodies(spool_writer) == ["m0"])
        await wait_until_async(lambda: not source.trouble)
        assert spool_writer.account.notes["kubernetes_requests_failed"] >= 1


async def test_a_position_that_cannot_be_read_is_refused_at_the_start(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    (tmp_path / "position").write_text("no checkpoint")
    with pytest.raises(ConfigError, match="cannot be read"):
        async with watching(tmp_path, server, authority):
            pass
