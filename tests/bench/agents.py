"""Agents of others beside the collector: what they read goes to a file, for nothing is simpler.

rsyslogd and syslog-ng, from PATH or from Debian's packages, with their defaults. Neither checks
what it reads, nor searches it for sensitive values, nor waits for the disk.
"""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

import psutil
import pytest

from tests.bench.machine import cpu_seconds
from tests.support.debian_daemons import Program, daemon
from tests.support.processes import free_port
from tests.support.waiting import wait_until

RSYSLOG: Final = "rsyslogd, to a file"
SYSLOG_NG: Final = "syslog-ng, to a file"

_RSYSLOG_FILE: Final = """\
global(workDirectory="{directory}")
module(load="imfile" mode="inotify")
input(type="imfile" File="{source}" Tag="app")
template(name="raw" type="string" string="%msg%\\n")
action(type="omfile" file="{target}" template="raw")
"""
_RSYSLOG_TCP: Final = """\
global(workDirectory="{directory}")
module(load="imtcp")
input(type="imtcp" address="127.0.0.1" port="{port}")
template(name="raw" type="string" string="%msg%\\n")
action(type="omfile" file="{target}" template="raw")
"""
_SYSLOG_NG: Final = """\
@version: 3.35
source s {{ {source} }};
destination d {{ file("{target}" template("$MSG\\n")); }};
log {{ source(s); destination(d); flags(flow-control); }};
"""
_SYSLOG_NG_FILE: Final = 'file("{source}" flags(no-parse) follow-freq(0.1));'
_SYSLOG_NG_TCP: Final = 'syslog(transport("tcp") ip("127.0.0.1") port({port}));'


@dataclass(frozen=True, slots=True)
class Took:
    """What one turn took: seconds, CPU seconds, and the most memory in MiB."""

    wall_s: float
    processor_s: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that can be started.

    Attributes:
        files: Its configuration to copy lines of a file.
        tcp: That to write down what it receives by syslog over TCP.
        options: Of its command line: configuration, then directory.
    """

    program: Program
    files: str
    tcp: str
    options: Callable[[Path, Path], Sequence[str]]

    def copies(self, directory: Path, source: Path) -> Took:
        """Copy a file that is complete; line breaks included."""
        config = self.files.format(directory=directory, source=source, target=_target(directory))
        return self._run(directory, config, source.stat().st_size, lambda: None)

    def receives(self, directory: Path, size: int, send: Callable[[int], None]) -> Took:
        """Write down messages of `size` bytes in all, line breaks included, that `send` sends.

        Args:
            directory: To work in.
            size: Of what must be written at the end, at least.
            send: Given the port; returns when everything was sent.
        """
        port = free_port()
        config = self.tcp.format(directory=directory, port=port, target=_target(directory))
        return self._run(directory, config, size, lambda: send(port))

    def _run(self, directory: Path, config: str, size: int, send: Callable[[], None]) -> Took:
        target, file = _target(directory), directory / "agent.conf"
        file.write_text(config)
        begun_s = perf_counter()
        process = subprocess.Popen(
            [self.program.path, *self.options(file, directory)], env=self.program.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            peak = 0.0

            def is_done() -> bool:
                nonlocal peak
                assert process.poll() is None, f"{self.program.path.name} ended"
                peak = max(peak, memory_mib(process.pid))
                return target.exists() and target.stat().st_size >= size

            send()
            wait_until(is_done, within_s=600, what=f"{self.program.path.name} wrote everything")
            return Took(perf_counter() - begun_s, cpu_seconds(process.pid), peak)
        finally:
            process.kill()
            process.wait(timeout=20)


def agents() -> dict[str, Agent]:
    """Those that can be had here, by name."""
    found: dict[str, Agent] = {}
    for name, find in ((RSYSLOG, _rsyslog), (SYSLOG_NG, _syslog_ng)):
        try:
            found[name] = find()
        except pytest.skip.Exception:  # it cannot be had; the collector is measured alone
            continue
    return found


def memory_mib(pid: int) -> float:
    """What a process has in memory now."""
    return float(psutil.Process(pid).memory_info().rss) / (1 << 20)


def _rsyslog() -> Agent:
    program = daemon("rsyslogd", package="rsyslog")
    where = program.modules("rsyslog")
    modules = ["-M", where] if where else []

    def options(config: Path, directory: Path) -> list[str]:
        return ["-n", *modules, "-f", str(config), "-i", str(directory / "pid")]

    return Agent(program, _RSYSLOG_FILE, _RSYSLOG_TCP, options)


def _syslog_ng() -> Agent:
    program = daemon("syslog-ng", package="syslog-ng-core")
    where = program.modules("syslog-ng")
    modules = [f"--module-path={where}"] if where else []

    def options(config: Path, directory: Path) -> list[str]:
        state = (("-R", "persist"), ("-c", "ctl"), ("-p", "pid"))
        places = [part for option, name in state for part in (option, str(directory / name))]
        return ["-F", "--no-caps", *modules, "-f", str(config), *places]

    files = _SYSLOG_NG.replace("{source}", _SYSLOG_NG_FILE)
    return Agent(program, files, _SYSLOG_NG.replace("{source}", _SYSLOG_NG_TCP), options)


def _target(directory: Path) -> Path:
    return directory / "out.log"
