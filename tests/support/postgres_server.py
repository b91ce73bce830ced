"""A real PostgreSQL, made and started for the tests of this process."""

import atexit
import os
import pwd
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.debian import program
from tests.support.processes import free_port
from tests.support.waiting import wait_until

SUPERUSER: Final = "penstock"


@cache
def postgres_port() -> int:
    """The port of a running server; the test is skipped where there is no PostgreSQL."""
    programs = _programs()
    directory = tempfile.TemporaryDirectory(prefix="penstock-postgres-")
    home = Path(directory.name)
    # It refuses to run as root.
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
    if user is not None:
        os.chown(home, user, -1)
    subprocess.run(
        [str(programs / "initdb"), "-D", str(home / "data"), "-U", SUPERUSER, "-A", "trust",
         "-E", "UTF8", "--no-sync", "--locale=C"],
        check=True, capture_output=True, user=user, cwd=home,
    )  # fmt: skip
    _ask_for_passwords(home / "data" / "pg_hba.conf")
    port = free_port()
    process = subprocess.Popen(
        [
            str(programs / "postgres"), "-D", str(home / "data"), "-p", str(port),
            "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={home}",
            "-c", "fsync=off", "-c", "shared_buffers=16MB",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        user=user, cwd=home,
    )  # fmt: skip
    atexit.register(directory.cleanup)
    atexit.register(process.wait, 20)
    atexit.register(process.terminate)
    ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
    wait_until(
        lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0,
        what="PostgreSQL ready",
    )
    return port


def _programs() -> Path:
    """The directory of PostgreSQL's programs."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if installed:
        return installed[-1].parent
    found = program("initdb", package="postgresql-15", directory="usr/lib/postgresql/15/bin")
    return found.resolve().parent


def _ask_for_passwords(rules: Path) -> None:
    """The role `guarded` needs one; everybody else is trusted."""
    rule = "host all guarded 127.0.0.1/32 scram-sha-256\n"
    rules.write_text(rule + rules.read_text())
