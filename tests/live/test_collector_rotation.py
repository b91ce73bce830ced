"""Files under every kind of rotation, and the formats and events that span lines."""

import gzip
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.limits import HEAD_BYTES, PENDING_BYTES_MAX
from tests.support.certificates import Authority
from tests.support.collector import Collector, bodies
from tests.support.fake_kubernetes import FakeKubernetes, pod
from tests.support.logd import Logd
from tests.support.mounts import mounted
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

FLOOD_BYTES = 30_000
BURST_BYTES = 100 << 20
FLOOD_LINES = PENDING_BYTES_MAX // FLOOD_BYTES + 100
STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]


RUNNING, STOPPED, BACK_PRESSURED = "running", "stopped", "back-pressured"
STAMP = "2026-01-02T03:04:05.123456789Z"


def source(pattern: Path, **more: Any) -> dict[str, Any]:
    return {
        "type": "file", "include": [f"{pattern}*"], "service": "app", "poll_ms": 10,
        "rotate_wait_s": 0.2, "join_timeout_s": 0.2,
    } | more  # fmt: skip


def numbered(first: int, end: int) -> str:
    return "".join(f"line {number}\n" for number in range(first, end))


def padded(first: int, end: int) -> str:
    """Few of them are more than what is compared of a head."""
    padding = "x" * (HEAD_BYTES // 4)
    return "".join(f"line {number} {padding}\n" for number in range(first, end))


def cri(first: int, end: int) -> str:
    return "".join(f"{STAMP} stdout F line {number}\n" for number in range(first, end))


def rename(path: Path) -> None:
    path.rename(f"{path}.1")


def rename_and_create(path: Path) -> None:
    rename(path)
    path.write_text(numbered(10, 20))


def rename_chain(path: Path) -> None:
    rename(path)
    path.write_text(numbered(10, 15))
    Path(f"{path}.1").rename(f"{path}.2")
    rename(path)
    path.write_text(numbered(15, 20))


def compress(path: Path) -> None:
    """As logrotate does: renamed first, then replaced by what is compressed."""
    renamed = path.rename(f"{path}.1")
    with gzip.open(f"{path}.1.gz", "wb") as packed:
        packed.write(renamed.read_bytes())
    renamed.unlink()


def swap_symlink(path: Path) -> None:
    target = path.with_name("second")
    target.write_text(numbered(10, 20))
    path.unlink()
    path.symlink_to(target)


def copy_and_truncate(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    os.truncate(path, 0)


def truncate_shorter(path: Path) -> None:
    path.write_text(numbered(20, 25))


def truncate_to_same_size(path: Path) -> None:
    path.write_text("".join(reversed(numbered(0, 10).splitlines(keepends=True))))


def truncate_longer(path: Path) -> None:
    with path.open("w") as file:
        file.write(numbered(10, 200))


def empty_then_grow(path: Path) -> None:
    rename(path)
    path.touch()


def delete_while_open(path: Path) -> None:
    path.unlink()  # the collector may hold it open; else its number is free again


def take_inode(path: Path) -> None:
    """Another file has the number of one that is gone; where that cannot be had, in its place."""
    inode = path.stat().st_ino
    path.unlink()
    others = [path.with_name(f"other-{number}") for number in range(64)]
    for other in others:
        other.touch()
        if other.stat().st_ino == inode:
            other.rename(path)
            break
    else:
        path.touch()
    for other in others:
        other.unlink(missing_ok=True)


def reuse_inode(path: Path) -> None:
    take_inode(path)
    path.write_text(numbered(20, 40))


def reuse_inode_with_equal_head(path: Path) -> None:
    take_inode(path)
    path.write_text(padded(0, 8) + padded(20, 40))


def copy_truncate_and_regrow_with_equal_head(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.write_text(padded(0, 8) + padded(20, 40))


def copy_truncate_and_regrow_to_same_size_with_equal_head(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.write_text(padded(0, 8) + padded(2, 4))


def same_head(path: Path) -> None:
    rename(path)
    path.write_text(numbered(0, 10))


def same_head_beyond_what_is_compared(path: Path) -> None:
    """Both files begin with what is known of the first; they differ only after it."""
    with path.open("a") as file:
        file.write(numbered(10, 300))
    assert path.stat().st_size > HEAD_BYTES
    rename(path)
    path.write_text(numbered(0, 300) + numbered(400, 410))


def split_line(path: Path) -> None:
    """A line's writer has the file, and ends the line after the file was renamed."""
    with path.open("a", buffering=1) as writer:
        writer.write("line 1")
        writer.flush()
        rename(path)
        writer.write("0\nline 11\n")


def container_line_without_end(path: Path) -> None:
    """A partial line was the last; what ends it is in no file."""
    with path.open("a") as file:
        file.write(f"{STAMP} stdout P line 10\n")
    rename(path)
    path.write_text(cri(11, 15))


@dataclass(frozen=True)
class Rotation:
    """One kind.

    Attributes:
        rotate: What is done with a file of ten lines, all of them read.
        expected: The lines that are read in all.
        unread_in: States in which lines written just before are not lost either. What is written
            before a file is truncated in place is gone for everybody.
        more: Of the source.
        lines: Those of two numbers, as they stand in the file.
    """

    rotate: Callable[[Path], None]
    expected: list[int]
    unread_in: tuple[str, ...] = (RUNNING, STOPPED, BACK_PRESSURED)
    more: dict[str, Any] = field(default_factory=dict)
    lines: Callable[[int, int], str] = numbered

    @property
    def name(self) -> str:
        return self.rotate.__name__


OPEN = (RUNNING, BACK_PRESSURED)
"""A process that holds a file open reads it though its name is gone."""
ROTATIONS = [
    Rotation(rename, [*range(10)]),
    Rotation(rename_and_create, [*range(20)]),
    Rotation(rename_chain, [*range(20)]),
    Rotation(compress, [*range(10)]),
    Rotation(swap_symlink, [*range(20)]),
    Rotation(copy_and_truncate, [*range(10)], ()),
    Rotation(truncate_shorter, [*range(10), *range(20, 25)], ()),
    Rotation(truncate_to_same_size, sorted([*range(10)] * 2), ()),
    Rotation(truncate_longer, [*range(200)], ()),
    Rotation(empty_then_grow, [*range(10)]),
    Rotation(delete_while_open, [*range(10)], OPEN),
    Rotation(reuse_inode, [*range(10), *range(20, 40)], OPEN),
    Rotation(same_head, sorted([*range(10)] * 2), ()),
    Rotation(
        same_head_beyond_what_is_compared, sorted([*range(300), *range(300), *range(400, 410)]), ()
    ),
    Rotation(split_line, [*range(12)], more={"rotate_wait_s": 5}),
    Rotation(container_line_without_end, [*range(15)], (), more={"format": "cri"}, lines=cri),
    Rotation(
        reuse_inode_with_equal_head,
        sorted([*range(10), *range(8), *range(20, 40)]),
        OPEN,
        lines=padded,
    ),
    Rotation(
        copy_truncate_and_regrow_with_equal_head,
        sorted([*range(10), *range(8), *range(20, 40)]),
        (),
        lines=padded,
    ),
    Rotation(
        copy_truncate_and_regrow_to_same_size_with_equal_head,
        sorted([*range(10), *range(8), 2, 3]),
        (),
        lines=padded,
    ),
]


def read_so_far(logd: Logd) -> dict[str, list[int]]:
    """Numbers of the lines by service."""
    found: dict[str, list[int]] = {}
    for value in logd.values("logs"):
        record = json.loads(value or b"")
        number = int(record["body"].split(maxsplit=2)[1])
        found.setdefault(record["resource"]["service.name"], []).append(number)
    return {service: sorted(numbers) for service, numbers in found.items()}


def expect(logd: Logd, expected: dict[str, list[int]]) -> None:
    """Every service's lines are there, each as often as it should."""
    found: dict[str, list[int]] = {}

    def is_there() -> bool:
        found.update(read_so_far(logd))
        return all(found.get(service) == numbers for service, numbers in expected.items())

    try:
        wait_until(is_there)
    except AssertionError:
        assert {service: found.get(service) for service in expected} == expected


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


def prepare(directory: Path, rotation: Rotation) -> Path:
    """Ten lines in a file of its own directory."""
    directory.mkdir()
    path = directory / "app.log"
    if rotation.rotate is swap_symlink:
        path.with_name("first").write_text(numbered(0, 10))
        path.symlink_to(path.with_name("first"))
    else:
        path.write_text(rotation.lines(0, 10))
    return path


@pytest.mark.parametrize("state", [RUNNING, STOPPED, BACK_PRESSURED])
def test_every_rotation_is_read_once_and_whole(tmp_path: Path, nats_url: str, state: str) -> None:
    """All kinds at once, each in a directory of its own, then ten more lines in each file.

    Content that was replaced while nobody looked is gone for everyone; so is a file that nobody
    has open any more. Both were read before.
    """
    files = {one.name: prepare(tmp_path / one.name, one) for one in ROTATIONS}
    sources = [
        source(files[one.name], name=one.name, service=one.name, **one.more) for one in ROTATIONS
    ]
    sources.append(source(tmp_path / "flood.log", name="flood", service="flood"))
    stopped = state == STOPPED
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):
        wait_until(lambda: len(logd.values("logs")) == 10 * len(ROTATIONS))
        wait_until(collector.is_idle)
        if stopped:
            assert collector.daemon.stop() == 0
        paused = reading_paused(tmp_path, logd, collector)
        with paused if state == BACK_PRESSURED else nullcontext():
            for rotation in ROTATIONS:
                path = files[rotation.name]
                if state in rotation.unread_in:
                    with path.open("a") as file:
                        file.write(rotation.lines(500, 505))
                rotation.rotate(path)
        if stopped:
            collector.daemon.start()
        expected = {
            one.name: sorted(one.expected + [*range(500, 505)] * (state in one.unread_in))
            for one in ROTATIONS
        }
        expect(logd, expected)
        for rotation in ROTATIONS:
            with files[rotation.name].open("a") as file:
                file.write(rotation.lines(1000, 1010))
            expected[rotation.name] += range(1000, 1010)
        expect(logd, expected)
        wait_until(collector.is_idle)


def test_a_burst_is_read_whole_though_its_file_is_renamed_and_removed(
    tmp_path: Path, nats_url: str
) -> None:
    """Far more than is read in the time that a rotated file is waited for."""
    path, lines = tmp_path / "app.log", BURST_BYTES // FLOOD_BYTES
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [source(path, rotate_wait_s=0)]) as collector,
    ):
        path.write_text(numbered(0, 1))
        expect(logd, {"app": [0]})
        with path.open("a") as file:
            for number in range(1, lines):
                file.write(f"line {number} {'x' * FLOOD_BYTES}\n")
        path.rename(f"{path}.1").unlink()
        path.write_text(numbered(lines, lines + 1))
        wait_until(lambda: collector.account("file").get("delivered") == lines + 1, within_s=50)
        assert read_so_far(logd) == {"app": [*range(lines + 1)]}


def test_container_formats_and_events_of_several_lines(tmp_path: Path, nats_url: str) -> None:
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
                file.write(json.dumps({"log": text, "stream": "stderr", "time": STAMP}) + "\n")
        cri.write_text(f"{STAMP} stdout P be\n{STAMP} stderr F odd\n{STAMP} stdout F gin\n")
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


def test_a_last_line_without_its_newline_is_delivered_and_its_rest_is_marked(
    tmp_path: Path, nats_url: str
) -> None:
    plain, stack, patient = (tmp_path / name for name in ("p.log", "s.log", "w.log"))
    sources = [
        source(plain, name="plain", flush_partial_s=0.2),
        source(stack, name="stack", flush_partial_s=0.2, multiline={"continuation": r"^\s"}),
        source(patient, name="patient", flush_partial_s=None),
    ]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):

        def found() -> dict[str, dict[str, Any]]:
            records = (json.loads(value or b"") for value in logd.values("logs"))
            return {record["body"]: record for record in records}

        plain.write_text("whole\nbegin")
        stack.write_text("Error\n  at a\n  at b")
        patient.write_text("waits")
        wait_until(lambda: set(found()) == {"whole", "begin", "Error\n  at a\n  at b"})
        assert collector.daemon.stage("source/file:plain")["detail"]["partial_bytes"] == 0
        assert collector.daemon.stage("source/file:patient")["detail"]["partial_bytes"] == 5
        with plain.open("a") as file:
            file.write("ning\nnext\n")
        wait_until(lambda: {"ning", "next"} <= set(found()))
        marked = {b: r["attributes"].get("log.record.continued") for b, r in found().items()}
        assert marked.pop("ning") is True
        assert set(marked.values()) == {None}
        with plain.open("a") as file:
            file.write("two")
        wait_until(lambda: "two" in found())
        wait_until(collector.is_idle)
        collector.restart()
        with plain.open("a") as file:
            file.write(" halves\n")
        wait_until(lambda: " halves" in found())
        assert found()[" halves"]["attributes"]["log.record.continued"] is True
        with patient.open("a") as file:
            file.write(" long\n")
        wait_until(lambda: "waits long" in found())
        assert len(logd.values("logs")) == 8


@pytest.mark.parametrize("how", ["reload", "restart"])
@pytest.mark.parametrize("narrowed", [{"exclude": ["*secret*"]}, {"include": ["app.log"]}])
def test_a_file_that_no_pattern_names_any_more_is_let_go(
    tmp_path: Path, nats_url: str, how: str, narrowed: dict[str, list[str]]
) -> None:
    """One that rotation renamed meanwhile is read to its end."""
    logs = tmp_path / "logs"
    logs.mkdir()
    app, secret = logs / "app.log", logs / "secret.log"
    for path in (app, secret):
        path.write_text(f"{path.stem} before\n")
    section = source(logs, include=[f"{logs}/*.log"])
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [section]) as collector,
    ):

        def seen() -> list[str]:
            return sorted(bodies(logd.values("logs")))

        wait_until(lambda: seen() == ["app before", "secret before"])
        wait_until(collector.is_idle)
        section |= {
            key: [pattern if "*" in pattern else f"{logs}/{pattern}" for pattern in patterns]
            for key, patterns in narrowed.items()
        }
        collector.daemon.write_config()

        def go_on() -> None:
            with secret.open("a") as file:
                file.write("secret after\n")
            with app.open("a") as file:
                file.write("app renamed\n")
            app.rename(logs / "app.log.1")
            app.write_text("app after\n")

        if how == "reload":
            os.kill(collector.daemon.pid, signal.SIGHUP)
            wait_until(lambda: collector.daemon.status()["info"]["reloads"]["generation"] == 2)
            go_on()
        else:
            assert collector.daemon.stop() == 0
            go_on()
            collector.daemon.start()
        wait_until(lambda: {"app renamed", "app after"} <= set(seen()))
        wait_until(collector.is_idle)
        collector.restart()
        with app.open("a") as file:
            file.write("app last\n")
        wait_until(lambda: "app last" in seen())
        assert "secret after" not in seen()
        assert len(seen()) == 5
        assert "no pattern of the source names it" in collector.daemon.log()


def test_after_a_restart_rotated_files_are_read_oldest_first(tmp_path: Path, nats_url: str) -> None:
    path = tmp_path / "app.log"
    path.write_text(numbered(0, 1))
    padding = "x" * 1000
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [source(path)]) as collector,
    ):
        wait_until(lambda: len(logd.values("logs")) == 1)
        assert collector.daemon.stop() == 0
        number = 1
        for older in (3, 2, 1, 0):
            target = Path(f"{path}.{older}") if older else path
            if older == 3:
                path.rename(target)
            with target.open("a") as file:
                for _ in range(1000):  # several reads of each
                    file.write(f"line {number} {padding}\n")
                    number += 1
            os.utime(target, (1_700_000_000 - older, 1_700_000_000 - older))
        collector.daemon.start()
        wait_until(lambda: len(logd.values("logs")) == number)
        order = [int(body.split()[1]) for body in bodies(logd.values("logs"))]
        assert order == [*range(number)]


def test_long_lines_other_encodings_and_what_docker_adds_arrive(
    tmp_path: Path, nats_url: str
) -> None:
    long, wide, docker = (tmp_path / name for name in ("l.log", "w.log", "d.log"))
    sources = [
        source(long, name="long", max_line_bytes=256 << 10),
        source(wide, name="wide", encoding="utf-16"),
        source(docker, name="docker", format="docker"),
    ]
    texts = ["a" * 100_000, "b" * 300_000, json.dumps({"level": "error", "msg": "x" * 40_000})]
    long.write_text("".join(f"{text}\n" for text in texts))
    with gzip.open(tmp_path / "l.log.1.gz", "wt") as packed:
        packed.write("never read\n")
    wide.write_text("größer\nnächste\n", encoding="utf-16")
    attrs = {"tag": "web", "team": "shop"}
    line = {"log": "hi\n", "stream": "stdout", "attrs": attrs, "time": STAMP}
    docker.write_text(json.dumps(line) + "\n")
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):
        wait_until(lambda: len(logd.values("logs")) == 4 + 8 + 1 + 2 + 1)
        records = [json.loads(value or b"") for value in logd.values("logs")]
        found = {record["body"]: record for record in records}
        parts = [record for record in records if record["body"][:1] in ("a", "b")]
        assert "".join(record["body"] for record in parts) == texts[0] + texts[1][: 256 << 10]
        continued = [record["attributes"].get("log.record.continued", False) for record in parts]
        assert continued == [False] + [True] * 3 + [False] + [True] * 7
        cut = [record["attributes"].get("log.record.truncated", False) for record in parts]
        assert cut == [False] * 11 + [True]
        (taken_apart,) = [record for record in records if record["severity_text"] == "ERROR"]
        assert taken_apart["attributes"]["log.record.truncated"] is True
        assert {"größer", "nächste"} <= set(found)
        assert found["hi"]["attributes"]["docker.attrs.team"] == "shop"
        detail = collector.daemon.stage("source/file:long")["detail"]
        assert (detail["lines_truncated"], detail["lines_split"]) == (1, 2)
        assert detail["compressed_not_read"] == 1
        assert "l.log.1.gz" in collector.daemon.log()


def test_containers_files_carry_what_kubernetes_says_of_their_pods(
    tmp_path: Path, nats_url: str
) -> None:
    """The API server is a fake made from its documentation; everything else is real."""
    uid = "0f3b5e0c-62f7-4a4b-8b0e-2b0b5a1c9d11"
    authority = Authority(tmp_path / "ca")
    token = tmp_path / "token"
    token.write_text("secret")
    path = tmp_path / f"pods/shop_cart-7f9_{uid}/app/0.log"
    path.parent.mkdir(parents=True)
    path.write_text(f"{STAMP} stdout F first\n")
    with FakeKubernetes(authority.sign("server", "IP:127.0.0.1"), "secret") as server:
        server.pods = [pod("cart-7f9", uid, node="host-1", labels={"tier": "web"})]
        asked = {"server": server.url, "token_file": str(token), "ca_file": str(authority.cert)}
        section = source(
            tmp_path / "pods",
            include=[f"{tmp_path}/pods/*/*/*.log"],
            format="cri",
            service="from_container",
            kubernetes=asked,
        )
        with (
            Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
            Collector(tmp_path / "collector", nats_url, [section]),
        ):
            wait_until(lambda: len(logd.values("logs")) == 1)
            resource = json.loads(logd.values("logs")[0] or b"")["resource"]
    assert resource.pop("host.name")
    assert resource == {
        "service.name": "app",
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "cart-7f9",
        "k8s.pod.uid": uid,
        "k8s.container.name": "app",
        "k8s.container.restart_count": 0,
        "k8s.node.name": "host-1",
        "k8s.pod.label.tier": "web",
        "container.image.name": "shop/app",
        "container.image.tags": ["1"],
    }


def test_a_mount_whose_name_is_no_text_keeps_no_file_from_being_read(
    tmp_path: Path, nats_url: str
) -> None:
    path = tmp_path / "app.log"
    path.write_text(numbered(0, 10))
    with (
        mounted(tmp_path / os.fsdecode(b"Gr\xf6\xdfe"), "-t", "tmpfs", "tmpfs"),
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [source(path)]) as collector,
    ):
        wait_until(lambda: collector.account("file").get("delivered") == 10)
        with path.open("a") as file:
            file.write(numbered(10, 20))
        wait_until(lambda: collector.account("file").get("delivered") == 20)
        assert bodies(logd.values("logs")) == [f"line {number}" for number in range(20)]
        assert collector.daemon.stage("source/file")["detail"].get("failures", 0) == 0
