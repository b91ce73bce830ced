"""An HTTP destination that does what a test tells it, on an address it keeps."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from tests.support.processes import free_port


class HttpDestination:
    """Keeps what is posted to it, once per Idempotency-Key.

    Attributes:
        status: The answer to every request; records are kept only with a 2xx.
        records: What was stored, in order of arrival.
        requests: Idempotency keys of all requests, refused ones included.
        answers: No request is answered while it is clear.
    """

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.status = 200
        self.records: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.answers = threading.Event()
        self.answers.set()
        self._seen: set[str] = set()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Where to post."""
        return f"http://{self.address}/ingest?source=penstock"

    def open(self) -> None:
        """Start listening."""
        destination = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = destination.take(self.headers["Idempotency-Key"], body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            @override
            def log_message(self, format: str, *args: Any) -> None:
                """Tests look at `requests` instead."""

        host, _, port = self.address.rpartition(":")
        self._server = ThreadingHTTPServer((host, int(port)), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop listening; connections are refused from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def take(self, key: str, body: bytes) -> int:
        """Handle one request; returns the status."""
        self.requests.append(key)
        self.answers.wait()
        if 200 <= self.status < 300 and key not in self._seen:
            self._seen.add(key)
            self.records += [json.loads(line) for line in body.splitlines()]
        return self.status
