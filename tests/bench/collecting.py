"""p, q, r, w. Through a collector into logd, with validation and the search for secrets on.

What comes in is fixed before the clock starts; it stops when logd has acknowledged the last record.
Senders are one thread of this process with everything encoded before, so most of the machine is the
collector's, nats-server's and logd's. CPU time and memory are the collector's alone.

    p  one file of JSON lines as structured loggers write them, then one of plain lines, then one of
       eleven well-known formats in turns, then one of each; the peers are rsyslogd and syslog-ng,
       where they can be had, from file to file; then with a filter that drops each tenth line;
       then 3,000 files to which nothing is written
    q  OTLP over gRPC, protobuf, requests of 512 log records, 8 in flight, each acknowledged; then
       the records of `tests.bench.protocol_bodies` by each protocol of `tests.bench.senders`
    r  Fluent forward, PackedForward chunks of 512 records, 8 in flight, each acknowledged
    w  the same into a spool from which nothing leaves, then kill -9 and start: until ready
    y  syslog as in RFC 5424 over TCP, counted frames; the same peers, to a file
    x  the spec library's framing: batches of 512 of m's records, of which 64 batches differ, 8 in
       flight, each acknowledged
"""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgpack
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.bench.agents import SYSLOG_NG, Agent, Took, agents, memory_mib
from tests.bench.figures import Aim, Case
from tests.bench.footprint import percents, wait_idle
from tests.bench.gate import make_lines
from tests.bench.harness import Bench
from tests.bench.log_formats import FORMATS, lines_of, lines_of_all
from tests.bench.machine import cpu_seconds
from tests.bench.protocol_bodies import BATCH, an_id, shop_event
from tests.bench.senders import DIFFERENT, FAMILIES, PROTOCOLS, Protocol, export, forward
from tests.support.collector import Collector
from tests.support.collector import encode_batch as encode_specs_batch
from tests.support.logd import Logd
from tests.support.nats_server import RestartableNatsServer
from tests.support.processes import free_port
from tests.support.waiting import wait_until

FILE_TITLE: Final = "a file through the collector into logd"
OTLP_TITLE: Final = "OTLP requests through the collector into logd"
SYSLOG_TITLE: Final = "syslog over TCP through the collector into logd"
SENDERS_TITLE: Final = "log records, spans and metric points, protocol by protocol"
RESTART_TITLE: Final = "a collector that starts with a full spool"
SPECS_TITLE: Final = "records of the spec library through the collector into logd"
FORWARD_TITLE: Final = "Fluent forward chunks through the collector into logd"
COLLECTOR: Final = "collector"
JOURNAL: Final = "drop journal"
NO_JOURNAL: Final = "no drop journal"
IDLE: Final = "idle"
_IN_FLIGHT: Final = 8
_ASK_S: Final = 0.25
"""Between looks at the status, which is made of CPU time of the collector."""
Feed = Callable[["Setting", int], None]
Peer = Callable[[Path, Feed, int], Took]
Lines = Callable[[int], Iterable[bytes]]
"""As many lines, each with its line break."""
NOBODY: Final[Mapping[str, Peer]] = {}


@dataclass(frozen=True, slots=True)
class Setting:
    """A collector that runs, where it takes records, and the log behind it."""

    collector: Collector
    logd_pid: int
    port: int
    file: Path


def run_files(bench: Bench) -> Iterator[Case]:
    """p. Aims: lines a second on one core, and syslog-ng's CPU time for plain lines."""
    found = agents()

    def cases(what: str, make: Lines, rate_min: float, cost_max: float | None) -> Iterator[Case]:
        peers: dict[str, Peer] = {name: partial(_copy, it, make) for name, it in found.items()}
        feed = partial(_feed_lines, make=make)
        yield from _cases(bench, "p", what, feed, peers, rate_min=rate_min, cost_max=cost_max)

    yield from cases("lines of 250 B", file_lines, 120_000, None)
    yield from cases("plain lines of 250 B", plain_lines, 110_000, 1.2)
    yield from cases("lines of eleven formats", lines_of_all, 110_000, None)
    yield _run_formats(bench)
    yield _run_drops(bench)
    yield _run_idle(bench)


def _run_formats(bench: Bench) -> Case:
    """Each format in a file of its own; the aim is that none of them is slow."""
    case = Case(
        "p", "lines of one format: for each second of the collector's CPU time", "records/s",
        aims=tuple(Aim(name, None, 70_000) for name in bench.some(FORMATS)),
    )  # fmt: skip
    count = bench.pick(200_000, 50_000, 2 * BATCH) // BATCH * BATCH
    for number, (name, counts) in enumerate(bench.turns("p, formats", bench.some(FORMATS))):
        directory = bench.directory / f"pf{number}"
        feed = partial(_feed_lines, make=partial(lines_of, name))
        took = _through_collector(directory, "p", count, feed)
        shutil.rmtree(directory)
        if counts:
            case.add(name, count / max(took.processor_s, 1e-3))
    return case


def _run_drops(bench: Bench) -> Case:
    """A filter drops each tenth line; with the drop journal and without."""
    settings = {JOURNAL: True, NO_JOURNAL: False}
    case = Case(
        "p", "each tenth line dropped: CPU time", "ms/10k records", "lower",
        compare={JOURNAL: (NO_JOURNAL,)}, aims=(Aim(JOURNAL, NO_JOURNAL, 1.02),),
    )  # fmt: skip
    count = bench.pick(400_000, 100_000, 2 * BATCH) // BATCH * BATCH // 10 * 10
    keep = {"type": "filter", "inputs": ["in"], "where": "severity_number >= 9"}
    for number, (name, counts) in enumerate(bench.turns("p, drops", tuple(settings))):
        directory = bench.directory / f"pd{number}"
        options = {"transforms": {"keep": keep}, "drops": {"enabled": settings[name]}}
        feed = partial(_feed_lines, make=_lines_of_two_levels)
        took = _through_collector(directory, "p", count, feed, count * 9 // 10, **options)
        shutil.rmtree(directory)
        if counts:
            case.add(name, took.processor_s / count * 1e7)
    return case


def _run_idle(bench: Bench) -> Case:
    """Files that were read to their ends, and to which nothing is written."""
    count = bench.pick(3_000, 3_000, 20)
    case = Case(
        "p", f"{count:,} files in which nothing happens", "% of a core", "lower",
        aims=(Aim(COLLECTOR, None, 1.0),),
    )  # fmt: skip
    directory = bench.directory / "pi"
    with _running(directory, IDLE) as setting:
        for number in range(count):
            _write_file(setting.file.with_name(f"app-{number}.log"), [plain_line(number)])
        wait_until(
            lambda: setting.collector.account("in").get("delivered", 0) == count,
            within_s=120,
            what=f"{count} files read",
        )
        wait_idle(bench.pick(20, 5, 1))
        for name, _ in bench.turns("p, idle", (COLLECTOR,), warm_up=False):
            (percent,) = percents([setting.collector.daemon.pid], bench.pick(20, 10, 1))
            case.add(name, percent)
    shutil.rmtree(directory)
    return case


def run_otlp(bench: Bench) -> Iterator[Case]:
    """q. Aim: 60,000 records a second on one core."""
    yield from _cases(bench, "q", "log records over gRPC", _feed_otlp, rate_min=60_000)


def run_senders(bench: Bench) -> Iterator[Case]:
    """q. Each protocol beside OTLP."""
    count = bench.pick(200_000, 50_000, 2 * BATCH) // BATCH * BATCH
    for what, protocols in FAMILIES.items():
        name = f"{what} by protocol: for each second of the collector's CPU time"
        case = Case("q", name, "records/s")
        for number, (system, counts) in enumerate(bench.turns(f"q, {what}", bench.some(protocols))):
            directory, protocol = bench.directory / f"qh{number}", protocols[system]
            bodies = [protocol.make(body) for body in range(min(count // BATCH, DIFFERENT))]
            feed = partial(_feed_protocol, protocol, bodies)
            took = _through_collector(directory, system, count, feed)
            shutil.rmtree(directory)
            if counts:
                case.add(system, count / max(took.processor_s, 1e-3))
        yield case


def run_forward(bench: Bench) -> Iterator[Case]:
    """r. Aim: 60,000 records a second on one core."""
    what = "records in forward chunks"
    yield from _cases(bench, "r", what, _feed_forward, rate_min=60_000)


def run_specs(bench: Bench) -> Iterator[Case]:
    """x. Aim: 60,000 records a second on one core."""
    what = "records of 600 B over a Unix socket"
    yield from _cases(bench, "x", what, _feed_specs, rate_min=60_000)


def run_syslog(bench: Bench) -> Iterator[Case]:
    """y."""
    peers: dict[str, Peer] = {name: partial(_receive, it) for name, it in agents().items()}
    yield from _cases(bench, "y", "syslog messages over TCP", _feed_syslog, peers)


def run_restart(bench: Bench) -> Iterator[Case]:
    """w. Aim: ready 5 s after the start for each GiB that waits in the spool."""
    gib = bench.pick(1024, 256, 4) / 1024
    case = Case("w", "ready after kill -9", "s/GiB", "lower", aims=(Aim(COLLECTOR, None, 5.0),))
    for _, counts in bench.turns("w", [COLLECTOR], warm_up=False):
        directory = bench.directory / "w"
        with _running(directory, "r") as setting:
            os.kill(setting.logd_pid, signal.SIGSTOP)  # nothing leaves the spool
            collector = setting.collector
            requests = int(gib * (1 << 30)) // len(_forward_chunks()[0])
            _feed_forward(setting, requests * BATCH)
            collector.daemon.kill()
            spooled = sum(file.stat().st_size for file in collector.data_dir.rglob("*.log"))
            begun_s = perf_counter()
            collector.daemon.start(within_s=120)
            took_s = perf_counter() - begun_s
            os.kill(setting.logd_pid, signal.SIGCONT)
        with _running(directory / "empty", "r") as setting:
            setting.collector.daemon.kill()
            begun_s = perf_counter()
            setting.collector.daemon.start(within_s=120)
            empty_s = perf_counter() - begun_s
        shutil.rmtree(directory)
        if counts:
            case.add(COLLECTOR, max(0.0, took_s - empty_s) / (spooled / (1 << 30)))
            case.notes[COLLECTOR] = f"{spooled >> 20} MiB; {took_s:.1f} s, empty {empty_s:.1f} s"
    yield case


def _cases(
    bench: Bench,
    letter: str,
    what: str,
    feed: Feed,
    peers: Mapping[str, Peer] = NOBODY,
    *,
    rate_min: float | None = None,
    cost_max: float | None = None,
) -> Iterator[Case]:
    count = bench.pick(400_000, 100_000, 2 * BATCH) // BATCH * BATCH
    names, compare = (COLLECTOR, *peers), {COLLECTOR: tuple(peers)}
    rate = Case(letter, what, "records/s", compare=compare)
    name = f"{what}: for each second of the collector's CPU time"
    aims = (Aim(COLLECTOR, None, rate_min),) if rate_min else ()
    core = replace(rate, name=name, aims=aims, series={})
    cost = Case(letter, f"{what}: CPU time", "ms/10k records", "lower", compare)
    if cost_max and SYSLOG_NG in peers:
        cost = replace(cost, aims=(Aim(COLLECTOR, SYSLOG_NG, cost_max),), series={})
    memory = Case(letter, f"{what}: memory", "MiB", "lower", compare)
    for number, (system, counts) in enumerate(bench.turns(letter, names)):
        directory = bench.directory / f"{letter}{number}"
        if system in peers:
            directory.mkdir(parents=True)
            took = peers[system](directory, feed, count)
        else:
            took = _through_collector(directory, letter, count, feed)
        shutil.rmtree(directory)
        if counts:
            rate.add(system, count / took.wall_s)
            core.add(system, count / max(took.processor_s, 1e-3))
            cost.add(system, took.processor_s / count * 1e7)
            memory.add(system, took.memory_mib)
    yield from (rate, core, cost, memory)


def _through_collector(
    directory: Path,
    letter: str,
    count: int,
    feed: Feed,
    delivered: int | None = None,
    **options: Any,
) -> Took:
    """Have so many records fed, all or `delivered` of which reach logd, and wait for that."""
    delivered = count if delivered is None else delivered
    with _running(directory, letter, **options) as setting:
        pid = setting.collector.daemon.pid
        peak = asked_s = 0.0
        begun_s, before_s = perf_counter(), cpu_seconds(pid)
        feed(setting, count)

        def taken() -> int:
            protocol = PROTOCOLS.get(letter)
            if protocol is not None and protocol.counter is not None:
                stage = setting.collector.daemon.stage(f"source/{protocol.source}:in")
                return int(stage["detail"].get(protocol.counter, 0))
            return int(setting.collector.account("in").get("delivered", 0))

        def is_done() -> bool:
            nonlocal peak, asked_s
            if perf_counter() - asked_s < _ASK_S:
                return False
            peak, asked_s = max(peak, memory_mib(pid)), perf_counter()
            return taken() >= delivered

        wait_until(is_done, within_s=600, what=f"{delivered} records delivered")
        took = Took(perf_counter() - begun_s, cpu_seconds(pid) - before_s, peak)
        assert taken() == delivered, setting.collector.account("in")
        return took


@contextmanager
def _running(directory: Path, letter: str, **more: Any) -> Iterator[Setting]:
    directory.mkdir(parents=True)
    port, file = free_port(), directory / "app.log"
    sources: dict[str, dict[str, Any]] = {
        "p": {"type": "file", "include": [str(file)], "service": "shop", "poll_ms": 50},
        IDLE: {"type": "file", "include": [str(file.with_name("*.log"))], "service": "shop"},
        "q": {"type": "otlp", "grpc": f"127.0.0.1:{port}", "http": None},
        "r": {"type": "forward", "listen": f"127.0.0.1:{port}"},
        "x": {"type": "unix", "path": str(directory / "in.sock")},
        "y": {"type": "syslog", "udp": None, "tcp": f"127.0.0.1:{port}"},
        **{name: protocol.section(port) for name, protocol in PROTOCOLS.items()},
    }
    streams = [{"name": "logs", "subject": "telemetry.>"}]
    with ExitStack() as stack:
        nats = RestartableNatsServer(directory / "nats")
        stack.callback(nats.close)
        nats.start()
        logd = stack.enter_context(Logd(directory / "logd", nats.url, streams))
        source = {"name": "in", **sources[letter]}
        options = {
            "batch": {"max_age_ms": 200}, "checkpoint_interval_s": 1,
            "spool": {"max_bytes": 4 << 30}, **more,
        }  # fmt: skip
        collector = Collector(directory / "collector", nats.url, [source], **options)
        place = directory / "in.sock" if letter == "x" else file
        yield Setting(stack.enter_context(collector), logd.daemon.pid, port, place)


def _copy(agent: Agent, make: Lines, directory: Path, _feed: Feed, count: int) -> Took:
    source = directory / "app.log"
    _write_file(source, make(count))
    return agent.copies(directory, source)


def _receive(agent: Agent, directory: Path, _feed: Feed, count: int) -> Took:
    size = count * len(plain_line(0))
    return agent.receives(directory, size, lambda port: _send_syslog(port, count))


# What is sent.


def _feed_lines(setting: Setting, count: int, make: Lines) -> None:
    """The file comes into being complete, as after a rotation."""
    made = setting.file.with_suffix(".new")
    _write_file(made, make(count))
    made.rename(setting.file)


def _write_file(path: Path, lines: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(lines)


def plain_lines(count: int) -> Iterator[bytes]:
    """Those of `plain_line`."""
    return map(plain_line, range(count))


def file_lines(count: int) -> Iterator[bytes]:
    """Those of `file_line`."""
    return map(file_line, range(count))


def plain_line(number: int) -> bytes:
    """One of 250 bytes, as people write it."""
    text = (
        f"2026-01-02 03:04:05,123 INFO shop.till [worker-3] order o-{number:08} placed: 3 items, "
        f'total {number / 4}, "GET /cart/checkout HTTP/1.1" 200 '
    )
    return text.ljust(249, "n").encode() + b"\n"


def _lines_of_two_levels(count: int) -> Iterator[bytes]:
    """Those of `file_line`, each tenth for debugging."""
    return (file_line(number, "info" if number % 10 else "debug") for number in range(count))


def file_line(number: int, level: str = "info") -> bytes:
    """One of 250 bytes, as structured loggers write it."""
    line = {
        "timestamp": "2026-01-02T03:04:05.123456Z",
        "level": level,
        "event": "order placed",
        "order_id": f"o-{number:08}",
        "items": 3,
        "total": number / 4,
        "ok": True,
        "path": "/cart/checkout",
        "note": "n" * 60,
    }
    return json.dumps(line).encode() + b"\n"


def _feed_otlp(setting: Setting, count: int) -> None:
    export("logs.v1.LogsService", setting.port, _otlp_requests(), count // BATCH, _IN_FLIGHT)


def _feed_protocol(
    protocol: Protocol, bodies: Sequence[bytes], setting: Setting, count: int
) -> None:
    protocol.send(setting.port, bodies, count // BATCH)


@cache
def _otlp_requests() -> tuple[bytes, ...]:
    """All that differ; made in the round that does not count."""
    return tuple(map(_otlp_request, range(DIFFERENT)))


def _otlp_request(request_number: int) -> bytes:
    """A request of one service whose records differ from each other and from other requests'."""
    request = ExportLogsServiceRequest()
    element = request.resource_logs.add()
    for key in ("service.name", "service.version", "deployment.environment.name", "host.name"):
        element.resource.attributes.add(key=key).value.string_value = f"shop-{request_number % 5}"
    scope = element.scope_logs.add()
    scope.scope.name = "shop.till"
    first = request_number * BATCH
    for number in range(first, first + BATCH):
        record = scope.log_records.add(
            time_unix_nano=1_700_000_000_000_000_000 + number, severity_number=9, flags=1,
            trace_id=an_id(number, 16), span_id=an_id(number, 8),
        )  # fmt: skip
        method, path, body, status = shop_event(number)
        record.body.string_value = body
        for key, text in (("http.request.method", method), ("url.path", path)):
            record.attributes.add(key=key).value.string_value = text
        record.attributes.add(key="http.response.status_code").value.int_value = status
        record.attributes.add(key="duration_ms").value.double_value = number % 4000 / 4
    encoded: bytes = request.SerializeToString()
    return encoded


@cache
def _forward_chunks() -> tuple[bytes, ...]:
    """All that differ; made in the round that does not count."""
    return tuple(map(_forward_records, range(DIFFERENT)))


def _forward_records(chunk: int) -> bytes:
    """The entries of a chunk, which differ from each other and from other chunks'."""
    packed = []
    for number in range(chunk * BATCH, (chunk + 1) * BATCH):
        method, path, body, status = shop_event(number)
        entry = {"level": "info", "message": body, "http.request.method": method,
                 "url.path": path, "status": status, "duration_ms": number % 4000 / 4}  # fmt: skip
        packed.append(msgpack.packb([1_700_000_000, entry]))
    return b"".join(packed)


def _feed_forward(setting: Setting, count: int) -> None:
    forward(setting.port, _forward_chunks(), count // BATCH, _IN_FLIGHT)


@cache
def _specs_lines() -> tuple[list[bytes], ...]:
    """The lines of all batches that differ; made in the round that does not count."""
    lines = make_lines(BATCH * DIFFERENT, {})
    return tuple(lines[first : first + BATCH] for first in range(0, len(lines), BATCH))


def _feed_specs(setting: Setting, count: int) -> None:
    different = _specs_lines()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(setting.file))
        batches = count // BATCH
        acked, received = 0, b""
        for number in range(1, batches + 1):
            connection.sendall(encode_specs_batch("bench", number, different[number % DIFFERENT]))
            while number - acked >= (_IN_FLIGHT if number < batches else 1):
                received += connection.recv(65536)
                acked += received.count(b'"ack"')
                received = received[received.rfind(b"}") + 1 :]


def _feed_syslog(setting: Setting, count: int) -> None:
    _send_syslog(setting.port, count)


def _send_syslog(port: int, count: int) -> None:
    """Messages of RFC 5424 whose text is a plain line, each behind its length (RFC 6587)."""
    head = b"<134>1 2026-01-02T03:04:05.123456Z host-1 shop 4711 - - "
    with connected(port) as connection:
        for first in range(0, count, BATCH):
            texts = (plain_line(number)[:-1] for number in range(first, first + BATCH))
            frames = (b"%d %b%b" % (len(head) + len(text), head, text) for text in texts)
            connection.sendall(b"".join(frames))


def connected(port: int) -> socket.socket:
    """A connection to a daemon that may still be starting."""

    def connect() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except ConnectionRefusedError:
            return None

    connection = wait_until(connect, what="somebody listens")
    assert connection is not None
    return connection
