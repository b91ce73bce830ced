"""The reaper: nothing that the launcher starts outlives it, not even a kill -9 of it.

Runs as a script with the standard library alone, in two roles:

    reaper.py exec PARENT COMMAND...   asks the kernel for SIGTERM when PARENT dies, then becomes
                                      COMMAND; each part starts this way, in its own session
    reaper.py watch                    reads session ids ("+ID" or "-ID" lines) from the launcher
                                      through a pipe; when the pipe closes, ends what still runs

A session holds everything a part has started (a JVM, Spark's Python workers) also after their
parents died. Why both roles: the kernel's signal reaches only the part itself, and the watcher
could itself be killed.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
NOT_STARTED = 127  # as a shell says "command not found"
_GRACE_S = 5.0
_POLL_S = 0.05


def session_members(session: int) -> list[int]:
    """The ids of all live processes in a session."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _session_of(entry) == session
    ]


def signal_session(session: int, number: signal.Signals) -> int:
    """Send a signal to every process of a session; returns how many there were."""
    members = session_members(session)
    for pid in members:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it ended since it was listed
    return len(members)


def _session_of(entry: Path) -> int | None:
    """Field 6 of /proc/PID/stat (proc(5)); None when the process is gone or a zombie."""
    try:
        text = (entry / "stat").read_text()
    except OSError:
        return None
    state, _, _, session = text.rpartition(")")[2].split()[:4]
    return None if state == "Z" else int(session)


def become(parent: int, command: list[str]) -> None:
    """Tie this process to its parent's life and become `command`."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) == 0, os.strerror(
        ctypes.get_errno()
    )
    if os.getppid() != parent:
        sys.exit(1)  # it died before the request took effect
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell on purpose
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        sys.exit(NOT_STARTED)


def watch() -> None:
    """Follow the launcher's list; when it goes away, end the sessions still on it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        session = int(line[1:])
        if line[0] == "+":
            sessions.add(session)
        else:
            sessions.discard(session)
    deadline = time.monotonic() + _GRACE_S  # noqa: TID251 - stands alone, without clock.py
    for session in sessions:
        signal_session(session, signal.SIGTERM)
    while any(map(session_members, sessions)):
        if time.monotonic() > deadline:  # noqa: TID251 - stands alone, without clock.py
            for session in sessions:
                signal_session(session, signal.SIGKILL)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["exec", parent_id, *rest]:
            become(int(parent_id), rest)
        case ["watch"]:
            watch()
        case _:
            sys.exit("usage: reaper.py exec PARENT COMMAND... | reaper.py watch")
