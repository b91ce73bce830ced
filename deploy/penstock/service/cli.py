"""Command-line conventions shared by every Penstock command."""

import errno
import re
import select
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import click
from click.exceptions import NoSuchCommand
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.base.errors import ExitCode, exit_on_error
from penstock.base.extras import MissingExtraError, extra_of, install_command

Function = TypeVar("Function", bound=Callable[..., Any])
_SENTENCE_MAX: Final = 1000
_debug: ContextVar[bool] = ContextVar("debug", default=False)


_NOT_CONFIRMED: Final = "\nnothing was changed: the question was not answered with y"


class _ReaderLeftError(Exception):
    """The reader of standard output went away, as in `... | head`: nothing is wrong."""


def _has_reader() -> bool:
    """Whether somebody may still read what goes to standard output."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # it is no file, or closed
        return True
    return not any(event & select.POLLERR for _, event in poll.poll(0))


def _set_debug(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        _debug.set(True)


class PenstockGroup(click.Group):
    """A click group whose usage errors exit with 64 and whose service errors name their fix.

    An error that nobody foresaw is one line and exit code 70 (74 for one of the operating system);
    with `--debug` also its traceback.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params.append(
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                callback=_set_debug,
                help="Print the traceback of an unforeseen error, too.",
            )
        )

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
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would end the process with 1, and say nothing
            if _has_reader():
                raise OSError(errno.ECONNRESET, error.strerror) from error
            raise _ReaderLeftError from None

    @override
    def main(  # type: ignore[override] # click overloads the return type by standalone_mode
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run the command and exit with its code, as `click.Group.main` does."""
        extra["standalone_mode"] = False
        _debug.set(False)
        try:
            with exit_on_error():
                super().main(args, prog_name, **extra)
        except click.UsageError as error:
            error.show()
            sys.exit(ExitCode.USAGE)
        except click.exceptions.Exit as error:
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt) as error:
            if isinstance(error, click.Abort) and error.__cause__ is None:  # no Ctrl-C in work
                click.echo(_NOT_CONFIRMED, err=True)
            sys.exit(ExitCode.FAILURE)
        except _ReaderLeftError:
            sys.stderr.close()
            sys.exit(ExitCode.OK)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            words = f"{where}{error.strerror or error}"
            _report(words, f"{words}\n  fix: see to that file, disk or connection")
            sys.exit(ExitCode.IO)
        except Exception as error:  # noqa: BLE001 - whatever nobody foresaw ends here
            given = sys.argv[1:] if args is None else args
            sys.exit(_tell_unforeseen(error, given, prog_name or self.name or ""))
        sys.exit(ExitCode.OK)


class LazyGroup(PenstockGroup):
    """A group whose commands are imported when one of them is asked for.

    Args:
        lazy: ``module:attribute`` of each command, by name.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._lazy = lazy

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._lazy})

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._lazy and cmd_name not in self.commands:
            module, _, attribute = self._lazy[cmd_name].partition(":")
            self.add_command(getattr(import_module(module), attribute), cmd_name)
        return super().get_command(ctx, cmd_name)


def _tell_unforeseen(error: Exception, given: Sequence[str], program: str) -> ExitCode:
    """Say what nobody foresaw, and what to do; return the exit code."""
    if library := _missing_library(error):
        if isinstance(error, MissingExtraError):
            wanted = error.extra
        else:
            wanted = extra_of(library, part=(given or ("all",))[0])
        sys.stderr.write(
            f"error: this command needs {library}, which is not installed\n"
            f"  fix: {install_command(wanted)}\n"
        )
        return ExitCode.UNAVAILABLE
    if _is_memory(error):
        words = "out of memory; give the process more, or lower the limits it is set to"
        _report(words, words)
        return ExitCode.MEMORY
    again = shlex.join([*program.split(), "--debug", *given])
    _report(
        "this is a bug in Penstock",
        f"{_first_line(error)}\n  fix: this is a bug in Penstock; please report it with the"
        f" traceback that this prints: {again}",
    )
    return ExitCode.SOFTWARE


def _missing_library(error: Exception) -> str:
    """The module of a library that no installed extra has brought; else nothing."""
    if not isinstance(error, (ModuleNotFoundError, MissingExtraError)):
        return ""
    name = str(error.name)
    return "" if name.partition(".")[0] == "penstock" else name


def _is_memory(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.subgroup(MemoryError) is not None
    return isinstance(error, MemoryError)


def _report(reason: str, words: str) -> None:
    """Report the error being handled: a daemon logs it with `reason`, a command prints `words`."""
    import structlog  # it loads much, which a command that does not fail has no use for

    if structlog.is_configured():
        structlog.get_logger().exception("process_failed", reason=reason)
        return
    if _debug.get():
        traceback.print_exc()
    click.echo(f"error: {words}", err=True)


def _first_line(error: Exception) -> str:
    """The type and the first line of what an error says, without control characters."""
    first = str(error).partition("\n")[0][:_SENTENCE_MAX]
    printable = "".join(character if character.isprintable() else "?" for character in first)
    return f"{type(error).__name__}: {printable}" if printable else type(error).__name__


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


class IntRange(click.IntRange):
    """`click.IntRange`, which errors and help call an integer, for a range is two of them."""

    name = "integer"


class FloatRange(click.FloatRange):
    """`click.FloatRange`, which errors and help call a number."""

    name = "number"


Position = int | datetime | Literal["earliest", "latest"]

_AGO: Final = re.compile(r"(\d+)(s|m|h|d)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MEANT: Final = "an offset, earliest, latest, a time (2026-01-31T03:00:00Z) or 15m ago (s, m, h, d)"


class PositionType(click.ParamType[Any]):
    """An offset, `earliest`, `latest`, a time or how long ago.

    A time without a zone is UTC, as the times are that commands show.
    """

    name = "position"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in ("earliest", "latest"):
            return value
        if re.fullmatch(r"[0-9]{1,19}", value):
            return int(value)
        try:
            ago = _AGO.fullmatch(value)
            if ago:
                now = datetime.fromtimestamp(SystemClock().unix_ns() / 1e9, UTC)
                return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            if value.isascii() and "-" in value:  # fromisoformat takes 20260131 for a day
                moment = datetime.fromisoformat(value)
                return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            pass
        return self.fail(f"{value!r} is no position: give {_MEANT}", param, ctx)


POSITION: Final = PositionType()
"""The type of `--from` and `--to`."""
