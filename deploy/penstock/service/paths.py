"""Paths in configurations: what no file can be named by is refused when they are read.

A path that is not absolute is of the directory that the process was started in, and is made
absolute here: what is kept of it, and what is shown, then holds wherever the next one is started.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

_PATH_BYTES_MAX: Final = 4095
_NAME_BYTES_MAX: Final = 255
_SOCKET_BYTES_MAX: Final = 107
_VARIABLE: Final = re.compile(r"\$\{[^}/]*\}|\$[A-Za-z_][A-Za-z0-9_]*")
"""As limits.h and unix(7) of Linux have them."""


def check_path_text(text: str) -> str:
    """A text that a path, or a pattern of paths, may be.

    Raises:
        ValueError: No file can have such a name.
    """
    message = ""
    if not text:
        message = "must not be empty"
    elif "\0" in text:
        message = "must not hold the character NUL (\\0): no file's name does"
    elif len(os.fsencode(text)) > _PATH_BYTES_MAX:
        message = f"must have at most {_PATH_BYTES_MAX} bytes, as paths have"
    elif max(len(os.fsencode(part)) for part in text.split("/")) > _NAME_BYTES_MAX:
        message = f"must have at most {_NAME_BYTES_MAX} bytes from one slash to the next"
    if message:
        raise ValueError(message)
    return check_unexpanded(text)


def check_unexpanded(text: str) -> str:
    """A path, or a pattern of paths, that means what it says.

    Raises:
        ValueError: It has what a shell would expand, and no shell reads it.
    """
    if text.startswith("~"):
        raise ValueError(f"{text!r} begins with ~, which is not expanded: write the whole path")
    if variable := _VARIABLE.search(text):
        msg = f"{text!r} has {variable[0]}, which is not expanded: write the whole path"
        raise ValueError(msg)
    return text


def _check_text(value: Any) -> Any:
    """Before it is a `Path`, to which an empty text is the directory itself."""
    return check_path_text(value) if isinstance(value, str) else value


def _check_socket(path: Path) -> Path:
    if len(os.fsencode(path)) > _SOCKET_BYTES_MAX:
        msg = f"must have at most {_SOCKET_BYTES_MAX} bytes, as paths of sockets have: {path}"
        raise ValueError(msg)
    return path


def _check_no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not hold the character NUL (\\0)")
    return text


NoNul = Annotated[str, AfterValidator(_check_no_nul)]
"""What is handed to the system as a text: an argument of a program."""


def absolute(text: str, escape: Callable[[str], str] = str) -> str:
    """A path, or a pattern of paths, from the directory of the process, if it is relative.

    Args:
        text: The path, or the pattern.
        escape: Makes a pattern of a path.

    Raises:
        ValueError: It is, and that directory is gone.
    """
    if text.startswith("/"):
        return text
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise ValueError(
            "is relative to the directory of the start, which is gone; make it absolute"
        ) from None
    return f"{escape(str(here))}/{text}"


def _make_absolute(path: Path) -> Path:
    return Path(absolute(str(path)))


FilePath = Annotated[Path, BeforeValidator(_check_text), AfterValidator(_make_absolute)]
"""Of a file or a directory, absolute once it was read."""

SocketPath = Annotated[FilePath, AfterValidator(_check_socket)]
"""Of a Unix socket."""
