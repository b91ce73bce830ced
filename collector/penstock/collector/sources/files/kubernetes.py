"""The Kubernetes API: labels and node of the pods whose containers write files.

A file's path names pod, namespace and container. The rest is asked of the API server, which lists
the pods of this node (`GET /api/v1/pods?fieldSelector=spec.nodeName=…`), or of the node's kubelet
(`GET /pods`), with the service account's token: see the reference of the Kubernetes API, "Pod v1
core", and "Kubelet authentication/authorization". The list is fetched again every `refresh_s`, and
as soon as a file of a pod is met that is not in it. A file waits `wait_s` for that at most: it is
its own spool. Without an answer its records have what the path says.
"""

import asyncio
import contextlib
import ssl
from collections import OrderedDict
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson
import structlog

from penstock.base.clock import Clock
from penstock.base.http.client import client_tls
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import POD_LABELS_MAX, POD_LIST_BYTES_MAX
from penstock.collector.sources.files.settings import KubernetesSection
from penstock.collector.sources.network.http import get
from penstock.collector.transforms.enrich import container_facts
from penstock.service import ConfigError

_REMEMBERED_MAX: Final = 4096
"""Files whose facts are known; the one that was not asked for longest is forgotten."""
_AGAIN_S: Final = 1.0
"""Between two requests, however many files wait."""
_SAY_AGAIN_NS: Final = 60 * 10**9
_REFUSED: Final = (401, 403)
_HASH: Final = "kubernetes.io/config.hash"
"""The annotation that has the UID by which a static pod's directory is named."""

Facts = Mapping[str, Any]


class Pods:
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
        self._source = source
        self._note = note
        self._clock = clock
        self._context = _context(section, source)
        self._pods: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._known: OrderedDict[str, Facts] = OrderedDict()
        self._asked_ns: dict[str, int] = {}
        self._listed_ns = -1
        self._wanted = asyncio.Event()
        self._silent_until_ns = 0
        self._log = structlog.get_logger().bind(source=source)

    def facts(self, path: str) -> Facts | None:
        """Resource attributes of a file; None while its pod is being asked for."""
        if (known := self._known.get(path)) is not None:
            self._known.move_to_end(path)
            return known
        own, _ = container_facts(path, None)
        if "k8s.pod.name" not in own:
            return own
        if self._section.node is not None:
            own["k8s.node.name"] = self._section.node
        pod = self._find(own)
        if pod is not None:
            self._asked_ns.pop(path, None)
            self._known[path] = found = {**own, **self._facts_of(pod)}
            if len(self._known) > _REMEMBERED_MAX:
                self._known.popitem(last=False)
            return found
        now_ns = self._clock.monotonic_ns()
        asked_ns = self._asked_ns.setdefault(path, now_ns)
        if len(self._asked_ns) > _REMEMBERED_MAX:
            del self._asked_ns[next(iter(self._asked_ns))]
        if self._listed_ns > asked_ns or now_ns - asked_ns >= self._section.wait_s * 1e9:
            return own
        self._wanted.set()
        return None

    async def run(self) -> None:
        """Fetch the list again and again, until cancelled."""
        while True:
            self._wanted.clear()
            await self._fetch()
            await asyncio.sleep(min(_AGAIN_S, self._section.refresh_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._section.refresh_s):
                    await self._wanted.wait()

    def _find(self, own: Facts) -> dict[str, Any] | None:
        """The pod of that name, and of that UID where the path has one: names come again."""
        uid = own.get("k8s.pod.uid")
        for pod in self._pods.get((own["k8s.namespace.name"], own["k8s.pod.name"]), ()):
            meta = pod["metadata"]
            if uid in (None, meta.get("uid"), (meta.get("annotations") or {}).get(_HASH)):
                return pod
        return None

    def _facts_of(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if node := (pod.get("spec") or {}).get("nodeName"):
            found["k8s.node.name"] = node
        labels = pod["metadata"].get("labels") or {}
        wanted = [
            name
            for name in sorted(labels)
            if any(fnmatchcase(name, pattern) for pattern in self._section.labels)
        ]
        if len(wanted) > POD_LABELS_MAX:
            self._note("kubernetes_labels_left_out")
        for name in wanted[:POD_LABELS_MAX]:
            found[f"k8s.pod.label.{name}"] = labels[name]
        return found

    async def _fetch(self) -> None:
        began_ns = self._clock.monotonic_ns()
        try:
            pods = await self._list()
        except (OSError, RemoteProtocolError, ValueError) as error:
            self._failed(str(error) or type(error).__name__)
            return
        self._pods = pods
        self._listed_ns = began_ns

    async def _list(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        section = self._section
        path = "/pods"
        if section.ask == "api":
            path = f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={self._node}', safe='')}"
        token = (await asyncio.to_thread(section.token_file.read_text)).strip()
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        url = section.server.rstrip("/") + path
        reply = await get(
            url,
            headers,
            timeout_s=section.timeout_s,
            body_bytes_max=POD_LIST_BYTES_MAX,
            context=self._context,
        )
        if reply.status in _REFUSED:
            who = "nodes/proxy" if section.ask == "kubelet" else "pods"
            raise RemoteProtocolError(
                f"HTTP {reply.status}: the service account may not list them; let its role get and"
                f" list {who}"
            )
        if reply.status != 200:
            raise RemoteProtocolError(f"HTTP {reply.status}")
        return _by_name(orjson.loads(reply.body))

    def _failed(self, why: str) -> None:
        self._note("kubernetes_requests_failed")
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._silent_until_ns:
            self._silent_until_ns = now_ns + _SAY_AGAIN_NS
            self._log.warning(
                "kubernetes_pods_unavailable",
                server=self._section.server,
                error=why,
                reason="records have only what their file's path says",
            )


def _by_name(document: Any) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The pods of a PodList.

    Raises:
        RemoteProtocolError: It is none.
    """
    if not isinstance(document, dict) or not isinstance(document.get("items"), list):
        raise RemoteProtocolError("the answer is no list of pods")
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for pod in document["items"]:
        meta = pod.get("metadata") if isinstance(pod, dict) else None
        if not isinstance(meta, dict):
            raise RemoteProtocolError("the answer has an item that is no pod")
        found.setdefault((str(meta.get("namespace")), str(meta.get("name"))), []).append(pod)
    return found


def _context(section: KubernetesSection, source: str) -> ssl.SSLContext | None:
    if section.server.startswith("http://"):
        return None
    try:
        context = client_tls(section.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"source {source}: kubernetes.ca_file: {section.ca_file}: {error}",
            fix="mount the service account's files, or name the authority's certificate",
        ) from None
    if not section.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def service_of(facts: Facts, path: str) -> str:
    """The container's name; the file's where its path names none."""
    return str(facts.get("k8s.container.name") or Path(path).stem)
