"""The bench works: every scenario with a handful of messages, real servers. No figure is judged."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.bench.__main__ import SCENARIOS
from tests.bench.nats_wire import Connection
from tests.bench.reading import FILLING
from tests.bench.report import read_json
from tests.bench.worker import ROOT, workers
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


def _start(directory: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench", "--smoke", "--dir", str(directory), *arguments],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a bench works; nothing may be left there."""
    yield tmp_path / "bench"
    assert list((tmp_path / "bench").iterdir()) == []


@pytest.mark.timeout(620)  # s, t, u and z start Spark, which a busy machine takes minutes for
@pytest.mark.parametrize(
    "letters",
    ["a,b,h", "c,f", "d,e", "g,m,n", "i,j", "k,l", "o", "p,q,r", "s", "t", "u", "v,w", "x,y", "z"],
)
def test_every_scenario_measures_something(directory: Path, letters: str) -> None:
    path = directory.parent / "bench.json"
    bench = _start(directory, "--only", letters, "--json", str(path))
    output, _ = bench.communicate(timeout=600)
    assert bench.returncode == 0, output
    scenarios = read_json(path)
    assert set(scenarios) == set(letters.split(","))
    for scenario in scenarios.values():
        assert scenario["cases"]
        assert scenario["machine"]["cores"] == os.cpu_count()
        for case in scenario["cases"]:
            for name, system in case["systems"].items():
                assert system["rounds"], (case["case"], name)
                assert system["median"] >= 0 or case["unit"] == "KiB", (case["case"], name)


def test_the_tests_above_leave_no_scenario_out() -> None:
    (mark,) = (
        mark
        for mark in test_every_scenario_measures_something.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    )
    assert sorted(",".join(mark.args[1]).split(",")) == sorted(SCENARIOS)


def test_a_log_is_filled_though_its_first_batches_went_unanswered(
    tmp_path: Path, nats_url: str
) -> None:
    """Scenario k kills replicas, and who does not lead answers nothing."""
    with Logd(tmp_path, nats_url, [{"name": "logs", "subject": "logs"}]) as logd:
        logd.daemon.kill()
        heard = Connection(nats_url)
        heard.subscribe(b"logs")
        job = {"url": nats_url, "subject": "logs", "size_bytes": 256, "window": 8}
        with workers("publisher", [job | {"kind": FILLING, "count": 4_000}]) as publishers:
            publishers.go()
            while b"MSG logs " not in heard.lines():
                pass
            heard.close()
            logd.daemon.start()
            assert publishers.results().total("refused") == 0
        assert len(logd.values("logs")) == 4_000


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_it_ends_everything_it_started(directory: Path, how: signal.Signals) -> None:
    bench = _start(directory, "--only", "b", "--rounds", "1000")
    process = psutil.Process(bench.pid)

    def started() -> list[psutil.Process]:
        try:
            found = process.children(recursive=True)
            names = {child.name() for child in found}
        except psutil.NoSuchProcess:  # one that ended in between
            return []
        return found if "nats-server" in names and len(found) > 4 else []

    children = wait_until(started, within_s=60, what="servers and a publisher")
    bench.send_signal(how)
    output, _ = bench.communicate(timeout=60)
    assert bench.returncode == 130, output[-3000:]
    wait_until(lambda: all(map(_ended, children)), what="the end of what it started")


def _ended(process: psutil.Process) -> bool:
    """A worker whose start was interrupted ends by itself, and nobody is left to wait for it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
