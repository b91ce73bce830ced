"""The `penstock` command: the launcher, and the parts' own commands loaded when they are asked for.

The base install has no click, so nothing here imports it before `main` has looked: without it,
`penstock version` still works and everything else names the extra to install.
"""

import importlib.util
import sys

EX_UNAVAILABLE = 69  # ExitCode.UNAVAILABLE, which cannot be imported without the extras


def main() -> None:
    """Run the console script `penstock`."""
    if importlib.util.find_spec("click") is None:
        sys.exit(_without_click(sys.argv[1:]))
    from penstock.deploy.commands import cli

    cli(prog_name="penstock")


def _without_click(arguments: list[str]) -> int:
    """What the base install can do: say its version, and what is missing for the rest."""
    from penstock.deploy.version import version_report

    if arguments in (["version"], ["--version"]):
        sys.stdout.write("".join(f"{name:<18} {value}\n" for name, value in version_report()))
        return 0
    extra = arguments[0] if arguments and arguments[0] in ("collector", "logd", "router") else "all"
    sys.stderr.write(
        "error: this is the base install: the spec library for applications, without commands\n"
        f"  fix: pip install 'penstock[{extra}]'\n"
    )
    return EX_UNAVAILABLE
