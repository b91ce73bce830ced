"""An S3 to test against: moto's server, a process of its own, shared by the tests of this one."""

import atexit
import io
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from functools import cache
from typing import Final
from xml.sax.saxutils import unescape

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.fault_door import Proxy
from tests.support.processes import free_port
from tests.support.waiting import wait_until

S3_KEYS: Final = {"access_key_id": "AKIATEST", "secret_access_key": "hush"}
BUCKET: Final = "lake"

_KEY: Final = re.compile(r"<Key>([^<]+)</Key>")
_CLASS: Final = re.compile(r"<StorageClass>([^<]+)</StorageClass>")


@cache
def moto_url(**environment: str) -> str:
    """The URL of a running server."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )  # fmt: skip
    atexit.register(process.wait, 10)
    atexit.register(process.kill)
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: _is_there(url, process), what="moto ready")
    return url


def _is_there(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "moto ended; is it installed?"
    try:
        call(url + "/moto-api/")
    except OSError:
        return False
    return True


def call(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> bytes:
    """An answer's body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, named, method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: bytes = answer.read()
    return found


class MotoRun(Proxy):
    """The server without any object, with one bucket."""

    def __init__(self) -> None:
        self.url = moto_url()
        super().__init__(self.url)
        call(self.url + "/moto-api/reset", "POST")
        call(f"{self.url}/{BUCKET}", "PUT")

    def objects(self) -> dict[str, str]:
        """The storage class of each key."""
        listed = call(f"{self.url}/{BUCKET}?list-type=2").decode()
        keys = [unescape(key) for key in _KEY.findall(listed)]
        return dict(zip(keys, _CLASS.findall(listed), strict=True))

    def get(self, key: str) -> bytes:
        return self._ask("GET", key)

    def delete(self, key: str) -> None:
        self._ask("DELETE", key)

    def offsets_of(self, key: str) -> list[int]:
        """The offsets of an object's rows."""
        table = pq.read_table(io.BytesIO(self.get(key)), columns=["offset"])
        found: list[int] = table["offset"].to_pylist()
        return found

    def _ask(self, method: str, key: str) -> bytes:
        """Ask about an object; moto only looks whether the request is signed at all."""
        url = f"{self.url}/{BUCKET}/{urllib.parse.quote(key)}"
        signed = "AWS4-HMAC-SHA256 Credential=AKIATEST/x/y/s3/aws4_request"
        return call(url, method, Authorization=signed)

    def lake(self) -> pa.Table:
        """The rows of every object."""
        parts = [pq.read_table(io.BytesIO(self.get(key))) for key in self.objects()]
        return pa.concat_tables(parts) if parts else pa.table({"value": pa.array([], pa.binary())})
