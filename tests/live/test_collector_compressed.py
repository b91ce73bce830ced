"""Files that rotation compressed before they were read, which are read on in what it left."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.collector import Collector
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]


def source(path: Path, name: str) -> dict[str, Any]:
    return {
        "type": "file", "name": name, "include": [f"{path}*"], "exclude": ["*.gz"],
        "service": name, "poll_ms": 10, "rotate_wait_s": 0.2,
    }  # fmt: skip


def numbered(first: int, end: int) -> str:
    return "".join(f"line {number}\n" for number in range(first, end))


def read_so_far(logd: Logd) -> dict[str, list[int]]:
    """Numbers of the lines by service."""
    found: dict[str, list[int]] = {}
    for value in logd.values("logs"):
        record = json.loads(value or b"")
        number = int(record["body"].split()[1])
        found.setdefault(record["resource"]["service.name"], []).append(number)
    return {service: sorted(numbers) for service, numbers in found.items()}


def expect(logd: Logd, expected: dict[str, list[int]]) -> None:
    """As many records are there as should be, and then each as often as it should."""
    count = sum(map(len, expected.values()))
    wait_until(lambda: len(logd.values("logs")) >= count)
    assert read_so_far(logd) == expected


def gzipped(path: Path, name: str) -> Path:
    """`gzip` has been at work."""
    path = path.rename(path.with_name(name))
    subprocess.run(["gzip", str(path)], check=True)
    return path.with_name(f"{name}.gz")


def test_what_was_compressed_unread_is_read_once_through_kills(
    tmp_path: Path, nats_url: str
) -> None:
    """Rotated twice while nobody looked: what was read of the first is not read again.

    One whose compression was cut short is waited for, costs the others nothing, and is read when
    it is whole. One that was read to its end is not read again.
    """
    names = ("twice", "short", "done")
    files = {name: tmp_path / name / "app.log" for name in names}
    sources = [source(path, name) for name, path in files.items()]
    for path in files.values():
        path.parent.mkdir()
        path.write_text(numbered(0, 2000))
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):
        expect(logd, {name: [*range(2000)] for name in names})
        wait_until(collector.is_idle)
        assert collector.daemon.stop() == 0
        for name in ("twice", "short"):
            with files[name].open("a") as file:
                file.write(numbered(2000, 12_000))
        gzipped(files["twice"], "app.log.2")
        files["twice"].write_text(numbered(12_000, 12_010))
        gzipped(files["twice"], "app.log.1")
        files["twice"].write_text(numbered(12_010, 12_020))
        gzipped(files["done"], "app.log.1")
        cut = gzipped(files["short"], "app.log.1")
        whole = cut.read_bytes()
        cut.write_bytes(whole[: len(whole) // 2])
        files["short"].write_text(numbered(12_000, 12_010))
        collector.daemon.start()
        wait_until(lambda: collector.account("twice").get("delivered", 0) > 0)
        collector.restart(kill=True)
        never_read = range(12_000, 12_010)  # of a file that nobody knew before it was compressed
        expected = {
            "twice": [n for n in range(12_020) if n not in never_read],
            "short": [*range(2000), *never_read],
            "done": [*range(2000)],
        }
        expect(logd, expected)
        wait_until(lambda: detail(collector, "short").get("compressed_refused") == 1)
        assert "compressed_file_unreadable" in collector.daemon.log()
        cut.write_bytes(whole)
        expected["short"] = [*range(12_010)]
        expect(logd, expected)
        wait_until(collector.is_idle)
        collector.restart()
        for name, path in files.items():
            with path.open("a") as file:
                file.write(numbered(70_000, 70_001))
            expected[name].append(70_000)
        expect(logd, expected)
        assert not any("compressed_read" in detail(collector, name) for name in names)


def test_an_old_one_with_the_same_first_line_is_not_read_again(
    tmp_path: Path, nats_url: str
) -> None:
    """That line is all that was read of the file that is gone."""
    path = tmp_path / "banner" / "app.log"
    path.parent.mkdir()
    path.write_text(numbered(0, 1))
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [source(path, "banner")]) as collector,
    ):
        expect(logd, {"banner": [0]})
        wait_until(collector.is_idle)
        assert collector.daemon.stop() == 0
        with path.open("a") as file:
            file.write(numbered(1, 10))
        gzipped(path, "app.log.1")
        path.write_text(numbered(0, 9000))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        gzipped(path, "app.log.7")
        collector.daemon.start()
        expect(logd, {"banner": [*range(10)]})
        wait_until(collector.is_idle)
        assert detail(collector, "banner")["compressed_read"] == 1
        expect(logd, {"banner": [*range(10)]})


def detail(collector: Collector, name: str) -> dict[str, Any]:
    """A file source's counts."""
    found: dict[str, Any] = collector.daemon.stage(f"source/file:{name}")["detail"]
    return found
