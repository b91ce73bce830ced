"""The release of Penstock."""

from functools import cache


@cache
def release() -> str:
    """Its number; read from the package's metadata once, for that takes a millisecond."""
    from importlib.metadata import version  # it loads half of the library's parser of e-mail

    return version("penstock")
