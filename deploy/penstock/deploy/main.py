"""The `penstock` command: the launcher, and the parts' own commands loaded when they are asked for.

The base install and the extra `app` bring no libraries for commands, though an app may have some of
them for itself: there `penstock version` works, and everything else names the extra to install.
"""

import sys

from penstock.base.errors import ExitCode
from penstock.base.extras import install_command


def main() -> None:
    """Run the console script `penstock`."""
    try:
        from penstock.deploy.cli import cli
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "penstock":
            raise
        sys.exit(_without_commands(sys.argv[1:]))
    cli(prog_name="penstock")


def _without_commands(arguments: list[str]) -> int:
    """The command of an app's install: its version, and what the other commands need."""
    from penstock.deploy.version import version_report

    if arguments in (["version"], ["--version"]):
        sys.stdout.write("".join(f"{name:<18} {value}\n" for name, value in version_report()))
        return 0
    extra = arguments[0] if arguments and arguments[0] in ("collector", "logd", "router") else "all"
    sys.stderr.write(
        "error: this installation is the spec library for applications, without commands\n"
        f"  fix: {install_command(extra)}\n"
    )
    return ExitCode.UNAVAILABLE
