"""Errors in a job file that come to light only when its parts are used."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.base.extras import install_command
from penstock.service import ConfigError


class WrongKeyError(ConfigError):
    """A key of the job file is wrong; the reason begins with it.

    The code that raises it does not know the file; `naming` does.
    """


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Within the block, what is wrong with a key is told with its file, as other errors are.

    Raises:
        ConfigError: Instead of a `WrongKeyError`.
    """
    try:
        yield
    except WrongKeyError as error:
        raise ConfigError(f"{path}: {error.reason}", fix=error.fix) from error


class MissingLibraryError(ConfigError):
    """A library is not installed; the caller that knows the sink names that, too."""


def needed(module: str, *, extra: str) -> Any:
    """A module of an extra's library, or one of ours that imports such.

    Raises:
        MissingLibraryError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingLibraryError(
            f"this sink needs a library that is not installed: {error}",
            fix=install_command(extra),
        ) from error
