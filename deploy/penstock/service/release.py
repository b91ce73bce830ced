"""Which release of Penstock this is."""

from functools import cache
from importlib.metadata import version


@cache
def release() -> str:
    """Its number; read from the package's metadata once, for that takes a millisecond."""
    return version("penstock")
