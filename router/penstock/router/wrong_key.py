"""Mistakes in a job file that come to light only when its parts are used."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.service import ConfigError


class WrongKeyError(ConfigError):
    """A key of the job file is wrong; the reason begins with it.

    Whoever raises it does not know the file; `naming` does.
    """


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Within the block, what is wrong with a key is told with its file, as other mistakes are.

    Raises:
        ConfigError: Instead of a `WrongKeyError`.
    """
    try:
        yield
    except WrongKeyError as error:
        raise ConfigError(f"{path}: {error.reason}", fix=error.fix) from error
