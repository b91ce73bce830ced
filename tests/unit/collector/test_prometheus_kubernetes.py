"""Targets that Kubernetes and SRV records name, with fakes made from their documentation."""

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.collector.errors import RemoteProtocolError
from penstock.collector.sources.prometheus.discovery import DiscoveryError, DnsSection, resolve
from penstock.collector.sources.prometheus.kubernetes import (
    KubernetesDiscovery,
    KubernetesTargets,
)
from penstock.collector.sources.prometheus.srv_records import (
    SrvRecord,
    decode_answer,
    encode_question,
)
from tests.support.certificates import Authority
from tests.support.fake_kubernetes import FakeKubernetes, pod
from tests.support.waiting import wait_until_async

META = "__meta_kubernetes_"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def server(authority: Authority) -> Iterator[FakeKubernetes]:
    with FakeKubernetes(authority.sign("server", "IP:127.0.0.1"), "secret") as fake:
        yield fake


@asynccontextmanager
async def discovering(
    directory: Path, server: FakeKubernetes, authority: Authority, **keys: Any
) -> AsyncIterator[tuple[Callable[[], list[dict[str, str]]], Counter[str]]]:
    (directory / "token").write_text("secret")
    section = KubernetesTargets.model_validate(
        {"server": server.url, "token_file": directory / "token", "ca_file": authority.cert} | keys
    )
    notes: Counter[str] = Counter()
    found = KubernetesDiscovery(
        section, "node-1", where="source prometheus: kubernetes.0", changed=lambda: None,
        note=lambda what: notes.update([what]), failed=lambda why: notes.update([why]),
    )  # fmt: skip
    running = asyncio.create_task(found.run())
    try:
        yield found.targets, notes
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def serving_pod(name: str, address: str, **keys: Any) -> dict[str, Any]:
    made = pod(name, f"uid-{name}", labels={"app.io/name": name}, **keys)
    made["status"] |= {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
    made["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 9100}]
    return made


def addresses(targets: list[dict[str, str]]) -> list[str]:
    return sorted(one["__address__"] for one in targets)


async def test_ports_of_pods_are_targets_and_follow_what_changes(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    bare = serving_pod("bare", "10.0.0.3")
    del bare["spec"]["containers"][0]["ports"]
    server.pods = [
        serving_pod("a", "10.0.0.1"), bare, serving_pod("six", "fd00::1"),
        serving_pod("elsewhere", "10.0.0.9", node="node-2"), pod("waits", "uid-waits"),
    ]  # fmt: skip
    async with discovering(tmp_path, server, authority, role="pod", own_node=True) as (targets, _):
        await wait_until_async(
            lambda: addresses(targets()) == ["10.0.0.1:9100", "10.0.0.3", "[fd00::1]:9100"]
        )
        (found,) = [one for one in targets() if one["__address__"] == "10.0.0.1:9100"]
        expected = {
            f"{META}namespace": "shop", f"{META}pod_name": "a", f"{META}pod_ready": "true",
            f"{META}pod_label_app_io_name": "a", f"{META}pod_labelpresent_app_io_name": "true",
            f"{META}pod_container_name": "app", f"{META}pod_container_port_name": "metrics",
            f"{META}pod_container_port_number": "9100", f"{META}pod_node_name": "node-1",
        }  # fmt: skip
        assert expected.items() <= found.items()
        server.remove("pods", server.pods[0])
        await wait_until_async(lambda: addresses(targets()) == ["10.0.0.3", "[fd00::1]:9100"])


async def test_addresses_behind_a_service_have_its_labels_and_the_pods(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    meta = {"name": "web", "namespace": "shop", "uid": "s1", "labels": {"team": "x"}}
    ports = [{"name": "http", "port": 80}]
    server.put("services", {"metadata": meta, "spec": {"type": "ClusterIP", "ports": ports}})
    server.pods = [serving_pod("a", "10.0.0.1")]
    server.put("endpointslices", {
        "metadata": {"name": "web-1", "namespace": "shop", "uid": "e1",
                     "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True},
                       "targetRef": {"kind": "Pod", "name": "a"}}],
    })  # fmt: skip
    wanted = {
        "__address__": "10.0.0.1:8080", f"{META}service_name": "web",
        f"{META}service_label_team": "x", f"{META}pod_name": "a",
        f"{META}endpointslice_endpoint_conditions_ready": "true",
        f"{META}endpointslice_port": "8080",
    }  # fmt: skip
    keys = {"role": "endpointslice", "namespaces": ["shop"]}
    async with discovering(tmp_path, server, authority, **keys) as (targets, _):
        await wait_until_async(
            lambda: len(targets()) == 1 and wanted.items() <= targets()[0].items()
        )
    async with discovering(tmp_path, server, authority, role="service") as (targets, _):
        await wait_until_async(lambda: addresses(targets()) == ["web.shop.svc:80"])


async def test_nodes_are_targets_and_what_is_malformed_or_too_much_is_counted(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    for number in range(3):
        server.put("nodes", {
            "metadata": {"name": f"n{number}", "uid": f"n{number}"},
            "status": {
                "addresses": [{"type": "InternalIP", "address": f"10.1.0.{number}"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            },
        })  # fmt: skip
    server.put("nodes", {"metadata": {"name": "n0", "uid": "n0"}, "status": {"addresses": [5]}})
    keys = {"role": "node", "max_objects": 2}
    async with discovering(tmp_path, server, authority, **keys) as (targets, notes):
        await wait_until_async(lambda: addresses(targets()) == ["10.1.0.1:10250", "10.1.0.2:10250"])
        assert notes == {"kubernetes_objects_malformed": 1}
        assert {one["instance"] for one in targets()} == {"n1", "n2"}
        server.put("nodes", {"metadata": {"name": "n9", "uid": "n9"}})
        await wait_until_async(lambda: notes["kubernetes_objects_left_out"] == 1)


def srv_answer(question: bytes, *records: tuple[str, int], flags: int = 0x8180) -> bytes:
    """An answer of a name server; names of the records are pointers to the question's."""
    (number,) = struct.unpack_from(">H", question)
    body = b""
    for target, port in records:
        name = b"".join(bytes([len(x)]) + x.encode() for x in target.split(".") if x) + b"\0"
        data = struct.pack(">3H", 0, 0, port) + name
        body += b"\xc0\x0c" + struct.pack(">2HIH", 33, 1, 60, len(data)) + data
    return struct.pack(">6H", number, flags, 1, len(records), 0, 0) + question[12:] + body


class NameServer(asyncio.DatagramProtocol):
    """Answers every question over UDP as a function says."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    @override
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    @override
    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._transport.sendto(self._answer(data), addr)


@asynccontextmanager
async def name_server(answer: Callable[[bytes], bytes]) -> AsyncIterator[DnsSection]:
    """A section whose names are asked of a name server that cuts short answers by UDP."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        question = await reader.readexactly(length)
        found = srv_answer(question, ("by.tcp", 1))
        writer.write(struct.pack(">H", len(found)) + found)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: NameServer(answer), local_addr=("127.0.0.1", port)
        )
        try:
            yield DnsSection(names=["x"], type="SRV", server=f"127.0.0.1:{port}")
        finally:
            transport.close()


async def test_srv_records_are_targets() -> None:
    async with name_server(lambda q: srv_answer(q, ("b.test", 2), ("a.test", 1))) as section:
        found = await resolve(section, "_metrics._tcp.test")
    assert found == [
        {"__address__": f"{name}:{port}", "__meta_dns_name": "_metrics._tcp.test",
         "__meta_dns_srv_record_target": f"{name}.", "__meta_dns_srv_record_port": str(port)}
        for name, port in (("a.test", 1), ("b.test", 2))
    ]  # fmt: skip


async def test_an_answer_that_is_cut_short_is_asked_for_over_tcp() -> None:
    async with name_server(lambda q: srv_answer(q, flags=0x8380)) as section:
        (found,) = await resolve(section, "_metrics._tcp.test")
    assert found["__address__"] == "by.tcp:1"


async def test_a_name_server_that_knows_no_such_name_is_a_failure() -> None:
    async with name_server(lambda q: srv_answer(q, flags=0x8183)) as section:
        with pytest.raises(DiscoveryError, match="NXDOMAIN"):
            await resolve(section, "_metrics._tcp.test")
        with pytest.raises(DiscoveryError, match="no name of DNS"):
            await resolve(section, "a..b")


def test_answers_that_are_none_are_refused() -> None:
    question = encode_question("a.test", 7)
    whole = srv_answer(question, ("b.test", 2))
    assert decode_answer(whole, "a.test", 7) == [SrvRecord("b.test", 2)]
    circle = srv_answer(question)[:6] + struct.pack(">3H", 1, 0, 0) + question[12:]
    circle += struct.pack(">H", 0xC000 | len(circle))
    for wrong in (whole[:-3], whole[:20], b"", circle, srv_answer(encode_question("a.test", 8))):
        with pytest.raises(RemoteProtocolError):
            decode_answer(wrong, "a.test", 7)
    with pytest.raises(RemoteProtocolError, match="another question"):
        decode_answer(whole, "c.test", 7)


@pytest.mark.parametrize("keys", [{"type": "A"}, {"type": "SRV", "port": 1}])
def test_a_port_is_of_addresses_alone(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="`port`"):
        DnsSection.model_validate({"names": ["a"], **keys})
