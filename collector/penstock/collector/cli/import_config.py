"""`penstock collector import-config`: the configuration of another agent as the collector's."""

from pathlib import Path
from typing import Final

import click

from penstock.collector.importing.reading import (
    TOOLS,
    Tool,
    UnknownConfigurationError,
    import_text,
)
from penstock.service import ConfigError

_CHARACTERS_MAX: Final = 4 * 1024 * 1024


@click.command(
    "import-config", epilog="Example: penstock collector import-config vector.yaml > collector.yaml"
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@click.option(
    "--from", "tool", type=click.Choice(TOOLS), help="The agent; by default what it looks like."
)
def import_config(file: Path, tool: Tool | None) -> None:
    """Print a configuration of Fluent Bit, Vector, OpenTelemetry or Promtail as the collector's.

    A comment `not taken over` stands for each thing that has no counterpart. Look at them, and at
    what the result says with `penstock collector validate`, before you use it.
    """
    try:
        draft = import_text(_read(file), suffix=file.suffix, tool=tool)
    except (OSError, UnicodeDecodeError, UnknownConfigurationError) as error:
        reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else error
        raise ConfigError(
            f"{file}: {reason}", fix="name a readable configuration, and its agent with --from"
        ) from None
    click.echo(draft.text(), nl=False)


def _read(file: Path) -> str:
    with file.open(encoding="utf-8") as opened:
        text = opened.read(_CHARACTERS_MAX + 1)
    if len(text) > _CHARACTERS_MAX:
        raise UnknownConfigurationError(f"has more than {_CHARACTERS_MAX} characters")
    return text
