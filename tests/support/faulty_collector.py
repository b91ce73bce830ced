"""A real collector whose wall clock is wrong by as many seconds as a file says.

python -m tests.support.faulty_collector DIRECTORY --config FILE

DIRECTORY/clock     seconds that the wall clock is off, as it jumps when somebody sets it
"""

import sys
from pathlib import Path

from penstock.base.clock import SystemClock
from penstock.collector.cli.main import cli


def main() -> None:
    """Run the collector with the arguments after the directory."""
    directory, *arguments = sys.argv[1:]
    clock = Path(directory, "clock")
    unix_ns = SystemClock.unix_ns

    def off_s() -> int:
        return int(clock.read_text() or 0) if clock.exists() else 0

    def shifted(self: SystemClock) -> int:
        return unix_ns(self) + off_s() * 1_000_000_000

    SystemClock.unix_ns = shifted  # type: ignore[method-assign]
    cli(arguments, prog_name="penstock collector")


if __name__ == "__main__":
    main()
