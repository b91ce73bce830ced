"""The commands of a group, those included that are imported only when they are asked for."""

from collections.abc import Iterator

import click


def all_commands(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Each command of a group with its name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield name, command
