"""Real receivers of remote write: Prometheus and VictoriaMetrics.

They are those of Debian's packages; PENSTOCK_TEST_PROMETHEUS is another Prometheus's program.
"""

import json
import os
import subprocess
import tempfile
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.debian import program
from tests.support.fault_door import Proxy
from tests.support.processes import free_port
from tests.support.waiting import wait_until


class MetricServer:
    """One server on a port of its own, with a directory that goes with it.

    Args:
        command: Its program and arguments; `{port}` and `{directory}` are filled in.
        write_path: Where it takes remote write.
        ready_path: What it answers with 200 once it works.
        config: Of Prometheus.
    """

    def __init__(
        self,
        command: list[str],
        *,
        write_path: str,
        ready_path: str,
        config: str = "global: {}\n",
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-metrics-")
        directory = Path(self._directory.name)
        (directory / "prometheus.yml").write_text(config)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.write_path = write_path
        self._process = subprocess.Popen(
            [part.format(port=port, directory=directory) for part in command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(lambda: self._answers(ready_path), what=f"{command[0]} ready")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(timeout=10)
        self._directory.cleanup()

    def get(self, path: str) -> bytes:
        """What it answers at a path."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            found: bytes = answer.read()
        return found

    def query(self, expression: str, at_s: float) -> list[dict[str, Any]]:
        """The series of an instant query."""
        asked = urllib.parse.urlencode({"query": expression, "time": at_s})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{asked}", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def _answers(self, path: str) -> bool:
        assert self._process.poll() is None, "it ended"
        try:
            with urllib.request.urlopen(self.url + path, timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def prometheus(*, out_of_order: bool = False) -> MetricServer:
    """Prometheus; one that takes samples out of order answers 500 where the other answers 400."""
    named = os.environ.get("PENSTOCK_TEST_PROMETHEUS")
    server = named or program("prometheus", package="prometheus")
    window = "storage: {tsdb: {out_of_order_time_window: 30m}}\n"
    return MetricServer(
        [
            str(server), "--config.file={directory}/prometheus.yml",
            "--storage.tsdb.path={directory}/data", "--web.listen-address=127.0.0.1:{port}",
            "--web.enable-remote-write-receiver", "--no-storage.tsdb.wal-compression",
        ],
        write_path="/api/v1/write", ready_path="/-/ready",
        config=window if out_of_order else "global: {}\n",
    )  # fmt: skip


def victoria_metrics() -> MetricServer:
    """VictoriaMetrics."""
    server = program("victoria-metrics", package="victoria-metrics")
    return MetricServer(
        [
            str(server), "-storageDataPath={directory}/data",
            "-httpListenAddr=127.0.0.1:{port}", "-search.latencyOffset=0s",
        ],
        write_path="/api/v1/write", ready_path="/health",
    )  # fmt: skip


class MetricRun(Proxy):
    """A server behind a door, for series of this run alone.

    Attributes:
        keys: Of the sink's settings, beside those of the kind.
    """

    def __init__(self, server: MetricServer) -> None:
        super().__init__(server.url)
        self.server = server
        self.run = uuid.uuid4().hex
        self.keys = {"fixed_labels": {"run": self.run}}

    def stored(self, at_s: float) -> Counter[int]:
        """How many samples each record has there, by its number."""
        window = f'{{run="{self.run}"}}[24h]'
        found = self.server.query(f"count_over_time({window})", at_s)
        return Counter({int(each["metric"]["number"][1:]): int(each["value"][1]) for each in found})
