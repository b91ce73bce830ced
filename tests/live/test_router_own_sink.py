"""The sink of another package that docs/howto/write-a-sink.md shows: Spark's tasks send for it."""

import json
import threading
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.router.sinks.registry import GROUP
from tests.support.fault_door import RESET, Answered, Asked, Backend, FaultDoor
from tests.support.router import job_of_logs, log_line
from tests.support.waiting import wait_until
from tests.support.walkthrough import File, read_document

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PAGE = Path("docs/howto/write-a-sink.md")
RECORDS, SIZE = 3000, 250


def install(site: Path) -> None:
    """Install the page's module as a package with an entry point."""
    shown = {it.name: it.text for it in read_document(PAGE.read_text()) if isinstance(it, File)}
    about = site / "acme_sinks-1.dist-info"
    about.mkdir(parents=True)
    (site / "acme_hook.py").write_text(shown["acme_hook.py"])
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-sinks\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\nacme_hook = acme_hook:HookSink\n")


class Hook(Backend):
    """Acme's hook.

    Attributes:
        events: Offsets of each request, by its name: a list for each time that it came.
    """

    def __init__(self) -> None:
        self.events: dict[str, list[list[int]]] = defaultdict(list)

    @override
    def handle(self, asked: Asked) -> Answered:
        assert asked.path == "/v1/events"
        assert asked.headers["acme-team"] == "shop"
        events = json.loads(asked.body)
        assert all(it["record"]["attributes"]["number"] == it["id"] for it in events)
        self.events[asked.headers["acme-request"]].append([it["id"] for it in events])
        return Answered(204)


class SilentOnce:
    """A rule of a door: the first request is taken, and gets no answer.

    Attributes:
        client: The port of its client; 0 before it is there.
    """

    def __init__(self, door: FaultDoor) -> None:
        self.client = 0
        self._door = door
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Answered | None:
        with self._lock:
            if self.client:
                return None
            self.client = asked.connection
        self._door.backend.handle(asked)
        self._door.hung.wait(60)
        return RESET


def test_spark_tasks_send_for_the_sink_of_another_package_and_a_killed_one_repeats_its_requests(
    tmp_path: Path, nats_url: str
) -> None:
    install(tmp_path / "site")
    hook = Hook()
    lines = [log_line(number) for number in range(RECORDS)]
    with closing(FaultDoor(hook)) as door:
        silence = SilentOnce(door)
        door.rule = silence
        url = f"http://{door.address}/v1"
        settings: dict[str, Any] = {"type": "acme_hook", "url": url, "team": "shop"}
        settings |= {"timeout_s": 60, "compression": "none", "batch": {"max_records": SIZE}}
        keys = {"spark": {"master": "local[2,4]"}, "source": {"min_partitions": 3}}
        with job_of_logs(tmp_path, nats_url, lines, {"hook": settings}, **keys) as job:
            job.daemon.program = ("env", f"PYTHONPATH={tmp_path / 'site'}", *job.daemon.program)
            job.daemon.start(within_s=60)
            port = wait_until(lambda: silence.client, within_s=120, what="a request")
            assert port
            worker = job.client(port, door.address)
            assert worker.pid != job.daemon.pid, "a task sends, and not the driver"
            worker.kill()
            wait_until(lambda: job.committed()["logs"] == RECORDS, within_s=180)
            assert all(len({*map(tuple, came)}) == 1 for came in hook.events.values())
            offsets = [offset for came in hook.events.values() for offset in came[0]]
            assert sorted(offsets) == [*range(RECORDS)]
            assert max(map(len, hook.events.values())) == 2, "of the task that was killed"
            assert job.daemon.status()["info"]["sinks"]["hook"]["restarts"] == 0
            assert job.daemon.stop() == 0
