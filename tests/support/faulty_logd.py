"""A real logd whose machine misbehaves while a file says so.

python -m tests.support.faulty_logd DIRECTORY --config FILE

DIRECTORY/hang      syncs do not return while it is there
DIRECTORY/fail      syncs fail while it is there
DIRECTORY/clock     seconds that the wall clock is off
"""

import errno
import os
import sys
import time
from pathlib import Path

from penstock.base.clock import SystemClock
from penstock.logd.cli import cli

_POLL_S = 0.02


def main() -> None:
    """Run logd with the arguments after the directory."""
    directory, *arguments = sys.argv[1:]
    hang, fail, clock = (Path(directory, name) for name in ("hang", "fail", "clock"))
    sync, unix_ns = os.fdatasync, SystemClock.unix_ns

    def sync_or_hang(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        while hang.exists() and hang.read_text() in path:
            time.sleep(_POLL_S)
        if fail.exists() and fail.read_text() in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        sync(descriptor)

    def shifted(self: SystemClock) -> int:
        return unix_ns(self) + (int(clock.read_text()) * 1_000_000_000 if clock.exists() else 0)

    os.fdatasync = sync_or_hang  # type: ignore[assignment]
    SystemClock.unix_ns = shifted  # type: ignore[method-assign]
    cli(arguments, prog_name="penstock logd")


if __name__ == "__main__":
    main()
