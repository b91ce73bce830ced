"""What commands say while they work."""

from collections.abc import Callable

Report = Callable[[str], None]
"""Takes a line, for people."""


def silent(_: str) -> None:
    """Nobody wants to know."""
