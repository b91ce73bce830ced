"""The group `penstock logd streams`, whose commands are imported when they are asked for."""

from typing import Final

import click

from penstock.service.cli import LazyGroup

_COMMANDS: Final = {
    "alter": "options:alter",
    "create": "options:create",
    "delete": "lifecycle:delete",
    "elect": "replicas:elect",
    "info": "listing:info",
    "ls": "listing:list_streams",
    "move": "replicas:move",
    "observers": "replicas:observers",
    "open": "lifecycle:open_stream",
    "pause": "lifecycle:pause",
    "purge": "lifecycle:purge",
    "readonly": "lifecycle:readonly",
    "resume": "lifecycle:resume",
    "verify": "replicas:verify",
    "writable": "lifecycle:writable",
}
"""Module and function of each command, below `penstock.logd.cli.streams`."""


@click.group(
    cls=LazyGroup,
    lazy={name: f"penstock.logd.cli.streams.{place}" for name, place in _COMMANDS.items()},
    epilog="Example: penstock logd streams ls",
)
def streams() -> None:
    """List, show, create, change, verify, move, purge and delete streams."""
