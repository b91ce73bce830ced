"""The audit journal: processes that are killed, forked, full, and collectors that are away."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import specs
from penstock.specs import Emitter, EmitterLimits
from penstock.specs.emit.delivery.journal import SpillFile, boot_id, orphans
from penstock.specs.emit.delivery.queue import line_of
from penstock.specs.emit.delivery.spill import Spill
from tests.support.collector_socket import CollectorSocket, take
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LIMITS = EmitterLimits(
    max_queue_records=100, max_batch_records=10, max_batch_age_ms=5, initial_backoff_ms=5,
    max_backoff_ms=40, ack_timeout_ms=500, max_spill_bytes=20_000,
)  # fmt: skip

KILLED = """
import os, sys
from penstock import specs
specs.setup("killed", socket=sys.argv[1], opentelemetry=False)
for number in range(200):
    specs.Audit(event_name="door.opened", actor=specs.Actor(type="user", id=str(number)),
                action="open", target=specs.Target(type="door", id="1"), outcome="success").emit()
print(len(os.listdir(os.environ["PENSTOCK_SPILL_DIR"])), flush=True)
sys.stdin.read()
"""


# A private lock: no call holds one for long, and the fork must come while it is held.
FORKED = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")
from penstock import specs
emitter = specs.setup("forked", socket=sys.argv[1], opentelemetry=False)
def say(number):
    specs.Audit(event_name="door.opened", actor=specs.Actor(type="user", id=str(number)),
                action="open", target=specs.Target(type="door", id="1"), outcome="success").emit()
    specs.log().info("opened", number=number)
say(1)
held, go = threading.Event(), threading.Event()
def hold():
    state = emitter._state
    with state.lock, state.audit._lock, emitter.logs._lock:
        held.set()
        go.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
pid = os.fork()
if pid == 0:
    say(2)
    done = emitter.flush(20)
    emitter.close()
    os._exit(0 if done and emitter.counters().acked == {"audit": 1, "log": 1} else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
go.set()
thread.join()
say(3)
print(emitter.flush(20), emitter.counters().acked == {"audit": 2, "log": 2})
"""


SURVIVED = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
from penstock import specs
specs.setup("parent", socket=sys.argv[1], opentelemetry=False)
specs.Audit(event_name="door.opened", actor=specs.Actor(type="user", id="1"),
            action="open", target=specs.Target(type="door", id="1"), outcome="success").emit()
pid = os.fork()
if pid == 0:
    print("ready", flush=True)  # what is called after a fork was
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""


def audit(number: int) -> specs.Audit:
    return specs.Audit(
        event_name="door.opened",
        actor=specs.Actor(type="user", id=str(number)),
        action="open",
        target=specs.Target(type="door", id="1"),
        outcome="success",
    )


def actors(collector: CollectorSocket) -> list[int]:
    found = [json.loads(line) for line in collector.records]
    return [int(record["actor"]["id"]) for record in found if record.get("kind") == "audit"]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[CollectorSocket]:
    fake = CollectorSocket(tmp_path / "c.sock")
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def emitter(tmp_path: Path) -> Iterator[Emitter]:
    made = Emitter(
        {"service.name": "test"},
        socket_path=str(tmp_path / "c.sock"),
        limits=LIMITS,
        spill_dir=tmp_path,
        sampling=0.01,
    )
    yield made
    made.close(timeout_s=0.0)


def journals(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.spill"))


def unsettled(journal: Path) -> int:
    """How many records of a journal wait for their acknowledgement."""
    spill = Spill(1_000_000)
    spill.replay(journal.read_bytes())
    return spill.held


def test_audit_is_not_crowded_out_and_arrives_in_order(tmp_path: Path, emitter: Emitter) -> None:
    for number in range(60):
        emitter.emit_record(audit(number))
        for _ in range(10):
            emitter.emit("log", b'{"body":"x"}', 21)
    assert len(journals(tmp_path)) == 1
    late = CollectorSocket(tmp_path / "c.sock")
    late.start()
    assert emitter.flush(20)
    late.stop()
    assert actors(late) == list(range(60))
    counters = emitter.counters()
    assert counters.acked["audit"] == counters.emitted["audit"] == 60
    assert counters.dropped == {"log": {"queue_full": 500}}
    emitter.remove_empty_journal()
    assert journals(tmp_path) == []


def test_a_full_journal_says_so_and_counts(tmp_path: Path, emitter: Emitter) -> None:
    taken = [number for number in range(200) if emitter.emit_record(audit(number))]
    assert 0 < len(taken) < 200
    assert emitter.counters().dropped == {"audit": {"spill_full": 200 - len(taken)}}
    late = CollectorSocket(tmp_path / "c.sock")
    late.start()
    assert emitter.flush(20)
    late.stop()
    assert actors(late) == taken


def test_an_answer_that_got_lost_costs_no_record_and_none_twice(
    emitter: Emitter, collector: CollectorSocket
) -> None:
    collector.answer, collector.takes_silently = (lambda _: None), True
    for number in range(25):
        emitter.emit_record(audit(number))
    wait_until(lambda: collector.records, what="the first batch")
    collector.answer = lambda received: {"ack": received.header["seq"]}
    collector.hang_up()
    assert emitter.flush(20)
    assert actors(collector) == list(range(25))


@pytest.mark.parametrize("mood", ["away", "there", "its answers are lost"])
def test_what_a_killed_process_had_said_is_delivered_by_the_next(
    tmp_path: Path, collector: CollectorSocket, mood: str
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir(0o700)
    environment = os.environ | {"PENSTOCK_SPILL_DIR": str(spill)}
    socket = str(collector.path) + (".away" if mood == "away" else "")
    if mood == "its answers are lost":
        collector.answer, collector.takes_silently = (lambda _: None), True
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, socket],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as killed:  # fmt: skip
        try:
            assert killed.stdout is not None
            assert killed.stdout.readline() == "1\n", "all is said"
            if mood != "away":
                wait_until(lambda: collector.records, what="a batch is on its way")
        finally:
            killed.kill()
    assert len(journals(spill)) == 1
    collector.answer = take
    adopting = Emitter(
        {"service.name": "next"}, socket_path=str(collector.path), limits=LIMITS, spill_dir=spill
    )
    wait_until(lambda: len(actors(collector)) == 200, what="the records of the killed process")
    assert actors(collector) == list(range(200)), "each once, in order"
    adopted = [b for b in collector.batches if b.header["resource"]["service.name"] == "killed"]
    assert len(adopted) == len(collector.batches)
    wait_until(lambda: not any(map(unsettled, journals(spill))), what="the last answer")
    assert adopting.close()
    assert journals(spill) == []


def test_a_child_that_survives_its_parent_does_not_keep_its_journal(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir(0o700)
    with subprocess.Popen(
        [sys.executable, "-c", SURVIVED, str(tmp_path / "nobody.sock")],
        env=os.environ | {"PENSTOCK_SPILL_DIR": str(spill)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        assert list(orphans(spill, 1_000_000, boot_id())) == []
        parent.kill()
        parent.wait(20)
        (found,) = orphans(spill, 1_000_000, boot_id())  # its child waits for its input to end
        assert found.spill.held == 1
        found.remove()


class Disk:
    """What would be left of journals if the power failed now: what was synced last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.directory = directory
        self.syncs = 0
        self._sync = SpillFile.sync
        directory.mkdir(0o700)

        def sync(file: SpillFile, descriptor: int) -> bool:
            return self.sync(file, descriptor)

        # A real power loss cannot be had: what it leaves is what was in the file before each sync.
        monkeypatch.setattr(SpillFile, "sync", sync)

    def sync(self, file: SpillFile, descriptor: int) -> bool:
        before = file.path.read_bytes()
        done = self._sync(file, descriptor)
        self.syncs += 1
        image = self.directory / f"{file.path.name}.next"
        image.write_bytes(before)
        image.replace(self.directory / file.path.name)  # others look while it is written
        return done

    def actors(self) -> list[int]:
        """Of the records on it."""
        found = []
        for path in journals(self.directory):
            spill = Spill(1_000_000)
            spill.replay(path.read_bytes())
            while spill.records:
                spill.flight = 0
                taken, _ = spill.send(records_max=1000, bytes_max=1_000_000)
                found += [int(json.loads(line_of(one))["actor"]["id"]) for one in taken]
        return found


def unheard(directory: Path, **limits: int) -> Emitter:
    """An emitter whose collector is away."""
    spill = directory / "spill"
    spill.mkdir(0o700)
    return Emitter(
        {"service.name": "test"}, socket_path=str(directory / "nobody.sock"),
        limits=EmitterLimits(**limits), spill_dir=spill,
    )  # fmt: skip


def test_who_waits_finds_its_record_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, tmp_path / "disk")
    emitter = unheard(tmp_path, audit_wait_ms=60_000, audit_sync_ms=3_600_000)
    for number in range(5):
        assert emitter.emit_record(audit(number))
        assert disk.actors() == list(range(number + 1))
    emitter.close(0)


def test_many_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, tmp_path / "disk")
    emitter = unheard(tmp_path, audit_wait_ms=60_000)
    missing: list[int] = []

    def say(first: int) -> None:
        for number in range(first, first + 10):
            emitter.emit_record(audit(number))
            if number not in disk.actors():
                missing.append(number)

    threads = [threading.Thread(target=say, args=(100 * one,)) for one in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missing == []
    assert disk.syncs < 80
    emitter.close(0)


def test_what_nobody_waits_for_is_synced_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, tmp_path / "disk")
    emitter = unheard(tmp_path, audit_sync_ms=500)
    for number in range(50):
        emitter.emit_record(audit(number))
    wait_until(lambda: len(disk.actors()) == 50, what="the last sync")
    assert disk.syncs < 50
    emitter.close(0)


def test_a_process_that_ends_leaves_no_journal(tmp_path: Path, collector: CollectorSocket) -> None:
    spill = tmp_path / "spill"
    spill.mkdir(0o700)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(collector.path)],
        env=os.environ | {"PENSTOCK_SPILL_DIR": str(spill)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert actors(collector) == list(range(200))
    assert journals(spill) == []


def test_a_fork_while_every_lock_is_held_leaves_both_sides_working(
    tmp_path: Path, collector: CollectorSocket
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir(0o700)
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(collector.path)],
        env=os.environ | {"PENSTOCK_SPILL_DIR": str(spill)},
        capture_output=True, text=True, timeout=80, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\nTrue True\n", "")
    assert sorted(actors(collector)) == [1, 2, 3]
    assert journals(spill) == []
