"""`penstock logd keys`: API keys, made here and stored nowhere but with whoever is given them."""

import sys
from datetime import UTC, datetime, timedelta

import click

from penstock.logd.security.api_keys import line_of, make_key
from penstock.service.clock import SystemClock


@click.group(epilog="Example: penstock logd keys new billing >> /etc/penstock/keys")
def keys() -> None:
    """Make API keys."""


@keys.command(epilog="Example: penstock logd keys new billing --days 90 >> /etc/penstock/keys")
@click.argument("name")
@click.option(
    "--days", type=click.IntRange(1, 3650), help="How long it is good; default: for ever."
)
@click.option("--group", "groups", multiple=True, help="A group it belongs to; may be repeated.")
def new(name: str, days: int | None, groups: tuple[str, ...]) -> None:
    """Make an API key for NAME.

    The line for the file `auth.keys_file` goes to standard output; the key itself, which is shown
    this once, to standard error.
    """
    try:
        key = make_key(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from None
    if any(not group or not group.isascii() or set(group) & set(", \t\n") for group in groups):
        raise click.BadParameter("a group is a word without commas", param_hint="--group")
    expires = None
    if days is not None:
        now = datetime.fromtimestamp(SystemClock().unix_ns() // 10**9, UTC)
        expires = now + timedelta(days=days)
    click.echo(f"the key of {name}, which nobody can show again:\n{key}", err=True)
    if sys.stdout.isatty():
        click.echo("the line for auth.keys_file:", err=True)
    click.echo(line_of(key, expires=expires, groups=groups))
