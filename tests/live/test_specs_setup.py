"""Processes that are set up in one line, and how they end."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.collector_socket import CollectorSocket
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

ENDING = """
import asyncio, sys, threading
from penstock import specs
specs.setup("ending", socket=sys.argv[1], opentelemetry=False)
specs.log().info("before")
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
async def main():
    task = asyncio.create_task(asyncio.sleep(0, 1))
    asyncio.get_running_loop().call_soon(lambda: {}["callback"])
    await task
asyncio.run(main())
class Broken:
    def __del__(self):
        raise KeyError("destructor")
Broken()
raise RuntimeError("the end")
"""

TERMINATED = """
import sys, threading
from opentelemetry import trace
from penstock import specs
from penstock.specs import EmitterLimits
specs.setup("terminated", socket=sys.argv[1], limits=EmitterLimits(batch_age_ms=60_000))
with trace.get_tracer("t").start_as_current_span("work"):
    specs.log().info("ready")
specs.log().info("working")
print("ready", flush=True)
while len(sys.argv) > 2:
    threading.Event().wait(1)  # for Python may begin to wait just behind a signal, unseen
while True:
    specs.log().info("working")
"""

HANDLED = """
import signal, sys
from penstock import specs
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
specs.setup("handled", socket=sys.argv[1], opentelemetry=False)
specs.log().info("ready")
signal.raise_signal(signal.SIGTERM)
"""

GREENLETS = """
from gevent import monkey
monkey.patch_all()
import sys, threading, gevent
from penstock import specs
from penstock.specs import native
emitter = specs.setup("greenlets", socket=sys.argv[1], opentelemetry=False)
said = 0
def chatter(name):
    global said
    for number in range(200):
        specs.log().info(f"{name}-{number}")
        said += 1
        gevent.sleep(0)
gevent.joinall([gevent.spawn(chatter, name) for name in "abcd"])
assert threading.get_ident() != 0
done = emitter.flush(20)
counters = emitter.counters()
print(done, said, counters.acked, counters.dropped)
"""

STALLED_GREENLETS = """
from gevent import monkey
monkey.patch_all()
import os, sys, gevent
from penstock import specs
emitter = specs.setup("greenlets", opentelemetry=False, console=False)
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0)
gevent.spawn(tick)
for number in range(3000):
    specs.log().info("x" * 500, number=number)
    gevent.sleep(0)
sys.stderr.write("unstalled" if ticks >= 3000 else "stalled")
sys.stderr.flush()
os._exit(0)
"""


SHOWN = r"""
from penstock import specs
specs.setup("shown", opentelemetry=False)
specs.log("shop").warning("low \x1b[2J stock", left=3)
try:
    1 / 0
except ZeroDivisionError:
    specs.log().exception("failed")
"""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[CollectorSocket]:
    fake = CollectorSocket(tmp_path / "c.sock")
    fake.start()
    yield fake
    fake.stop()


def run(program: str, path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip


def records(collector: CollectorSocket) -> list[dict[str, Any]]:
    return [json.loads(line) for line in collector.records]


def test_what_nobody_caught_is_recorded_and_reported_as_before(collector: CollectorSocket) -> None:
    done = run(ENDING, collector.path)
    assert done.returncode == 1
    assert "RuntimeError: the end" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    found = [
        (record["severity_text"], record.get("attributes", {}).get("exception.type"))
        for record in records(collector)
    ]
    assert found == [
        ("INFO", None),
        ("ERROR", "ZeroDivisionError"),
        ("ERROR", "KeyError"),
        ("ERROR", "KeyError"),
        ("FATAL", "RuntimeError"),
    ]
    assert records(collector)[1]["attributes"]["thread.name"] == "worker"
    assert records(collector)[2]["scope"] == "asyncio"


@pytest.mark.parametrize("waiting", [["waits"], []], ids=["waiting", "emitting"])
def test_sigterm_flushes_and_then_ends_the_process(
    collector: CollectorSocket, waiting: list[str]
) -> None:
    """Also one that is emitting at that moment, most likely within the emitter."""
    command = [sys.executable, "-c", TERMINATED, str(collector.path), *waiting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
    assert records(collector)[0]["body"] == "ready"
    if waiting:
        kinds = [record["kind"] for record in records(collector)]
        assert sorted(kinds) == ["log", "log", "span"]


def test_an_application_that_handles_sigterm_goes_its_own_way(collector: CollectorSocket) -> None:
    assert run(HANDLED, collector.path).returncode == 7
    assert collector.bodies() == ["ready"]


def test_greenlets_emit(collector: CollectorSocket) -> None:
    done = run(GREENLETS, collector.path)
    assert (done.stdout, done.stderr) == ("True 800 {'log': 800} {}\n", "")
    assert len(set(collector.bodies())) == 800


def test_greenlets_are_not_held_up_by_a_standard_output_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", STALLED_GREENLETS], stdout=writing, stderr=subprocess.PIPE
    ) as process:
        _, errors = process.communicate(timeout=50)
    os.close(reading)
    os.close(writing)
    assert errors == b"unstalled"


def test_a_terminal_gets_text_for_people() -> None:
    reading, writing = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", SHOWN], stdout=writing) as process:
        os.close(writing)
        read = bytearray()

        def all_of_it() -> bool:
            try:
                read.extend(os.read(reading, 4096))
            except OSError:  # how a terminal says that nobody has it open any more
                return True
            return False

        wait_until(all_of_it, what="the end of the output")
        assert process.wait(20) == 0
    os.close(reading)
    text = read.decode()
    assert "WARN" in text
    assert "left=3" in text
    assert "ZeroDivisionError" in text
    assert "schema" not in text
    assert "\x1b[2J" not in text, "a record does not command a terminal"
