"""Callers with API keys, and the configuration of a logd that knows them."""

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from penstock.logd.client import LogClient
from penstock.logd.client.calls import Call
from penstock.logd.errors import RefusedError
from penstock.logd.security.api_keys import line_of, make_key
from tests.support.logd import Logd


class Callers:
    """Names with API keys; `root` is a superuser.

    Args:
        directory: For the file of keys.
        groups: Of each name.
    """

    def __init__(self, directory: Path, **groups: tuple[str, ...]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.keys = {name: make_key(name) for name in ("root", *groups)}
        self._file = directory / "keys"
        lines = [line_of(key, groups=groups.get(name, ())) for name, key in self.keys.items()]
        self._file.write_text("\n".join(lines) + "\n")

    def auth(self, **options: Any) -> dict[str, Any]:
        """The section `auth`."""
        section = {"acl": True, "superusers": ["root"], "keys_file": str(self._file)}
        return section | options

    def client(self, logd: Logd, name: str) -> LogClient:
        """A client that has said who it is."""
        client = logd.client()
        request = {"api": "authenticate", "token": self.keys[name]}
        client.ask(Call(request, lambda header, _: header["principal"]))
        return client

    def metadata(self, name: str) -> tuple[tuple[str, str], ...]:
        """Of a gRPC call."""
        return (("authorization", f"Bearer {self.keys[name]}"),)

    def status_of(self, logd: Logd, path: str, name: str | None = None) -> int:
        """What the admin endpoint answers."""
        try:
            self._visit(logd, path, name)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def metrics(self, logd: Logd) -> str:
        """All of them."""
        return self._visit(logd, "/metrics", "root")

    def _visit(self, logd: Logd, path: str, name: str | None) -> str:
        headers = {} if name is None else {"Authorization": f"Bearer {self.keys[name]}"}
        request = urllib.request.Request(f"http://{logd.config['admin']}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            text: str = answer.read().decode()
            return text


def code_of(client: LogClient, call: Call[Any]) -> str:
    """Why a call is refused; empty: it is not."""
    try:
        client.ask(call)
    except RefusedError as error:
        return error.code
    return ""
