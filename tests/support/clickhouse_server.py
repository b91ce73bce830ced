"""A real ClickHouse, the one of Debian (18.16, of 2018), started for the tests of this process.

It has the HTTP interface, ReplacingMergeTree and FINAL, and no tokens: those came in 22.2.
"""

import atexit
import subprocess
import tempfile
import urllib.error
import urllib.request
import uuid
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

from tests.support.debian_daemons import daemon
from tests.support.fault_door import Proxy
from tests.support.processes import free_port
from tests.support.waiting import wait_until

_CONFIG: Final = """<yandex>
<logger><level>error</level><log>{home}/log</log><errorlog>{home}/errors</errorlog></logger>
<http_port>{http}</http_port><tcp_port>{tcp}</tcp_port><listen_host>127.0.0.1</listen_host>
<path>{home}/data/</path><tmp_path>{home}/tmp/</tmp_path><users_config>users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>16777216</mark_cache_size></yandex>
"""
_USER: Final = (
    "<{name}><password>{password}</password><networks><ip>127.0.0.1</ip></networks>"
    "<profile>{profile}</profile><quota>default</quota></{name}>"
)
_USERS: Final = (
    "<yandex><profiles><default/><reads><readonly>1</readonly></reads></profiles>"
    "<quotas><default/></quotas><users>{users}</users></yandex>"
)


class ClickHouseServer:
    """The server."""

    def __init__(self) -> None:
        program = daemon("clickhouse-server", package="clickhouse-server", deep=True)
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-clickhouse-")
        home = Path(self._directory.name)
        http = free_port()
        self.url = f"http://127.0.0.1:{http}"
        users = (("default", "", "default"), ("guarded", "right", "default"),
                 ("reader", "", "reads"))  # fmt: skip
        told = "".join(
            _USER.format(name=name, password=password, profile=profile)
            for name, password, profile in users
        )
        (home / "config.xml").write_text(_CONFIG.format(home=home, http=http, tcp=free_port()))
        (home / "users.xml").write_text(_USERS.format(users=told))
        self._process = subprocess.Popen(
            [str(program.path), f"--config-file={home}/config.xml"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=program.environment, cwd=home,
        )  # fmt: skip
        wait_until(self._answers, what="ClickHouse ready")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(timeout=10)
        self._directory.cleanup()

    def ask(self, statement: str) -> bytes:
        """What it answers."""
        with urllib.request.urlopen(self.url, statement.encode(), timeout=20) as answer:
            found: bytes = answer.read()
        return found

    def _answers(self) -> bool:
        assert self._process.poll() is None, "it ended"
        try:
            return self.ask("SELECT 1") == b"1\n"
        except (OSError, urllib.error.URLError):
            return False


@cache
def running_clickhouse() -> ClickHouseServer:
    """One for all tests of this process."""
    made = ClickHouseServer()
    atexit.register(made.close)
    return made


class ClickHouseRun(Proxy):
    """The server behind a door, with a table for one test alone that takes no POISON.

    Attributes:
        keys: Of the sink's settings, beside those of the kind.
    """

    def __init__(self) -> None:
        self.server = running_clickhouse()
        super().__init__(self.server.url)
        self.table = f"r{uuid.uuid4().hex[:12]}"
        self._refuses = False
        self.keys = {"table": self.table}

    def make(self, creation: str) -> None:
        """Make the table, with a column that ClickHouse cannot make for a POISON."""
        self.server.ask(creation)
        if self._refuses:
            return
        self._refuses = True
        self.server.ask(
            f"ALTER TABLE {self.table} ADD COLUMN checked UInt8"
            " DEFAULT throwIf(position(record, 'POISON') > 0)"
        )

    def rows(self, what: str, *, final: bool = True) -> list[dict[str, Any]]:
        """What a query finds in the table."""
        asked = f"SELECT {what} FROM {self.table} {'FINAL' if final else ''} ORDER BY offset"
        lines = self.server.ask(f"{asked} FORMAT JSONEachRow").splitlines()
        return [orjson.loads(line) for line in lines]

    def stored(self) -> Counter[int]:
        """How often each record is there for a query with FINAL."""
        found = (orjson.loads(row["record"])["body"] for row in self.rows("record"))
        return Counter(int(body.split()[1]) for body in found)
