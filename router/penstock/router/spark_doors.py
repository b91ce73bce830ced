"""Ports that Spark opens between its own processes, kept from strangers on the same machine."""

import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import structlog

_SOCKET_NAME_BYTES: Final = 48
"""Of a Python process's socket in its directory, as Spark names it: a UUID, and some letters."""

_SOCKET_PATH_BYTES_MAX: Final = 107
"""`sun_path` holds 108 with the zero at its end (unix(7))."""

_log = structlog.get_logger()


class OnlyFrom:
    """Ends each connection to this process but those that a process it started has made.

    The JVM calls functions of this process (`foreachBatch`, listeners) on a port that pyspark gives
    no secret to: whoever reached it could call the sinks. So this looks whose the other end is.
    py4j hands each connection that it accepts to the `ssl_context` of its parameters, and that is
    what this is in place of. Not needed once `launch_gateway` sets `auth_token` for that port and
    the JVM tells it.

    Args:
        pid: Of the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def wrap_socket(self, connection: socket.socket, *, server_side: bool) -> socket.socket:
        """The connection; in place of one of strangers, one on which nothing ever comes."""
        assert server_side
        if self._has(connection):
            return connection
        _log.warning("connection refused", door="spark")
        connection.close()  # to shut it down would leave what has come already to be read
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    def _has(self, connection: socket.socket) -> bool:
        """Whether the process has its other end."""
        try:
            ends = (_end(connection.getpeername()), _end(connection.getsockname()))
            found = psutil.Process(self._pid).net_connections("tcp")
        except (OSError, psutil.Error):  # one of them is gone
            return False
        # Whole ends: somebody else could have the same ports at another address of loopback.
        return any((_end(one.laddr), _end(one.raddr)) == ends for one in found)


def _end(address: Sequence[Any]) -> tuple[str, int]:
    """Address and port, as IPv4 where it is that: the JVM's sockets are of both kinds.

    A socket that listens has no other end.
    """
    if not address:
        return "", 0
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def unix_sockets(directory: Path) -> dict[str, str]:
    """Settings by which Spark's Python processes of this machine listen on no port.

    A port would ask for a secret, but start a process for whoever connects.

    Args:
        directory: Of this user alone is made below it; elsewhere, where its name is too long.
    """
    place = directory / "python"
    if len(os.fsencode(place)) + _SOCKET_NAME_BYTES > _SOCKET_PATH_BYTES_MAX:
        name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        place = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}-{name}"
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        _log.warning("python processes listen on ports", reason=f"{place} is not for us alone")
        return {}
    for left in place.glob(".*.sock"):  # of processes that were killed
        left.unlink(missing_ok=True)
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(place),
    }
