"""Pods whose containers write files: their node, owner, labels, annotations and images.

A file's path names pod, namespace and container. The rest comes of a watch of this node's pods
(`GET /api/v1/pods?fieldSelector=spec.nodeName=…`), or of the node's kubelet, which has no watches:
its list (`GET /pods`) is fetched every `refresh_s`, and as soon as a file of a pod is met that is
not in it. See the reference of the Kubernetes API, "Pod v1 core", and "Kubelet
authentication/authorization".

A file waits `wait_s` for its pod at most: it is its own spool. After that its records have what the
path says. A pod that ended is known until its place is needed, for its file is read to the end.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from typing_extensions import override

from penstock.base.clock import Clock
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import PODS_MAX
from penstock.collector.sources.containers.file_facts import (
    FILES_KNOWN_MAX,
    ContainerFacts,
    FileFacts,
)
from penstock.collector.sources.containers.kubernetes_api import (
    Changes,
    GoneError,
    KubernetesApi,
    Listed,
    Resource,
    follow,
    items_of,
)
from penstock.collector.sources.containers.pod_facts import Chosen, PodFacts, facts_of
from penstock.collector.sources.containers.settings import KubernetesSection
from penstock.collector.transforms.enrich import container_facts

_AGAIN_S: Final = 1.0
"""Between two requests, however many files wait."""
_SAY_AGAIN_NS: Final = 60 * 10**9


class PodCache:
    """The facts of pods, those that ended among them, up to a bound.

    Args:
        chosen: Labels and annotations that are wanted.
        note: Counts something of the source.
        max_pods: Bound; the one that ended first makes room, and without one that ended the oldest.
    """

    def __init__(
        self, chosen: Chosen, note: Callable[[str], None], max_pods: int = PODS_MAX
    ) -> None:
        self._chosen = chosen
        self._note = note
        self._max_pods = max_pods
        self._pods: OrderedDict[str, PodFacts] = OrderedDict()
        self._by_name: dict[tuple[str, str], list[str]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pods)

    def find(self, key: tuple[str, str], uid: str | None) -> PodFacts | None:
        """Return the pod of a namespace and name, and of that UID where there is one."""
        for known in reversed(self._by_name.get(key, ())):
            pod = self._pods[known]
            if uid is None or uid in pod.uids:
                return pod
        return None

    def put(self, pod: Mapping[str, Any]) -> None:
        """Take a pod as it is now."""
        facts = facts_of(pod, self._chosen)
        if facts.left_out:
            self._note("kubernetes_labels_left_out")
        uid = str(pod["metadata"].get("uid"))
        if uid not in self._pods:
            self._by_name.setdefault(facts.key, []).append(uid)
        self._pods[uid] = facts
        self._ended.pop(uid, None)
        while len(self._pods) > self._max_pods:
            self._drop()

    def end(self, uid: str) -> None:
        """Take note that a pod ended."""
        if uid in self._pods:
            self._ended[uid] = None

    def keep_only(self, uids: set[str]) -> None:
        """Take note that every other pod ended."""
        for uid in [one for one in self._pods if one not in uids and one not in self._ended]:
            self.end(uid)

    def _drop(self) -> None:
        if self._ended:
            uid, _ = self._ended.popitem(last=False)
            facts = self._pods.pop(uid)
        else:
            self._note("kubernetes_pods_left_out")
            uid, facts = self._pods.popitem(last=False)
        of_name = self._by_name[facts.key]
        of_name.remove(uid)
        if not of_name:
            del self._by_name[facts.key]


class Pods(ContainerFacts):
    """The pods of one node.

    Args:
        section: Address and credentials of the API.
        node: Node whose pods are read; the configuration may name another.
        source: The source's name, for messages.
        note: Counts something of the source.
        clock: Clock of waits.

    Raises:
        ConfigError: A file of the configuration cannot be used.
    """

    def __init__(
        self,
        section: KubernetesSection,
        node: str,
        *,
        source: str,
        note: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._section = section
        self._node = section.node or node
        self._note = note
        self._clock = clock
        self._api = KubernetesApi(section, f"source {source}: kubernetes")
        self._pods = PodCache(Chosen(section.labels, section.annotations), note)
        self._known: OrderedDict[str, tuple[PodFacts, FileFacts]] = OrderedDict()
        self._given_up: OrderedDict[str, FileFacts] = OrderedDict()
        self._asked_ns: OrderedDict[str, int] = OrderedDict()
        self._listed_ns = -1
        self._wanted = asyncio.Event()
        self._silent_until_ns = 0
        self._log = structlog.get_logger().bind(source=source)

    @override
    def facts(self, path: str) -> FileFacts | None:
        own: dict[str, Any] = {}
        known = self._known.get(path)
        if known is None:
            own, _ = container_facts(path, None)
            if "k8s.pod.name" not in own:
                return FileFacts(own)
            if self._section.node is not None:
                own["k8s.node.name"] = self._section.node
            pod = self._find(own)
            return self._unknown(path, own) if pod is None else self._remember(path, own, pod)
        self._known.move_to_end(path)
        pod, found = known
        now = self._find(found.attributes)
        if now is None or now is pod:
            return found
        own, _ = container_facts(path, None)
        return self._remember(path, own, now)

    @override
    async def run(self) -> None:
        if self._section.ask == "kubelet":
            await self._poll()
            return
        query = {"fieldSelector": f"spec.nodeName={self._node}"}
        pods = Resource("/api/v1/pods", "list and watch pods", query)
        await follow(self._api, pods, version="", take=self._take, failed=self._failed)

    async def _poll(self) -> None:
        """Fetch the kubelet's list again and again."""
        while True:
            self._wanted.clear()
            began_ns = self._clock.monotonic_ns()
            try:
                document = await self._api.get(Resource("/pods", "get nodes/proxy"))
                await self._take(Listed(items_of(document), ""))
                self._listed_ns = began_ns
            except (OSError, GoneError, RemoteProtocolError, ValueError) as error:
                self._failed(str(error) or type(error).__name__)
            await asyncio.sleep(min(_AGAIN_S, self._section.refresh_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._section.refresh_s):
                    await self._wanted.wait()

    async def _take(self, found: Listed | Changes) -> None:
        if isinstance(found, Listed):
            for item in found.items:
                self._pods.put(item)
            self._pods.keep_only({str(item["metadata"].get("uid")) for item in found.items})
            return
        for change in found.items:
            if change.kind == "DELETED":
                self._pods.end(str(change.item["metadata"].get("uid")))
            else:
                self._pods.put(change.item)

    def _find(self, own: Mapping[str, Any]) -> PodFacts | None:
        key = own["k8s.namespace.name"], own["k8s.pod.name"]
        return self._pods.find(key, own.get("k8s.pod.uid"))

    def _remember(self, path: str, own: dict[str, Any], pod: PodFacts) -> FileFacts:
        self._asked_ns.pop(path, None)
        self._given_up.pop(path, None)
        found = FileFacts(pod.of_container(own))
        self._known[path] = pod, found
        if len(self._known) > FILES_KNOWN_MAX:
            self._known.popitem(last=False)
        return found

    def _unknown(self, path: str, own: dict[str, Any]) -> FileFacts | None:
        if (given_up := self._given_up.get(path)) is not None:
            return given_up
        now_ns = self._clock.monotonic_ns()
        asked_ns = self._asked_ns.setdefault(path, now_ns)
        if len(self._asked_ns) > FILES_KNOWN_MAX:
            self._asked_ns.popitem(last=False)
        is_listed = self._listed_ns > asked_ns
        if not is_listed and now_ns - asked_ns < self._section.wait_s * 1e9:
            self._wanted.set()
            return None
        self._asked_ns.pop(path, None)
        self._given_up[path] = found = FileFacts(own, is_whole=False)
        if len(self._given_up) > FILES_KNOWN_MAX:
            self._given_up.popitem(last=False)
        self._note("kubernetes_files_not_enriched")
        self._log.warning(
            "pod_unknown",
            path=path,
            namespace=own["k8s.namespace.name"],
            pod=own["k8s.pod.name"],
            reason="no such pod is on the node" if is_listed else "it was not known in time",
        )
        return found

    def _failed(self, why: str) -> None:
        self._note("kubernetes_requests_failed")
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._silent_until_ns:
            self._silent_until_ns = now_ns + _SAY_AGAIN_NS
            self._log.warning(
                "kubernetes_pods_unavailable",
                server=self._section.server,
                error=why,
                reason="records of new pods have only what their file's path says",
            )
