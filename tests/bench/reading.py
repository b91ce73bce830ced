"""f. Reading back what was stored, one reader and eight, against `cat file | socket`.

The same bytes, the segment files of logd's stream, are sent over the loopback interface without any
protocol, by sendfile and by read and send: that is the limit. logd is read twice: frames off the
socket, counted and discarded, as the raw copy is; and by its client, which checks every CRC and
hands out Arrow batches. The peer is an ordered JetStream consumer on a raw socket: nats-py's own
consumer would be what is measured. All files are in the page cache.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench
from tests.bench.systems import COMMIT, DEFAULT, JetStream, LogdStream, System, running, settle
from tests.bench.worker import Run, run_workers, workers
from tests.support.processes import free_port

TITLE = "reading back 256 B records"
SIZE_BYTES = 256
FILLING = "patient"
"""The kind of publisher that fills a log which is then read or recovered."""
FRAMES = "logd frames"
CLIENT = "logd client, Arrow"
CONSUMER = "JetStream consumer"
SENDFILE = "raw sendfile"
READ_SEND = "raw read and send"
ORDER = (FRAMES, SENDFILE, CLIENT, CONSUMER, READ_SEND)
COMPARE = {FRAMES: (CONSUMER,), CLIENT: (CONSUMER,)}


def read_job(system: System, count: int, kind: str = "frames") -> dict[str, Any]:
    """How a reader reads all records of a system."""
    if isinstance(system, LogdStream):
        address = system.logd.fetch
        return {"kind": kind, "address": address, "stream": system.stream, "count": count}
    assert isinstance(system, JetStream)
    return {
        "kind": "consumer",
        "address": system.url,
        "stream": system.stream,
        "subject": system.subject,
        "count": count,
    }


def run(bench: Bench) -> Iterator[Case]:
    """Fill both once, then read in turns."""
    with running(bench.directory / "f", (COMMIT, DEFAULT), allow_batched=True) as systems:
        ours, peer = systems
        assert isinstance(ours, LogdStream)
        bench.progress.step("f: filling")
        count = bench.pick(2_000_000, 200_000, 4_000)
        fill(bench, ours, count)
        bench.publish("fast", peer, count=count // 4, size_bytes=SIZE_BYTES)
        settle(systems)
        files = sorted(ours.logd.data_dir.glob("streams/*/0/*.log"))
        with _raw_copies(files) as copies:
            for readers in bench.some((1, 8)):
                yield from _read(bench, (ours, peer), copies, readers)


def fill(bench: Bench, system: System, count: int) -> None:
    """Store records in a logd, whatever happens to it meanwhile; how fast is not measured."""
    batch = min(count, 1000)
    job = {"count": count, "size_bytes": SIZE_BYTES, "window": 8, "batch": batch}
    bench.publish(FILLING, system, **job)


def _read(
    bench: Bench, systems: tuple[System, System], copies: dict[str, str], readers: int
) -> list[Case]:
    ours, peer = systems
    who = f"{readers} reader{'s' * (readers > 1)}"
    against = (SENDFILE, READ_SEND)
    speed = Case(
        "f", f"{who}, bytes of files", "MiB/s",
        compare={FRAMES: against}, aims=(Aim(FRAMES, SENDFILE, 0.8),),
    )  # fmt: skip
    records = Case("f", f"{who}, records", "records/s", compare=COMPARE)
    jobs = {
        FRAMES: read_job(ours, ours.stored()),
        CLIENT: read_job(ours, ours.stored(), "client"),
        CONSUMER: read_job(peer, peer.stored()),
        SENDFILE: {"kind": "raw", "address": copies["sendfile"]},
        READ_SEND: {"kind": "raw", "address": copies["read and send"]},
    }
    for name, counts in bench.turns(f"f, {who}", ORDER):
        ran = run_workers("reader", [jobs[name] | {"number": n} for n in range(readers)])
        if counts:
            _add(name, ran, speed, records)
    return [speed, records]


def _add(name: str, run: Run, speed: Case, records: Case) -> None:
    if name in (FRAMES, SENDFILE, READ_SEND):
        speed.add(name, run.rate("bytes") / 2**20)
    if name in (FRAMES, CLIENT, CONSUMER):
        records.add(name, run.rate("records"))


@contextmanager
def _raw_copies(files: list[Path]) -> Iterator[dict[str, str]]:
    """Both ways of sending the files; their addresses."""
    ways = {way: free_port() for way in ("sendfile", "read and send")}
    jobs = [
        {"way": way, "port": port, "files": [str(path) for path in files]}
        for way, port in ways.items()
    ]
    with workers("raw_copy", jobs, timeout_s=3600) as copies:
        copies.go()
        yield {way: f"127.0.0.1:{port}" for way, port in ways.items()}
