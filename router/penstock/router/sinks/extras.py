"""Libraries that only one sink needs: loaded when it is used, and named when they are missing."""

import importlib
from typing import Any

from penstock.base.extras import install_command
from penstock.service import ConfigError


class MissingLibraryError(ConfigError):
    """A library is not installed; whoever knows which sink it is for tells that, too."""


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
