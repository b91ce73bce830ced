"""Files under every kind of rotation, and the formats and events that span lines."""

import gzip
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.limits import PENDING_BYTES_MAX
from tests.support.collector import Collector, bodies
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

FLOOD_BYTES = 30_000
FLOOD_LINES = PENDING_BYTES_MAX // FLOOD_BYTES + 100
STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]


def source(pattern: Path, **more: Any) -> dict[str, Any]:
    return {
        "type": "file", "include": [f"{pattern}*"], "service": "app", "poll_ms": 10,
        "rotate_wait_s": 0.2, "join_timeout_s": 0.2,
    } | more  # fmt: skip


def numbered(first: int, end: int) -> str:
    return "".join(f"line {number}\n" for number in range(first, end))


def rename(path: Path) -> None:
    path.rename(f"{path}.1")


def rename_chain(path: Path) -> None:
    rename(path)
    path.write_text(numbered(10, 15))
    Path(f"{path}.1").rename(f"{path}.2")
    rename(path)
    path.write_text(numbered(15, 20))


def compress(path: Path) -> None:
    with gzip.open(f"{path}.1.gz", "wb") as packed:
        packed.write(path.read_bytes())
    path.unlink()


def swap_symlink(path: Path) -> None:
    target = path.with_name("second")
    target.write_text(numbered(10, 20))
    path.unlink()
    path.symlink_to(target)


def truncate_longer(path: Path) -> None:
    with path.open("w") as file:
        file.write(numbered(10, 200))


def empty_then_grow(path: Path) -> None:
    rename(path)
    path.touch()


def reuse_inode(path: Path) -> None:
    path.unlink()  # the collector may hold it open; else its number is free again


def same_head(path: Path) -> None:
    rename(path)
    path.write_text(numbered(0, 10))


ROTATIONS: list[tuple[Callable[[Path], None], list[int]]] = [
    (rename, [*range(10)]),
    (rename_chain, [*range(20)]),
    (compress, [*range(10)]),
    (swap_symlink, [*range(20)]),
    (truncate_longer, [*range(200)]),
    (empty_then_grow, [*range(10)]),
    (reuse_inode, [*range(10)]),
    (same_head, sorted([*range(10)] * 2)),
]


def read_so_far(logd: Logd, service: str) -> list[int]:
    records = [json.loads(value or b"") for value in logd.values("logs")]
    return sorted(
        int(record["body"].split()[1])
        for record in records
        if record["resource"]["service.name"] == service
    )


@contextmanager
def reading_paused(directory: Path, logd: Logd, collector: Collector) -> Iterator[None]:
    """logd stands still, and as much waits for it as the collector reads: no file is read."""
    os.kill(logd.daemon.pid, signal.SIGSTOP)
    try:
        with (directory / "flood.log").open("w") as file:
            for number in range(FLOOD_LINES):
                file.write(f"line {number} {'x' * FLOOD_BYTES}\n")
        enough = PENDING_BYTES_MAX // FLOOD_BYTES
        wait_until(lambda: collector.account("flood").get("held", 0) >= enough - 10)
        yield
    finally:
        os.kill(logd.daemon.pid, signal.SIGCONT)


@pytest.mark.parametrize("state", ["running", "stopped", "back-pressured"])
def test_every_rotation_is_read_once_and_whole(tmp_path: Path, nats_url: str, state: str) -> None:
    """All kinds at once, each in a directory of its own, then ten more lines in each file.

    Content that was replaced while nobody looked is gone for everyone; so is a file that nobody
    has open any more. Both were read before.
    """
    files, sources = {}, []
    for rotate, _ in ROTATIONS:
        directory = tmp_path / rotate.__name__
        directory.mkdir()
        path = files[rotate] = directory / "app.log"
        if rotate is swap_symlink:
            path.with_name("first").write_text(numbered(0, 10))
            path.symlink_to(path.with_name("first"))
        else:
            path.write_text(numbered(0, 10))
        sources.append(source(path, name=rotate.__name__, service=rotate.__name__))
    sources.append(source(tmp_path / "flood.log", name="flood", service="flood"))
    stopped = state == "stopped"
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):
        wait_until(lambda: len(logd.values("logs")) == 10 * len(ROTATIONS))
        wait_until(collector.is_idle)
        if stopped:
            assert collector.daemon.stop() == 0
        paused = reading_paused(tmp_path, logd, collector)
        with paused if state == "back-pressured" else nullcontext():
            for rotate, path in files.items():
                rotate(path)
        if stopped:
            collector.daemon.start()
        for rotate, expected in ROTATIONS:
            name = rotate.__name__
            wait_until(lambda n=name, e=expected: read_so_far(logd, n) == e, what=name)  # type: ignore[misc]
        for path in files.values():
            with path.open("a") as file:
                file.write(numbered(1000, 1010))
        for rotate, expected in ROTATIONS:
            name, all_ = rotate.__name__, [*expected, *range(1000, 1010)]
            wait_until(lambda n=name, e=all_: read_so_far(logd, n) == e, what=name)  # type: ignore[misc]
        wait_until(collector.is_idle)


def test_container_formats_and_events_of_several_lines(tmp_path: Path, nats_url: str) -> None:
    stamp = "2026-01-02T03:04:05.123456789Z"
    docker, cri, stack = (tmp_path / name for name in ("d.log", "c.log", "s.log"))
    sources = [
        source(docker, name="docker", format="docker"),
        source(cri, name="cri", format="cri"),
        source(stack, name="stack", multiline={"continuation": r"^\s"}),
    ]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):
        long = "x" * 20_000
        with docker.open("w") as file:
            for text in (long[:16384], f"{long[16384:]}\n"):
                file.write(json.dumps({"log": text, "stream": "stderr", "time": stamp}) + "\n")
        cri.write_text(f"{stamp} stdout P be\n{stamp} stderr F odd\n{stamp} stdout F gin\n")
        stack.write_text("Error\n  at a\n")
        wait_until(lambda: len(logd.values("logs")) == 4)
        found = {r["body"]: r for r in (json.loads(v or b"") for v in logd.values("logs"))}
        assert set(found) == {long, "begin", "odd", "Error\n  at a"}
        assert found[long]["attributes"]["log.iostream"] == "stderr"
        assert found["begin"]["time_unix_nano"] == 1_767_323_045_123_456_789

        wait_until(collector.is_idle)
        collector.restart(kill=True)  # within an event: its beginning was not acknowledged
        with stack.open("a") as file:
            file.write("Next\n  at b\n")
            file.flush()
            os.fsync(file.fileno())
            file.write("Last\n")
        wait_until(lambda: {"Next\n  at b", "Last"} <= set(bodies(logd.values("logs"))))
        assert len(logd.values("logs")) == 6
