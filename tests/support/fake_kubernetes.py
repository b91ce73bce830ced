"""A fake of the Kubernetes API server and of a kubelet, made from their documentation.

Of the API reference, "Pod v1 core" and "Event v1 core": a list has `kind`,
`metadata.resourceVersion` and `items`; `fieldSelector` restricts it; `limit` and `continue` page
it. Of "Kubernetes API Concepts": `watch=1` answers one JSON object a line, `ADDED`, `MODIFIED`,
`DELETED`, or with `allowWatchBookmarks` a `BOOKMARK`, of what changed after `resourceVersion`; a
version that the server has forgotten is answered by an `ERROR` of code 410, and 410 by its status
when it is asked for; each watch ends after a while. Of "Authenticating" and "Authorization": a
request without a token that is known is answered with 401, one that is not allowed with 403, both
with a `Status`. A kubelet answers `GET /pods` with the list of its node's, and has no watches.
"""

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from typing_extensions import override

from tests.support.certificates import Certificate

Object = dict[str, Any]
GONE: Object = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}


def pod(name: str, uid: str, *, node: str = "node-1", **metadata: Any) -> Object:
    """A pod of the namespace `shop`, as far as the list shows it."""
    return {
        "metadata": {"name": name, "namespace": "shop", "uid": uid, **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "shop/app:1"}]},
        "status": {"phase": "Running"},
    }


def event(name: str, message: str, **fields: Any) -> Object:
    """An event of a pod of the namespace `shop`."""
    return {
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}"},
        "involvedObject": {
            "kind": "Pod", "namespace": "shop", "name": "cart-7f9", "uid": "u1",
            "apiVersion": "v1", "resourceVersion": "7", "fieldPath": "spec.containers{app}",
        },
        "type": "Normal", "reason": "Pulled", "message": message, "count": 1,
        "source": {"component": "kubelet", "host": "node-1"},
        "firstTimestamp": "2026-01-02T03:04:05Z", "lastTimestamp": "2026-01-02T03:04:06Z",
    } | fields  # fmt: skip


class FakeKubernetes:
    """Serves the pods, services, endpoints and events that it is given, and their changes.

    Attributes:
        allowed: Whether the service account may ask.
        requests: The paths that were asked for.
        page_items: Objects of one page of a list.
    """

    def __init__(self, certificate: Certificate, token: str) -> None:
        self.allowed = True
        self.requests: list[str] = []
        self.page_items = 500
        self.version = 100
        self._oldest = 0
        self._generation = 0
        self._objects: dict[str, dict[str, Object]] = {}
        self._history: list[tuple[int, str, str, Object]] = []
        self._changed = threading.Condition()
        self._server = _Server(self, token)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.cert, certificate.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def oldest(self) -> int:
        """The version before which changes are forgotten."""
        return self._oldest

    @property
    def pods(self) -> list[Object]:
        return [*self._objects.get("pods", {}).values()]

    @pods.setter
    def pods(self, wanted: list[Object]) -> None:
        uids = {one["metadata"]["uid"] for one in wanted}
        for one in self.pods:
            if one["metadata"]["uid"] not in uids:
                self.remove("pods", one)
        for one in wanted:
            self.put("pods", one)

    def put(self, kind: str, one: Object) -> None:
        """Make an object, or change it."""
        with self._changed:
            known = self._objects.setdefault(kind, {})
            uid = one["metadata"]["uid"]
            self._note("MODIFIED" if uid in known else "ADDED", kind, one)
            known[uid] = self._history[-1][3]

    def remove(self, kind: str, one: Object) -> None:
        """Remove an object."""
        with self._changed:
            self._objects[kind].pop(one["metadata"]["uid"], None)
            self._note("DELETED", kind, one)

    def forget(self) -> None:
        """Forget every change so far, and end every watch by an error of code 410."""
        with self._changed:
            self.version += 1
            self._oldest = self.version
            self._generation += 1
            self._changed.notify_all()

    def _note(self, change: str, kind: str, one: Object) -> None:
        self.version += 1
        versioned = {**one, "metadata": {**one["metadata"], "resourceVersion": str(self.version)}}
        self._history.append((self.version, kind, change, versioned))
        self._changed.notify_all()

    def has(self, path: str) -> bool:
        return path == "/pods" or path.startswith(("/api/v1/", "/apis/"))

    def listed(self, path: str, query: dict[str, str]) -> Object:
        with self._changed:
            items = [
                one for one in self._objects.get(path.rpartition("/")[2], {}).values()
                if _fits(one, path, query)
            ]  # fmt: skip
            begin = int(query.get("continue", 0))
            end = begin + min(self.page_items, int(query.get("limit", self.page_items)))
            meta = {"resourceVersion": str(self.version)}
            if end < len(items):
                meta["continue"] = str(end)
            return {"kind": "List", "metadata": meta, "items": items[begin:end]}

    def changes(self, path: str, query: dict[str, str]) -> Iterator[Object]:
        """What a watch is answered, until it ends."""
        version, generation = int(query["resourceVersion"]), self._generation
        kind = path.rpartition("/")[2]
        ends = False
        while not ends:
            with self._changed:
                ends = self._generation != generation
                if ends:
                    lines: list[Object] = [{"type": "ERROR", "object": GONE}]
                else:
                    lines = [
                        {"type": change, "object": one} for at, of, change, one in self._history
                        if at > version and of == kind and _fits(one, path, query)
                    ]  # fmt: skip
                    version = max(version, self.version)
                    meta = {"resourceVersion": str(version)}
                    lines.append({"type": "BOOKMARK", "object": {"kind": kind, "metadata": meta}})
            yield from lines
            with self._changed:
                while not ends and self.version == version and self._generation == generation:
                    ends = not self._changed.wait(30)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._generation += 1
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()


def _fits(one: Object, path: str, query: dict[str, str]) -> bool:
    """Whether an object is of the path's namespace and the selector's node or type."""
    words = path.split("/")
    if (
        "namespaces" in words
        and words[words.index("namespaces") + 1] != one["metadata"]["namespace"]
    ):
        return False
    field, _, value = query.get("fieldSelector", "").partition("=")
    if not field:
        return True
    return bool(
        {"spec.nodeName": one.get("spec", {}).get("nodeName"), "type": one.get("type")}[field]
        == value
    )


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, fake: FakeKubernetes, token: str) -> None:
        self.fake, self.token = fake, token
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        self.server.fake.requests.append(self.path)
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._answer(401, {"kind": "Status", "code": 401, "reason": "Unauthorized"})
        elif not self.server.fake.allowed:
            self._answer(403, {"kind": "Status", "code": 403, "reason": "Forbidden"})
        elif not self.server.fake.has(parts.path):
            self._answer(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
        elif "watch" in query:
            self._watch(parts.path, query)
        else:
            self._answer(200, self.server.fake.listed(parts.path, query))

    def _answer(self, status: int, document: Object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, path: str, query: dict[str, str]) -> None:
        version = int(query["resourceVersion"])
        if version < self.server.fake.oldest:
            self._answer(410, GONE)
            return
        if version > self.server.fake.version:
            self._answer(504, {"kind": "Status", "code": 504, "reason": "Timeout"})
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in self.server.fake.changes(path, query):
            data = json.dumps(line).encode() + b"\n"
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            except OSError:
                return
        self.wfile.write(b"0\r\n\r\n")

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
