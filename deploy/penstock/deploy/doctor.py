"""`penstock doctor`: examine this host, a launch, or what a configuration needs."""

import asyncio
import ctypes
import importlib
import json
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from penstock.base.clock import Clock, SystemClock
from penstock.base.errors import ConfigError, ExitCode, ServiceError
from penstock.base.extras import extra_of, install_command
from penstock.base.pluralize import pluralize
from penstock.deploy.up.layout import FREE_BYTES_MIN, Layout, default_root, read_running
from penstock.deploy.up.preflight import require_nats
from penstock.deploy.up.probe import get_json
from penstock.deploy.up.topology import HOST, default_ports, logd_parts
from penstock.deploy.version import version_report
from penstock.service.config import load_config, read_yaml, split_host_port

MIB: Final = 1024 * 1024
FREE_BYTES_WANTED: Final = 5 * 1024 * MIB
MEMORY_BYTES_WANTED: Final = 1536 * MIB
"""Three logd, a collector and a router with its JVM, as `penstock up --nodes 3` runs them."""

OPEN_FILES_MIN: Final = 1024
OPEN_FILES_WANTED: Final = 8192
CERTIFICATE_DAYS_WANTED: Final = 30
_DAY_NS: Final = 86_400 * 10**9
_CONNECT_S: Final = 3.0
_TIME_ERROR: Final = 5  # adjtimex(2): the clock is not synchronized
_TIMEX_BYTES: Final = 512  # struct timex has 208; the kernel writes no more than it knows
_FORGETFUL: Final = frozenset({"tmpfs", "ramfs", "overlay"})
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})
_LIBRARIES: Final = ("pydantic", "pyarrow", "nats-py", "structlog", "zstandard", "pyspark")


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one examination found.

    Attributes:
        about: What was looked at.
        verdict: `WRONG` keeps Penstock from working; a warning does not yet.
        found: What is there.
        fix: What to do about it; empty when all is well.
    """

    about: str
    verdict: Verdict
    found: str
    fix: str = ""


def check_software() -> Iterator[Finding]:
    """Python and the libraries."""
    version = platform.python_version()
    yield Finding("python", Verdict.OK, version)  # an older one would not have come this far
    versions = dict(version_report())
    for name in _LIBRARIES:
        found = versions[name]
        if found == "not installed":
            fix = f"{install_command('all')}, or with the extra of the part that runs here"
            yield Finding(name, Verdict.WARNING, found, fix)
        else:
            yield Finding(name, Verdict.OK, found)


def check_java() -> Finding:
    """What Spark would run on."""
    try:
        from penstock.router.spark.java import find_java

        with tempfile.TemporaryDirectory() as work:
            found = find_java(Path(work))
    except ModuleNotFoundError as error:
        return Finding(
            "java", Verdict.WARNING, f"not looked for: no {error.name}", "no router here"
        )
    except ServiceError as error:
        return Finding("java", Verdict.WRONG, error.reason, error.fix)
    return Finding("java", Verdict.OK, f"version {found.major} ({found.origin})")


def check_open_files(soft: int, hard: int) -> Finding:
    """Whether there are enough for connections, and a few for each stream.

    Args:
        soft: What RLIMIT_NOFILE says.
        hard: What it may be raised to.
    """
    found = f"{soft} (at most {hard})"
    fix = f"ulimit -n {OPEN_FILES_WANTED}, or LimitNOFILE= in the unit, or `ulimits` in compose"
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_WANTED:
        return Finding("open files", Verdict.OK, found)
    verdict = Verdict.WARNING if soft >= OPEN_FILES_MIN else Verdict.WRONG
    return Finding("open files", verdict, found, fix)


def check_memory(meminfo: str) -> Finding:
    """Whether there is enough for a cluster and a router.

    Args:
        meminfo: What /proc/meminfo says.
    """
    rows = (line.split() for line in meminfo.splitlines())
    available = next((int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:"), 0)
    found = f"{available // MIB} MiB available"
    if available >= MEMORY_BYTES_WANTED:
        return Finding("memory", Verdict.OK, found)
    fix = f"have {MEMORY_BYTES_WANTED // MIB} MiB for --nodes 3 and a router, 900 for one logd"
    return Finding("memory", Verdict.WARNING, found, fix)


def check_clock(clock: Clock) -> Finding:
    """Whether something keeps the clock right, on which certificates and tokens hang."""
    now = datetime.fromtimestamp(clock.unix_ns() / 1e9, UTC)
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now.year < 2025:
        fix = "set the clock; certificates are not valid yet at that time"
        return Finding("clock", Verdict.WRONG, found, fix)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state == _TIME_ERROR:
        fix = "run chrony or systemd-timesyncd, here or on the host of this container"
        return Finding("clock", Verdict.WARNING, f"{found}, nothing keeps it right", fix)
    return Finding("clock", Verdict.OK, found)


def free_bytes(place: Path) -> int:
    """What the disk of a directory still takes."""
    return shutil.disk_usage(place).free


def check_disk(
    about: str, path: Path, mounts: str, free_at: Callable[[Path], int] = free_bytes
) -> Finding:
    """Space, and whether what is written there stays.

    Args:
        about: Whose it is.
        path: A directory, which may not be there yet.
        mounts: What /proc/mounts says.
        free_at: Says how much room there is.
    """
    # Not `Path.exists`, which raises where this user may not even look.
    place = next(one for one in (path, *path.parents) if os.path.exists(one))  # noqa: PTH110
    if not place.is_dir() or not _is_open(place):
        wrong = "cannot be written to" if place.is_dir() else "is no directory"
        fix = "give this user the directory, or name another"
        return Finding(about, Verdict.WRONG, f"{place} {wrong}", fix)
    free, kind = free_at(place), _file_system(place.resolve(), mounts)
    found = f"{path}: {free // MIB} MiB free, {kind}"
    if free < FREE_BYTES_MIN:
        return Finding(about, Verdict.WRONG, found, "free some space, or name another disk")
    if kind in _FORGETFUL:
        return Finding(
            about, Verdict.WARNING, found, "for what must outlive a reboot or container: a disk"
        )
    if kind in _REMOTE:
        return Finding(
            about, Verdict.WARNING, found, "logd and the collector need a disk of this machine"
        )
    if free < FREE_BYTES_WANTED:
        return Finding(about, Verdict.WARNING, found, "free some space, or bound the streams")
    return Finding(about, Verdict.OK, found)


def _is_open(place: Path) -> bool:
    """Whether files can be made there by the user that this process acts as."""
    return os.access(place, os.W_OK | os.X_OK, effective_ids=True)


def _file_system(place: Path, mounts: str) -> str:
    """The type of the file system that a path is on: that of the longest mount point above it."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        _, point, this, *_ = line.split()
        point = point.replace("\\040", " ")
        if place.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, this
    return kind


def check_port(about: str, address: str) -> Finding:
    """Whether an address can be listened on."""
    host, number = split_host_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
        except OSError as error:
            fix = "stop what uses it (ss -ltnp shows it), or name another; not if it is this part"
            return Finding(about, Verdict.WRONG, f"{address}: {error.strerror}", fix)
    return Finding(about, Verdict.OK, f"{address} is free")


def check_reachable(about: str, address: str) -> Finding:
    """Whether anything can be connected to there."""
    try:
        socket.create_connection(split_host_port(address), timeout=_CONNECT_S).close()
    except OSError as error:
        fix = "start it, open the way there, or correct the address"
        return Finding(about, Verdict.WRONG, f"{address}: {error.strerror or error}", fix)
    return Finding(about, Verdict.OK, f"{address} answers")


def check_nats(url: str) -> Finding:
    """Whether a NATS server answers; credentials are not tried."""
    shown = f"{urlsplit(url).scheme}://{url.rpartition('://')[2].rpartition('@')[2]}"
    try:
        require_nats(url)
    except ServiceError as error:
        fix = "start it, open the way there, or correct the address"
        return Finding("nats", Verdict.WRONG, error.reason.replace(url, shown), fix)
    return Finding("nats", Verdict.OK, f"{shown} answers")


def check_certificate(path: Path, clock: Clock) -> Finding:
    """Whether a certificate can be read and is good for a while."""
    try:
        from cryptography import x509

        ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except ModuleNotFoundError:
        return Finding("certificate", Verdict.WARNING, f"{path}: not read", "install cryptography")
    except (OSError, ValueError) as error:
        fix = "name a readable PEM file; `penstock init` makes them"
        reason = error.strerror if isinstance(error, OSError) else "no certificate in it"
        return Finding("certificate", Verdict.WRONG, f"{path}: {reason}", fix)
    days = (int(ends.timestamp()) * 10**9 - clock.unix_ns()) // _DAY_NS
    found = f"{path}: good for {pluralize(days, 'day')}"
    if days >= CERTIFICATE_DAYS_WANTED:
        return Finding("certificate", Verdict.OK, found)
    verdict = Verdict.WRONG if days < 0 else Verdict.WARNING
    return Finding("certificate", verdict, found, "make a new one: `penstock init` does, or yours")


_MODELS: Final[Mapping[str, tuple[str, str]]] = {
    "router": ("penstock.router.job.config", "JobConfig"),
    "collector": ("penstock.collector.config", "CollectorConfig"),
    "console": ("penstock.deploy.console.config", "ConsoleConfig"),
    "logd": ("penstock.logd.config", "LogdConfig"),
}
_KEYS: Final = {
    "router": {"job"}, "collector": {"sources"}, "console": {"listen", "parts"},
}  # fmt: skip
"""What a part's file alone has; any other is of a logd."""

_SIGNS: Final = {Verdict.OK: "ok", Verdict.WARNING: "warning", Verdict.WRONG: "WRONG"}


def run_checks(
    *,
    directory: Path | None,
    nats_url: str | None,
    nodes: int,
    configs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Examine, show what was found, and exit: 1 when something is wrong, else 0."""
    findings = [*_host()]
    if configs:
        findings += [found for path in configs for found in _configuration(path)]
    else:
        layout = Layout((directory or default_root()).absolute())
        findings += _launch(layout, nats_url, nodes)
    if as_json:
        sys.stdout.write(json.dumps([asdict(one) for one in findings], indent=2) + "\n")
    else:
        _print(findings)
    wrong = any(one.verdict is Verdict.WRONG for one in findings)
    sys.exit(ExitCode.FAILURE if wrong else ExitCode.OK)


def _print(findings: list[Finding]) -> None:
    width = max(len(one.about) for one in findings)
    for one in findings:
        click.echo(f"{_SIGNS[one.verdict]:<8} {one.about:<{width}}  {one.found}")
        if one.fix:
            click.echo(f"{'':<8} {'':<{width}}  fix: {one.fix}")
    counts = {verdict: sum(one.verdict is verdict for one in findings) for verdict in Verdict}
    warnings = counts[Verdict.WARNING]
    click.echo(f"{counts[Verdict.WRONG]} wrong, {warnings} warning{'s' * (warnings != 1)}")


def _host() -> Iterator[Finding]:
    yield from check_software()
    yield check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield check_memory(Path("/proc/meminfo").read_text())
    yield check_clock(SystemClock())


def _launch(layout: Layout, nats_url: str | None, nodes: int) -> Iterator[Finding]:
    """What `penstock up` would need in a directory, or how what runs there is."""
    yield check_java()
    yield check_disk("disk", layout.root, Path("/proc/mounts").read_text())
    if nats_url is not None:
        yield check_nats(nats_url)
    try:
        running = read_running(layout)
    except ConfigError as error:
        yield Finding("directory", Verdict.WRONG, error.reason, error.fix)
        return
    if running is not None:
        for name, url in running["parts"].items():
            yield _part(name, url)
        return
    without = {"nats", "nats_monitor"} if nats_url else set()
    for name, number in default_ports(logd_parts(nodes)).items():
        if name not in without:
            finding = check_port(f"port {name.replace('_', ' ')}", f"{HOST}:{number}")
            yield finding


def _part(name: str, url: str) -> Finding:
    """How a part says it is; nats-server says `status: ok`."""
    answer = asyncio.run(get_json(f"{url}/healthz"))
    if answer is None:
        fix = "see its log; the launcher starts it again"
        return Finding(name, Verdict.WRONG, f"does not answer at {url}", fix)
    health = str(answer.get("health") or answer.get("status"))
    if health in ("ready", "ok"):
        return Finding(name, Verdict.OK, health)
    reasons = "; ".join(answer.get("reasons", ())) or "it says no reason"
    verdict = Verdict.WARNING if health == "degraded" else Verdict.WRONG
    return Finding(name, verdict, f"{health}: {reasons}", "see its README and its log")


def _configuration(path: Path) -> Iterator[Finding]:
    """A part's configuration, and what it names: directories, listeners, servers, certificates."""
    part = "all"
    try:
        document = read_yaml(path)
        part = next((name for name, keys in _KEYS.items() if keys & document.keys()), "logd")
        module, name = _MODELS[part]
        model: Any = getattr(importlib.import_module(module), name)
        config = load_config(model, path, env_prefix=f"PENSTOCK_{part.upper()}")
    except ServiceError as error:
        yield Finding("configuration", Verdict.WRONG, error.reason, error.fix)
        return
    except ModuleNotFoundError as error:
        fix = install_command(extra_of(str(error.name), part=part))
        yield Finding("configuration", Verdict.WRONG, f"{path}: needs {error.name}", fix)
        return
    yield Finding("configuration", Verdict.OK, f"{path} is valid, of a {part}")
    if part == "console":
        yield from _console(config)
        return
    directory = config.checkpoint_dir if part == "router" else config.data_dir
    yield check_disk("disk", directory, Path("/proc/mounts").read_text())
    yield from {"router": _router, "collector": _collector, "logd": _logd}[part](config)


def _router(config: Any) -> Iterator[Finding]:
    yield check_java()
    yield check_port("port admin", config.admin)
    for address in config.logd.split(","):
        yield check_reachable("logd", address.strip())


def _collector(config: Any) -> Iterator[Finding]:
    yield check_port("port admin", config.admin)
    yield check_nats(config.nats.url)


def _console(config: Any) -> Iterator[Finding]:
    yield check_port("port listen", config.listen)
    if config.admin is not None:
        yield check_port("port admin", config.admin)
    for address in config.logd.split(",") if config.logd else ():
        yield check_reachable("logd", address.strip())
    for name, url in config.parts.items():
        server = urlsplit(url)
        standard = 443 if server.scheme == "https" else 80
        try:
            address = f"{server.hostname}:{server.port or standard}"
        except ValueError:
            what = f"{url} is no address"
            yield Finding(f"part {name}", Verdict.WRONG, what, "write it as http://HOST:PORT")
            continue
        yield check_reachable(f"part {name}", address)
    if config.tls is not None:
        yield check_certificate(config.tls.cert_file, SystemClock())


def _logd(config: Any) -> Iterator[Finding]:
    yield check_port("port fetch", config.fetch)
    yield check_port("port admin", config.admin)
    for server in config.nats.access().servers:
        host = f"[{server.host}]" if ":" in server.host else server.host
        yield check_nats(f"nats://{host}:{server.port}")
    certificates = [] if config.tls is None else [config.tls.cert_file]
    if config.cluster is not None:
        yield check_port("port peer", config.cluster.peer)
        certificates += [] if config.cluster.tls is None else [config.cluster.tls.cert_file]
        for node, address in config.cluster.founders.items():
            if node != config.node:
                yield check_reachable(f"node {node}", address)
    for path in certificates:
        yield check_certificate(path, SystemClock())
