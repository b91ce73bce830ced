"""`penstock logd keys`: API keys, made here and stored nowhere but with whoever is given them."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from penstock.base.clock import SystemClock
from penstock.base.files import atomic_write
from penstock.logd.security.api_keys import line_of, make_key
from penstock.service.command import PenstockGroup


@click.group(
    cls=PenstockGroup, epilog="Example: penstock logd keys new billing >> /etc/penstock/keys"
)
def keys() -> None:
    """Make API keys."""


@keys.command(
    epilog="Example: penstock logd keys new billing --save billing.key >> /etc/penstock/keys"
)
@click.argument("name")
@click.option(
    "--days", type=click.IntRange(1, 3650), help="How long it is good; default: for ever."
)
@click.option("--group", "groups", multiple=True, help="A group it belongs to; may be repeated.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the key into this new file, readable by you alone, instead of showing it.",
)
def new(name: str, days: int | None, groups: tuple[str, ...], save: Path | None) -> None:
    """Make an API key for NAME.

    The line for the file `auth.keys_file` goes to standard output; the key itself, which is shown
    this once, to standard error or a file for --token-file.
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
    if save is None:
        click.echo(f"the key of {name}, which nobody can show again:\n{key}", err=True)
    else:
        _save(key, save)
    if sys.stdout.isatty():
        click.echo("the line for auth.keys_file:", err=True)
    click.echo(line_of(key, expires=expires, groups=groups))


def _save(key: str, path: Path) -> None:
    try:
        atomic_write(path, f"{key}\n", mode=0o600, exclusive=True)
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--save") from None
