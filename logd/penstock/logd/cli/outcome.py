"""What a command has done: words for people, with `--json` one document for programs.

Errors are on standard error with the same exit code either way; then no document says that it is
done.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from penstock.logd.cli.text import echo_json, safe

Function = TypeVar("Function", bound=Callable[..., Any])


def json_option(text: str = "One JSON object.") -> Callable[[Function], Function]:
    """Add `--json`, which the command is told of as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def check_form(form: str | None, *, as_json: bool) -> None:
    """Refuse `--json` beside a `--format` that is not JSON lines.

    Raises:
        click.UsageError: It is another.
    """
    if as_json and form not in (None, "ndjson"):
        raise click.UsageError(f"give either --json or --format {form}")


def tell(words: str, done: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what was done, on one line.

    Args:
        words: For people.
        done: For programs.
        as_json: Who asks.
    """
    if as_json:
        echo_json(done)
    else:
        click.echo(safe(words))
