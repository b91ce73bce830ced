"""A working directory whose files bear the names of modules: nothing of ours may import them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("click", "json", "orjson", "pyarrow", "pydantic", "pyspark", "structlog", "yaml")

_MODULE = """\
import sys
with open({noted!r}, "a") as noted:
    noted.write(f"{{__name__}} by {{sys.orig_argv}}\\n")
raise ImportError("this file must not be imported")
"""


@contextmanager
def untrusted_directory(directory: Path) -> Iterator[Path]:
    """A directory for processes to be started in; fails at the end if one imported a file of it."""
    directory.mkdir()
    noted = directory / "imported.txt"
    for name in NAMES:
        (directory / f"{name}.py").write_text(_MODULE.format(noted=str(noted)))
    yield directory
    assert not noted.exists(), noted.read_text()
