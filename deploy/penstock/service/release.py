"""The release of Penstock."""

from functools import cache


@cache
def release() -> str:
    """Return the version of the package; cached, for a read takes a millisecond."""
    from importlib.metadata import version  # it loads half of the library's parser of e-mail

    return version("penstock")
