"""Libraries that only one sink needs: loaded when it is used, and named when they are missing."""

import importlib
from typing import Any

from penstock.service import ConfigError


def needed(module: str, *, extra: str) -> Any:
    """A module of an extra's library, or one of ours that imports such.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"this sink needs a library that is not installed: {error}",
            fix=f"pip install 'penstock[{extra}]'",
        ) from error
