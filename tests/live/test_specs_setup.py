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

from penstock.base import clock
from tests.support.collector_socket import CollectorSocket
from tests.support.waiting import PATIENCE, wait_until

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
specs.setup("terminated", socket=sys.argv[1], limits=EmitterLimits(max_batch_age_ms=60_000))
with trace.get_tracer("t").start_as_current_span("work"):
    specs.log().info("ready")
specs.log().info("working")
print("ready", flush=True)
while len(sys.argv) > 2:
    threading.Event().wait(1)  # for Python may begin to wait just behind a signal, unseen
while True:
    specs.log().info("working")
"""

BY_NAME = """
import logging, os, sys, threading
os.environ |= {f"OTEL_{signal}_EXPORTER": "penstock" for signal in ("TRACES", "METRICS", "LOGS")}
os.environ |= {"PENSTOCK_SOCKET": sys.argv[1], "OTEL_BSP_SCHEDULE_DELAY": "60000",
               "OTEL_BLRP_SCHEDULE_DELAY": "60000"}
from opentelemetry import metrics, trace
from opentelemetry._logs import LogRecord, get_logger
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
_OTelSDKConfigurator().configure()  # as opentelemetry-instrument does
with trace.get_tracer("t").start_as_current_span("work"):
    metrics.get_meter("t").create_counter("jobs").add(1)
    get_logger("t").emit(LogRecord(timestamp=1, body="said"))
print("ready", flush=True)
while True:
    threading.Event().wait(1)
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
        capture_output=True, text=True, timeout=50 * PATIENCE, check=False,
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
        _, errors = process.communicate(timeout=50 * PATIENCE)
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


LAST_WORDS = """
import atexit, logging, logging.handlers, queue, sys

def said_before_setup():
    logging.getLogger("app").info("exit handler")
    specs.log().info("exit handler of structlog")

waiting = queue.SimpleQueue()
atexit.register(said_before_setup)
atexit.register(lambda: listener.stop())

from penstock import specs
from penstock.specs.emit.handler import SpecHandler

specs.setup("ending", socket=sys.argv[1], opentelemetry=False)
specs.log().info("first")
quiet = logging.getLogger("queued")
quiet.propagate = False
quiet.addHandler(logging.handlers.QueueHandler(waiting))
listener = logging.handlers.QueueListener(waiting, SpecHandler())
for number in range(500):
    quiet.warning("queued")
listener.start()

class Late:
    def __del__(self, log=specs.log()):
        log.info("destructor at shutdown")

late = Late()
"""


@pytest.mark.parametrize("block_ms", [0, 100])
def test_what_is_said_while_the_process_ends_arrives(
    collector: CollectorSocket, block_ms: int
) -> None:
    """By exit handlers that were registered first and run last; through a queue; even later."""
    limits = f"opentelemetry=False, limits=specs.EmitterLimits(max_block_ms={block_ms})"
    done = run(LAST_WORDS.replace("opentelemetry=False", limits), collector.path)
    assert (done.returncode, done.stderr) == (0, "")
    bodies = collector.bodies()
    others = [body for body in bodies if body != "queued"]
    assert others == [
        "first",
        "exit handler",
        "exit handler of structlog",
        "destructor at shutdown",
    ]
    repeated = [json.loads(line)["attributes"].get("log.repeated", 1) for line in collector.records]
    assert sum(repeated) == 500 + 4


NOBODY = """
import sys, time
from penstock import specs
from penstock.specs.emit.emitter import PROCESS_EXIT
PROCESS_EXIT._left_s = 60  # as long may the end of this process wait for answers
specs.setup("alone", socket=sys.argv[1], opentelemetry=False)
for number in range(2003):
    specs.log().info(f"said {number}")
print(time.monotonic(), flush=True)
"""


def test_a_process_without_a_collector_ends_at_once_and_says_what_is_lost(tmp_path: Path) -> None:
    done = run(NOBODY, tmp_path / "away.sock")
    took_s = clock.monotonic_ns() / 1e9 - float(done.stdout)
    assert done.returncode == 0
    away, lost = done.stderr.splitlines()
    where = f"the collector at {tmp_path}/away.sock cannot be reached (No such file or directory)"
    assert away.startswith(f"penstock: {where}.")
    assert "PENSTOCK_SOCKET" in away
    assert lost == (
        "penstock: 2003 records were lost when the process ended (2003 not delivered): "
        + where
        + "."
    )
    assert took_s < 20, "it waits for nobody"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("s" * 200, "AF_UNIX path too long"), ("file", "Connection refused"),
     ("file/c.sock", "Not a directory")],
)  # fmt: skip
def test_a_socket_that_cannot_be_reached_is_named_with_the_reason(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    done = run(NOBODY, tmp_path / name)
    assert f"the collector at {tmp_path / name} cannot be reached ({reason})" in done.stderr
    assert len(done.stderr.splitlines()) == 2


BURST = """
import json, sys
from penstock import specs
from penstock.specs import EmitterLimits
limits = EmitterLimits(max_queue_records=100, max_batch_records=50, max_block_ms=int(sys.argv[2]))
emitter = specs.setup("import", socket=sys.argv[1], opentelemetry=False, limits=limits)
for number in range(3000):
    specs.log().info(f"row {number}")
print(json.dumps(emitter.counters().dropped))
"""


def burst(collector: CollectorSocket, block_ms: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", BURST, str(collector.path), str(block_ms)],
        capture_output=True, text=True, timeout=50 * PATIENCE, check=True,
    )  # fmt: skip


def test_a_script_that_may_wait_loses_nothing_of_a_burst(collector: CollectorSocket) -> None:
    done = burst(collector, 20_000)
    assert (json.loads(done.stdout), done.stderr) == ({}, "")
    assert collector.bodies() == [f"row {number}" for number in range(3000)]


def test_a_burst_that_is_dropped_is_said_on_standard_error(collector: CollectorSocket) -> None:
    done = burst(collector, 0)
    dropped = json.loads(done.stdout)["log"]["queue_full"]
    assert dropped > 0
    during, after = done.stderr.splitlines()
    assert "dropped so far because the queue was full" in during
    assert "max_block_ms" in during
    assert f"lost when the process ended ({dropped} queue_full)" in after
    assert len(collector.records) == 3000 - dropped


def test_to_wait_for_room_does_not_hold_up_a_program_without_a_collector(tmp_path: Path) -> None:
    """Once it waited in vain, the next records do not wait."""
    began_ns = clock.monotonic_ns()
    done = subprocess.run(
        [sys.executable, "-c", BURST, str(tmp_path / "away.sock"), "200"],
        capture_output=True, text=True, timeout=50 * PATIENCE, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["log"]["queue_full"] == 2900
    assert clock.monotonic_ns() - began_ns < 60e9  # 2,900 times 200 ms are ten minutes


DOCTOR = """
import logging, logging.config, sys
from penstock import specs
print(specs.doctor())
specs.setup("shop", socket=sys.argv[1], opentelemetry=False, loggers=("uvicorn",))
logging.config.dictConfig({"version": 1, "root": {"level": "WARNING"}})
logging.getLogger("late").warning("said")
specs.process_emitter().emit("log", b"x" * 300_000)
specs.process_emitter().flush(0 if "away" in sys.argv[1] else 20)
print(specs.doctor())
"""


def test_the_doctor_says_where_records_go_and_what_became_of_them(
    collector: CollectorSocket, tmp_path: Path
) -> None:
    before, *after = run(DOCTOR, collector.path).stdout.splitlines()
    assert "did not call specs.setup()" in before
    assert [line.partition(": ")[2] for line in after] == [
        after[0].partition(": ")[2],
        "a collector listens there",
        after[2].partition(": ")[2],
        "structlog: its records arrive",
        after[4].partition(": ")[2],
        "log: 2 emitted, 1 acknowledged, 1 dropped (too_large 1)",
        "waiting: 0; on their way: 0",
    ]
    assert "attached to root, uvicorn; the root logger's level is WARNING;" in after[2]
    assert after[2].endswith("put back: 1")
    assert after[0].startswith("penstock: service shop, process ")
    assert after[0].endswith(f"records go to the collector at {collector.path}")
    away = run(DOCTOR, tmp_path / "away.sock").stdout
    assert "NO collector listens there: No such file or directory" in away
    assert "waiting: 1" in away


def test_debugging_says_the_same_on_standard_error(
    collector: CollectorSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    said = run(DOCTOR, collector.path).stderr.splitlines()
    assert [line for line in said if "listens" in line] == [
        "penstock: a collector listens there"
    ] * 2
    assert "penstock: log: 2 emitted, 1 acknowledged, 1 dropped (too_large 1)" in said


def test_exporters_by_name_flush_on_sigterm_without_setup(collector: CollectorSocket) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BY_NAME, str(collector.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
    assert {record["kind"] for record in records(collector)} == {"log", "metric", "span"}
