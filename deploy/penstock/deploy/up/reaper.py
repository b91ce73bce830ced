"""The reaper: nothing that the launcher starts outlives it, not even a kill -9 of it.

Runs as a script with the standard library alone, in two roles:

    reaper.py exec PARENT PIPE COMMAND...   asks the kernel for SIGTERM when PARENT dies, puts its
                                           session on the list, then becomes COMMAND; each part
                                           starts this way, in its own session
    reaper.py watch                         reads the list ("+ID" or "-ID" lines) through a pipe
                                           from the launcher and what it starts; when the pipe
                                           closes, ends the sessions that are still on it

A session holds everything a part has started (a JVM, Spark's Python workers) also after their
parents died. Why both roles: the kernel's signal reaches only the part itself, and the watcher
could itself be killed. A session puts itself on the list before it becomes the part, because the
launcher can be killed as soon as the session exists.
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
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
    """Field 6 of /proc/PID/stat (proc(5)); None when the process is gone or a zombie.

    Field 2 is a name of any bytes: the kernel cuts it after 15, also within a character of UTF-8.
    """
    try:
        data = (entry / "stat").read_bytes()
    except OSError:
        return None
    state, _, _, session = data.rpartition(b")")[2].split()[:4]
    return None if state == b"Z" else int(session)


def become(parent: int, pipe: int, command: list[str]) -> None:
    """Tie this process to its parent's life, put its session on the list and become `command`.

    Args:
        parent: The launcher.
        pipe: Descriptor of the pipe to the watcher.
        command: The part's program and arguments.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) == 0, os.strerror(
        ctypes.get_errno()
    )
    if os.getppid() != parent:
        sys.exit(1)  # it died before the request took effect
    with suppress(BrokenPipeError):  # the watcher was killed; the kernel's signal is left
        os.write(pipe, b"+%d\n" % os.getpid())
    os.close(pipe)
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell on purpose
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        sys.exit(NOT_STARTED)


def watch() -> None:
    """Follow the list; when the launcher goes away, end the sessions still on it."""
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
        case ["exec", parent_id, pipe_number, *rest]:
            become(int(parent_id), int(pipe_number), rest)
        case ["watch"]:
            watch()
        case _:
            sys.exit("usage: reaper.py exec PARENT PIPE COMMAND... | reaper.py watch")
