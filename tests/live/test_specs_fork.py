"""Processes that fork, end, and are killed while they emit."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collector_socket import CollectorSocket
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

FORKING = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")
from penstock.specs import Emitter
emitter = Emitter({"service.name": "forking", "process.pid": os.getpid()}, socket_path=sys.argv[1])
stop = threading.Event()
said = [0]
def chatter():
    while not stop.is_set():
        emitter.emit("log", b'{"body":"parent-%d"}' % said[0])
        said[0] += 1
        stop.wait(0.0001)
threads = [threading.Thread(target=chatter)]
threads[0].start()
children = []
for child in range(10):
    pid = os.fork()
    if pid == 0:
        for number in range(50):
            emitter.emit("log", b'{"body":"child%d-%d"}' % (child, number))
        done = emitter.flush(20)
        counters = emitter.counters()
        os._exit(0 if done and counters.acked == {"log": 50} == counters.emitted else 1)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
stop.set()
threads[0].join()
done = emitter.flush(20)
print(codes, done, emitter.counters().acked == {"log": said[0]}, said[0])
"""

# A private lock: no call holds one for long, and the fork must come while it is held.
HELD_LOCK = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")
from penstock.specs import Emitter
emitter = Emitter({"service.name": "held"}, socket_path=sys.argv[1])
emitter.emit("log", b'{"body":"before"}')
held, go = threading.Event(), threading.Event()
def hold():
    with emitter._state.lock:
        held.set()
        go.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
pid = os.fork()
if pid == 0:
    emitter.emit("log", b'{"body":"child"}')
    os._exit(0 if emitter.flush(20) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
go.set()
thread.join()
print(emitter.flush(20))
"""

CLOSED = """
import os, sys, warnings
warnings.simplefilter("ignore")
from penstock.specs import Emitter
emitter = Emitter({"service.name": "closed"}, socket_path=sys.argv[1])
emitter.emit("log", b'{"body":"before"}')
emitter.close()
children = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        emitter.emit("log", b'{"body":"child%d"}' % child)
        os._exit(0 if emitter.flush(20) else 1)
    children.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""

AT_EXIT = """
import sys
from penstock.specs import Emitter, EmitterLimits
emitter = Emitter({"service.name": "ending"}, socket_path=sys.argv[1],
                  limits=EmitterLimits(max_batch_age_ms=60_000))
for number in range(300):
    emitter.emit("log", b'{"body":"r%d"}' % number)
"""

REENTRANT = """
import signal, sys
from penstock.specs import Emitter
emitter = Emitter({"service.name": "signalled"}, socket_path=sys.argv[1])
signalled = [0]
def handler(*_):
    signalled[0] += 1
    emitter.emit("log", b'{"body":"from a signal handler"}')
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
said = 0
while signalled[0] < 200:
    emitter.emit("log", b'{"body":"from the program"}')
    said += 1
signal.setitimer(signal.ITIMER_REAL, 0)
done = emitter.flush(20)
c = emitter.counters()
dropped = sum(sum(reasons.values()) for reasons in c.dropped.values())
print(done, c.emitted["log"] == said + signalled[0] == c.acked["log"] + dropped)
"""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[CollectorSocket]:
    fake = CollectorSocket(tmp_path / "c.sock")
    fake.start()
    yield fake
    fake.stop()


def run(program: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_children_emit_as_senders_of_their_own(collector: CollectorSocket) -> None:
    codes, done, acked, said = run(FORKING, collector.path).rsplit(" ", 3)
    assert (codes, done, acked) == (str([0] * 10), "True", "True")
    senders: dict[str, list[str]] = {}
    for batch in collector.batches:
        if not batch.repeat:
            bodies = [json.loads(line)["body"] for line in batch.lines]
            senders.setdefault(batch.header["sender"], []).extend(bodies)
    assert len(senders) == 11
    told = sorted(senders.values(), key=lambda bodies: bodies[0])
    assert told[:10] == [[f"child{child}-{n}" for n in range(50)] for child in range(10)]
    assert told[10] == [f"parent-{n}" for n in range(int(said))]


def test_fork_while_the_lock_is_held_leaves_both_sides_working(
    collector: CollectorSocket,
) -> None:
    assert run(HELD_LOCK, collector.path).split() == ["0", "True"]
    assert sorted(collector.bodies()) == ["before", "child"]


def test_children_of_a_process_that_closed_its_emitter_are_senders_of_their_own(
    collector: CollectorSocket,
) -> None:
    assert run(CLOSED, collector.path).strip() == "[0, 0, 0]"
    assert sorted(collector.bodies()) == ["before", "child0", "child1", "child2"]
    assert len({batch.header["sender"] for batch in collector.batches}) == 4


def test_records_are_flushed_at_exit(collector: CollectorSocket) -> None:
    run(AT_EXIT, collector.path)
    assert collector.bodies() == [f"r{number}" for number in range(300)]


def test_signal_handler_may_emit_at_any_moment(collector: CollectorSocket) -> None:
    assert run(REENTRANT, collector.path).split() == ["True", "True"]


def test_example_shop_finishes_its_order_and_reports_on_sigterm(
    collector: CollectorSocket,
) -> None:
    shop = subprocess.Popen(
        [
            sys.executable, "examples/checkout_app.py", "--socket", str(collector.path),
            "--seconds", "0", "--rate", "300",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    wait_until(lambda: len(collector.records) > 200, what="records of the shop")
    shop.send_signal(signal.SIGTERM)
    output, _ = shop.communicate(timeout=30)
    report = json.loads(output)
    assert shop.returncode == 0
    assert report["flushed"]
    assert report["dropped"] == {}
    assert report["acked"] == report["emitted"]
    kinds = [json.loads(record)["kind"] for record in collector.records]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == report["acked"]
    assert set(kinds) >= {"log", "span", "metric", "event"}
