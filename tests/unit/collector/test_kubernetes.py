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
from penstock.collector.sources.files.kubernetes import Pods, service_of
from penstock.collector.sources.files.settings import FileSettings, KubernetesSection
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

    async def facts(self, path: str) -> Any:
        await wait_until_async(lambda: self.pods.facts(path) is not None)
        return self.pods.facts(path)


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
async def test_a_files_pod_gives_node_and_labels(
    tmp_path: Path, server: FakeKubernetes, authority: Authority, ask: str
) -> None:
    server.pods = [pod("cart-7f9", UID, labels=LABELS)]
    of_pod = {
        "k8s.node.name": "node-1",
        "k8s.pod.label.app.kubernetes.io/name": "cart",
        "k8s.pod.label.tier": "web",
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
    wanted = "/pods" if ask == "kubelet" else "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1"
    assert set(server.requests) == {wanted}


async def test_a_pod_that_is_met_later_is_asked_for_at_once(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    async with asking(tmp_path, server, authority, refresh_s=3600) as asked:
        await wait_until_async(lambda: bool(server.requests))
        server.pods = [pod("cart-7f9", UID, labels=LABELS)]
        assert (await asked.facts(PATH))["k8s.pod.label.tier"] == "web"


async def test_a_pod_of_the_same_name_and_another_uid_is_another(
    tmp_path: Path, server: FakeKubernetes, authority: Authority
) -> None:
    server.pods = [pod("cart-7f9", OTHER, labels=LABELS)]
    async with asking(tmp_path, server, authority) as asked:
        assert await asked.facts(PATH) == OF_PATH
        static = pod("cart-7f9", OTHER, annotations={"kubernetes.io/config.hash": UID})
        server.pods = [static]
    async with asking(tmp_path, server, authority, labels=["none"]) as asked:
        assert await asked.facts(PATH) == {**OF_PATH, "k8s.node.name": "node-1"}


@pytest.mark.parametrize(
    ("allowed", "token", "told"),
    [(False, "secret", "HTTP 403: the service account may not list them; let its role get"),
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
            assert await asked.facts(PATH) == {**OF_PATH, "k8s.node.name": "node-1"}
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
