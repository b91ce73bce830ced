"""Command-line conventions shared by every Penstock command."""

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import structlog
from click.exceptions import NoSuchCommand
from typing_extensions import override

from penstock.service.errors import ExitCode
from penstock.service.run import exit_on_error

Function = TypeVar("Function", bound=Callable[..., Any])
_SENTENCE_MAX: Final = 1000


class PenstockGroup(click.Group):
    """A click group whose usage errors exit with 64 and whose service errors name their fix."""

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with its whole first sentence, over several lines where it is long."""
        names = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_SENTENCE_MAX))
            for name, command in names
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:  # click proposes none that is imported lazily
            names = self.list_commands(ctx)
            raise NoSuchCommand(error.command_name, possibilities=names, ctx=ctx) from None

    @override
    def main(  # type: ignore[override] # click overloads the return type by standalone_mode
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run the command and exit with its code, as `click.Group.main` does."""
        extra["standalone_mode"] = False
        try:
            with exit_on_error():
                super().main(args, prog_name, **extra)
        except click.UsageError as error:
            error.show()
            sys.exit(ExitCode.USAGE)
        except click.exceptions.Exit as error:
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(ExitCode.FAILURE)
        except BrokenPipeError:
            # The reader of our output went away, as in `... | head`.
            sys.stderr.close()
            sys.exit(ExitCode.OK)
        except Exception as error:  # noqa: BLE001 - whatever nobody foresaw ends here
            if _is_memory(error):
                _tell("out of memory; give the process more, or lower the limits it is set to")
                sys.exit(ExitCode.MEMORY)
            _tell("failed unexpectedly; this is a bug in Penstock")
            sys.exit(ExitCode.SOFTWARE)
        sys.exit(ExitCode.OK)


def _is_memory(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.subgroup(MemoryError) is not None
    return isinstance(error, MemoryError)


def _tell(words: str) -> None:
    """Log the error being handled: one line from a daemon, a traceback from a command."""
    if structlog.is_configured():
        structlog.get_logger().exception(words)
    else:
        traceback.print_exc()
        click.echo(f"error: {words}", err=True)


def config_option(function: Function) -> Function:
    """Add `--config FILE`, which starts the daemon."""
    return click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="YAML configuration file; starts the daemon.",
    )(function)


def check_option(function: Function) -> Function:
    """Add `--check`, which only validates the configuration."""
    return click.option(
        "--check",
        is_flag=True,
        help="Only check the configuration, print what it amounts to and exit.",
    )(function)
