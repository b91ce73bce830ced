"""A fake of the Kubernetes API server and of a kubelet, made from their documentation.

Of the API reference, "Pod v1 core": a list of pods has `kind: PodList` and `items`, and
`fieldSelector=spec.nodeName=…` restricts it; of "Authenticating" and "Authorization": a request
without a token that is known is answered with 401, one that is not allowed with 403, both with a
`Status`. A kubelet answers `GET /pods` with the same list, of its node alone.
"""

import http.server
import json
import ssl
import threading
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from typing_extensions import override

from tests.support.certificates import Certificate


def pod(name: str, uid: str, *, node: str = "node-1", **metadata: Any) -> dict[str, Any]:
    """A pod of the namespace `shop`, as far as the list shows it."""
    return {
        "metadata": {"name": name, "namespace": "shop", "uid": uid, **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "shop/app:1"}]},
        "status": {"phase": "Running"},
    }


class FakeKubernetes:
    """Serves the pods that it is given.

    Attributes:
        pods: Now.
        allowed: Whether the service account may list them.
        requests: The paths that were asked for.
    """

    def __init__(self, certificate: Certificate, token: str) -> None:
        self.pods: list[dict[str, Any]] = []
        self.allowed = True
        self.requests: list[str] = []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.requests.append(self.path)
                if self.headers.get("Authorization") != f"Bearer {token}":
                    self._answer(401, {"kind": "Status", "code": 401, "reason": "Unauthorized"})
                elif not fake.allowed:
                    self._answer(403, {"kind": "Status", "code": 403, "reason": "Forbidden"})
                elif (found := fake.listed(self.path)) is None:
                    self._answer(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
                else:
                    self._answer(200, {"kind": "PodList", "apiVersion": "v1", "items": found})

            def _answer(self, status: int, document: dict[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            @override
            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.cert, certificate.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def listed(self, target: str) -> list[dict[str, Any]] | None:
        """What a path lists; None where there is nothing."""
        parts = urlsplit(target)
        if parts.path == "/pods":
            return self.pods
        if parts.path != "/api/v1/pods":
            return None
        (selector,) = parse_qs(parts.query)["fieldSelector"]
        field, _, node = selector.partition("=")
        assert field == "spec.nodeName"
        return [one for one in self.pods if one["spec"]["nodeName"] == node]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
