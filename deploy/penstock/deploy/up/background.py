"""`penstock up --detach` and `penstock down`: a launch that stays when the terminal goes."""

import asyncio
import fcntl
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from penstock.base.clock import Clock, SystemClock
from penstock.base.errors import ConfigError, ExitCode, ServiceError, UnavailableError
from penstock.deploy.private_file import OWNER_ONLY
from penstock.deploy.up.layout import (
    FREE_BYTES_MIN,
    Layout,
    address_lines,
    default_root,
    read_running,
    require_space,
    unusable,
)
from penstock.deploy.up.probe import is_serving

_POLL_S: Final = 0.2
_READY_S: Final = 300
"""Longer than any part may take: the launcher itself gives up first, and says why."""

_LINES_SHOWN: Final = 12
_STEP: Final = re.compile(r" *[0-9]+ s  ")
"""Prefix of a launcher's lines that report progress."""
_ENTRY: Final = "from penstock.deploy.main import main; main()"


class StillRunningError(ServiceError):
    """The launch did not stop within the timeout (exit code 75)."""

    exit_code = ExitCode.TEMPORARY


def start(
    *,
    directory: Path | None,
    arguments: Sequence[str],
    entry: str | None = None,
    ready_s: float | None = None,
    free_bytes_min: int = FREE_BYTES_MIN,
) -> None:
    """Begin a launch in its own session; return when every part is ready.

    When one runs there already, that is what was asked for.

    Args:
        directory: The launch's directory.
        arguments: Further ones of `penstock up`.
        entry: Python code that the launcher runs; None: `penstock` itself.
        ready_s: Seconds until every part must be ready; None: what a slow machine may take.
        free_bytes_min: Room that the disk must have.

    Raises:
        ConfigError: The directory cannot be written to.
        UnavailableError: The disk is full, it ended before, or not all parts were ready in time.
    """
    layout = Layout((directory or default_root()).absolute())
    running = read_running(layout)
    if running is not None and _is_claimed(layout):
        click.echo(f"runs already in {layout.root} (process {running['pid']})")
        _print_addresses(running)
        return
    try:
        layout.logs.mkdir(parents=True, exist_ok=True)
        # What a launcher says of a full disk would find no room there.
        require_space(layout.root, free_bytes_min)
        launcher = _spawn(layout, arguments, entry or _ENTRY)
    except OSError as error:
        raise unusable(layout, error) from None
    where = "" if directory is None else f" --dir {shlex.quote(str(directory))}"
    try:
        _await_ready(layout, launcher, SystemClock(), ready_s or _READY_S)
    except KeyboardInterrupt:
        text = f"it keeps starting; watch it: penstock status{where}; stop it: penstock down{where}"
        click.echo(text, err=True)
        raise
    click.echo(f"runs in {layout.root} (process {launcher}); stop it: penstock down{where}")
    _print_addresses(read_running(layout))


def _print_addresses(running: Mapping[str, Any] | None) -> None:
    for line in address_lines((running or {}).get("addresses", {})):
        click.echo(line)


def _spawn(layout: Layout, arguments: Sequence[str], entry: str) -> int:
    """The process number of a launcher that prints to a file.

    Raises:
        OSError: That file cannot be written.
    """
    output = layout.output("launcher")
    # Made here, as a name comes with this error, not with that of the next call.
    os.close(os.open(output, os.O_WRONLY | os.O_CREAT, OWNER_ONLY))
    output.chmod(OWNER_ONLY)  # one from before may be readable for all
    command = [sys.executable, "-P", "-c", entry, "up", "--dir", str(layout.root), *arguments]
    written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.posix_spawn(
        sys.executable, command, os.environ, setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), written, OWNER_ONLY),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )  # fmt: skip


class _Steps:
    """Shows what a launcher says of its progress, as it says it.

    Args:
        output: The file that it prints to.
        position: First position.
    """

    def __init__(self, output: Path, position: int) -> None:
        self._output = output
        self._position = position

    def show(self) -> None:
        """Write the steps that came since."""
        with suppress(OSError), self._output.open("rb") as file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._position += len(whole + newline)
            for line in whole.decode(errors="replace").splitlines():
                if _STEP.match(line):
                    click.echo(line.partition("; press Ctrl-C")[0], err=True)  # not to us


def _await_ready(layout: Layout, launcher: int, clock: Clock, ready_s: float) -> None:
    until_ns = clock.monotonic_ns() + round(ready_s * 1e9)
    steps = _Steps(layout.output("launcher"), 0)
    while True:
        steps.show()
        ended, status = os.waitpid(launcher, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            steps.show()
            lines = layout.output("launcher").read_text(errors="replace").splitlines()
            lines = [line for line in lines if not _STEP.match(line)]
            told = "\n".join(f"    {line}" for line in lines[-_LINES_SHOWN:] or ("(no output)",))
            fix = (
                "correct what its message above names"
                if lines
                else f"read {layout.logs}, and start it without --detach"
            )
            error = UnavailableError(
                f"it ended with {code} before all parts were ready:\n{told}",
                fix=fix,
            )
            error.exit_code = ExitCode(code) if code in list(ExitCode) else ExitCode.FAILURE
            raise error
        running = read_running(layout)  # a launcher that was killed may have left it
        mine = running is not None and running["pid"] == launcher
        if running is not None and mine and running.get("ready"):
            parts = list(running["parts"].values())
            if asyncio.run(_all_serve(parts)):
                steps.show()
                return
        if clock.monotonic_ns() > until_ns:
            raise UnavailableError(
                f"not all parts were ready within {ready_s:g} s",
                fix=f"read {layout.logs}, and run: penstock status",
            )
        time.sleep(_POLL_S)


async def _all_serve(urls: list[str]) -> bool:
    return all(await asyncio.gather(*map(is_serving, urls)))


def stop(*, directory: Path | None, timeout_s: int) -> None:
    """Have a launch drain and end; return when it has.

    Raises:
        ConfigError: It is another user's.
        StillRunningError: It has not within the time; it goes on draining.
    """
    layout = Layout((directory or default_root()).absolute())
    running = read_running(layout)
    if running is None or not _is_claimed(layout):
        click.echo(f"nothing runs in {layout.root}")
        return
    pid, clock = int(running["pid"]), SystemClock()
    steps = _steps_from_now(layout)
    with suppress(ProcessLookupError):  # it ended just now
        _terminate(layout, pid)
    until_ns = clock.monotonic_ns() + timeout_s * 10**9
    while _is_claimed(layout):
        if clock.monotonic_ns() > until_ns:
            raise StillRunningError(
                f"{layout.root}: process {pid} still drains after {timeout_s} s",
                fix="wait and run `penstock down` again; `penstock status` shows what waits",
            )
        steps.show()
        time.sleep(_POLL_S)
    steps.show()
    click.echo(f"stopped what ran in {layout.root}")


def _steps_from_now(layout: Layout) -> _Steps:
    """The steps that a launcher prints from now on; one with a terminal prints them there."""
    output = layout.output("launcher")
    try:
        return _Steps(output, output.stat().st_size)
    except OSError:
        return _Steps(output, 0)


def _terminate(layout: Layout, pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise ConfigError(
            f"{layout.root}: process {pid} belongs to another user",
            fix="run this as that user, or as root",
        ) from None


def _is_claimed(layout: Layout) -> bool:
    """Return whether a launcher holds the directory; its process number may be another program's.

    Raises:
        ConfigError: The lock cannot be read.
    """
    try:
        with (layout.root / "launcher.lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise unusable(layout, error) from None
    return False
