"""What is asked of Kubernetes about pods, with a fake of its API server and of a kubelet."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.base.clock import SystemClock
from penstock.collector.sources.containers.file_facts import service_of
from penstock.collector.sources.containers.pod_facts import Chosen, facts_of
from penstock.collector.sources.containers.pods import PodCache, Pods
from penstock.collector.sources.containers.settings import KubernetesSection
from penstock.collector.sources.files.settings import FileSettings
from penstock.service import ConfigError
from tests.support.certificates import Authority
from tests.support.fake_kubernetes import FakeKubernetes, pod
from tests.support.waiting import wait_until_async

UID = "0f3b5e0c-62f7-4a4b-8b0e-2b0b5a1c9d11"
OTHER = "11111111-62f7-4a4b-8b0e-2b0b5a1c9d11"
PATH = f"/var/log/pods/shop_cart-7f9_{UID}/app/2.log"
LINK = f"/var/log/containers/cart-7f9_shop_app-{'a' * 64}.log"
NAMED = {
    "k8s.namespace.name": "shop",
    "k8s.pod.name": "cart-7f9",
    "k8s.container.name": "app",
}
OF_PATH = {**NAMED, "k8s.pod.uid": UID, "k8s.container.restart_count": 2}
LABELS = {"app.kubernetes.io/name": "cart", "tier": "web"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def server(authority: Authority) -> Iterator[FakeKubernetes]:
    with FakeKubernetes(authority.sign("server", "IP:127.0.0.1"), "secret") as fake:
        yield fake


class Asked:
    """Pods that are asked for as a source does, and what that notes."""

    def __init__(self, directory: Path, server: FakeKubernetes, ca: Path, **keys: Any) -> None:
        token = directory / "token"
        token.write_text("secret\n")
        section = KubernetesSection.model_validate(
            {"server": server.url, "token_file": token, "ca_file": ca, "wait_s": 300} | keys
        )
        self.notes: Counter[str] = Counter()
        self.pods = Pods(
            section, "node-1", source="file", note=lambda what: self.notes.update([what]),
            clock=SystemClock(),
        )  # fmt: skip

    async def facts(self, path: str, *, is_whole: bool = True) -> Any:
        await wait_until_async(lambda: self.pods.facts(path) is not None)
        found = self.pods.facts(path)
        assert found is not None
        assert found.is_whole is is_whole
        return found.attributes

    async def until_whole(self, path: str) -> None:
        def is_whole() -> bool:
            found = self.pods.facts(path)
            return found is not None and found.is_whole

        await wait_until_async(is_whole)


@asynccontextmanager
async def asking(
    directory: Path, server: FakeKubernetes, authority: Authority, **keys: Any
) -> AsyncIterator[Asked]:
    asked = Asked(directory, server, authority.cert, **keys)
    running = asyncio.create_task(asked.pods.run())
    try:
        yield asked
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("ask", ["api", "kubelet"])
async def test_a_files_pod_gives_node_image_and_labels(
    tmp_path: Path, server: FakeKubernetes, authority: Authority, ask: str
) -> None:
    server.pods = [pod("cart-7f9", UID, labels=LABELS)]
    of_pod = {
        "k8s.node.name": "node-1",
        "k8s.pod.uid": UID,
        "k8s.pod.label.app.kubernetes.io/name": "cart",
        "k8s.pod.label.tier": "web",
        "container.image.name": "shop/app",
        "container.image.tags": ["1"],
    }
    async with asking(tmp_path, server, authority, ask=ask) as asked:
        assert asked.pods.facts(PATH) is None, "it waits for the first answer"
        assert await asked.facts(PATH) == {**OF_PATH, **of_pod}
        assert await asked.facts(LINK) == {**NAMED, "container.id": "a" * 64, **of_pod}
        assert await asked.facts("/var/log/other.log") == {}
        assert service_of(await asked.facts(PATH), PATH) == "app"
        assert service_of({}, "/var/log/other.log") == "other"
        server.pods = []
        assert (await asked.facts(PATH))["k8s.node.name"] == "node-1", "also when it is gone"
    path = "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1&"
    wanted = "/pods" if ask == "kubelet" else path
    assert all(one.startswith(wanted) for one in server.requests)


@pytest.mark.parametrize("ask", ["api", "kubelet"])
async def test_a_pod_that_is_met_later_is_known_at_once(
    tmp_path: Path, server: FakeKubernetes, authority: Authority, ask: str
) -> None:
    async with asking(tmp_path, server, authority, refresh_s=3600, ask=ask) as asked:
        await wait_until_async(lambda: bool(server.requests))
        server.pods = [pod("cart-7f9", UID, labels=LABELS)]
        assert (await asked.facts(PATH))["k8s.pod.label.tier"] == "web"


async def test_a_watch_follows_changes_and_goes_on_when_its_position_is_forgotten(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    def tier(asked: Asked) -> Any:
        found = asked.pods.facts(PATH)
        return None if found is None else found.attributes.get("k8s.pod.label.tier")

    server.pods = [pod("cart-7f9", UID, labels=LABELS)]
    async with asking(tmp_path, server, authority) as asked:
        await wait_until_async(lambda: tier(asked) == "web")
        server.put("pods", pod("cart-7f9", UID, labels={"tier": "canary"}))
        await wait_until_async(lambda: tier(asked) == "canary")
        server.forget()
        server.put("pods", pod("cart-7f9", UID, labels={"tier": "late"}))
        await wait_until_async(lambda: tier(asked) == "late")
    assert sum("watch=" not in one for one in server.requests) == 2, "one list, and one after 410"
    assert not asked.notes


async def test_a_pod_of_the_same_name_and_another_uid_is_another(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    server.pods = [pod("cart-7f9", OTHER, labels=LABELS)]
    with structlog.testing.capture_logs() as logs:
        async with asking(tmp_path, server, authority, wait_s=0.2) as asked:
            assert await asked.facts(PATH, is_whole=False) == OF_PATH
            assert asked.notes["kubernetes_files_not_enriched"] == 1
            static = pod("cart-7f9", OTHER, annotations={"kubernetes.io/config.hash": UID})
            server.pods = [static]
            await asked.until_whole(PATH)
    assert [one["pod"] for one in logs if one["event"] == "pod_unknown"] == ["cart-7f9"]


@pytest.mark.parametrize(
    ("owner", "labels", "wanted"),
    [
        (
            {"kind": "ReplicaSet", "name": "cart-7f9"},
            {"pod-template-hash": "7f9"},
            {"k8s.replicaset.name": "cart-7f9", "k8s.deployment.name": "cart"},
        ),
        ({"kind": "ReplicaSet", "name": "cart-7f9"}, {}, {"k8s.replicaset.name": "cart-7f9"}),
        ({"kind": "StatefulSet", "name": "db"}, {}, {"k8s.statefulset.name": "db"}),
        ({"kind": "DaemonSet", "name": "agent"}, {}, {"k8s.daemonset.name": "agent"}),
        (
            {"kind": "Job", "name": "report-29456120"},
            {},
            {"k8s.job.name": "report-29456120", "k8s.cronjob.name": "report"},
        ),
        ({"kind": "Job", "name": "load-20260101"}, {}, {"k8s.job.name": "load-20260101"}),
        ({"kind": "Rollout", "name": "cart"}, {}, {}),
    ],
)
def test_the_owner_of_a_pod_is_named(
    owner: dict[str, str], labels: dict[str, str], wanted: dict[str, str]
) -> None:
    references = [{"kind": "Other", "name": "x"}, {**owner, "uid": "o", "controller": True}]
    made = pod(
        "p", UID, labels=labels, ownerReferences=references,
        creationTimestamp="2026-01-02T07:20:00Z",
    )  # fmt: skip
    found = facts_of(made, Chosen([], [])).attributes
    named = {key: value for key, value in found.items() if key.endswith(".name")}
    assert named == {"k8s.node.name": "node-1", **wanted}
    kind = f"k8s.{owner['kind'].lower()}.uid"
    assert found.get(kind) == ("o" if wanted else None)


def test_annotations_are_chosen_and_an_id_is_of_the_run_that_wrote_the_file() -> None:
    made = pod("p", UID, annotations={"team/a": "x", "team/b": "y", "secret": "z"})
    made["status"]["containerStatuses"] = [
        {"name": "app", "restartCount": 2, "containerID": "containerd://abc"}
    ]
    facts = facts_of(made, Chosen(["*"], ["team/*"]))
    found = facts.of_container(OF_PATH)
    assert found["container.id"] == "abc"
    assert "container.id" not in facts.of_container({**OF_PATH, "k8s.container.restart_count": 1})
    names = {name for name in found if name.startswith("k8s.pod.annotation.")}
    assert names == {"k8s.pod.annotation.team/a", "k8s.pod.annotation.team/b"}


def test_the_cache_of_pods_is_bounded_and_those_that_ended_make_room() -> None:
    notes: Counter[str] = Counter()
    cache = PodCache(Chosen([], []), lambda what: notes.update([what]), max_pods=3)
    for number in range(3):
        cache.put(pod(f"p{number}", f"u{number}"))
    cache.end("u1")
    cache.put(pod("p3", "u3"))
    assert cache.find(("shop", "p1"), None) is None
    assert [cache.find(("shop", f"p{n}"), f"u{n}") is not None for n in (0, 2, 3)] == [True] * 3
    assert not notes
    cache.put(pod("p4", "u4"))
    assert len(cache) == 3
    assert cache.find(("shop", "p0"), None) is None, "the one that is known longest"
    assert notes == {"kubernetes_pods_left_out": 1}


@pytest.mark.parametrize(
    ("allowed", "token", "told"),
    [(False, "secret", "HTTP 403: the service account may not ask for this; let its role list and"),
     (True, "wrong", "HTTP 401")],
)  # fmt: skip
async def test_where_the_service_account_may_not_ask_the_path_says_what_is_known(
    tmp_path: Path, server: FakeKubernetes, authority: Authority,
    allowed: bool, token: str, told: str,
) -> None:  # fmt: skip
    server.pods, server.allowed = [pod("cart-7f9", UID)], allowed
    with structlog.testing.capture_logs() as logs:
        async with asking(tmp_path, server, authority, wait_s=0.2, node="node-1") as asked:
            (tmp_path / "token").write_text(token)
            found = await asked.facts(PATH, is_whole=False)
            assert found == {**OF_PATH, "k8s.node.name": "node-1"}
            await wait_until_async(lambda: asked.notes["kubernetes_requests_failed"] >= 1)
    (entry,) = [one for one in logs if one["event"] == "kubernetes_pods_unavailable"]
    assert told in entry["error"]


def test_a_certificate_of_its_authority_must_be_there(
    tmp_path: Path, server: FakeKubernetes
) -> None:
    with pytest.raises(ConfigError, match=r"kubernetes\.ca_file"):
        Asked(tmp_path, server, tmp_path / "nowhere.crt")


def test_a_service_of_its_container_needs_the_section() -> None:
    keys = {"type": "file", "include": ["/a"], "service": "from_container"}
    with pytest.raises(ValueError, match="needs the section `kubernetes`"):
        FileSettings.model_validate(keys)
    assert FileSettings.model_validate({**keys, "kubernetes": {}}).kubernetes is not None
