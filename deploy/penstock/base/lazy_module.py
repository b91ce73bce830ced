"""Modules that are imported when something of them is used for the first time."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

from typing_extensions import override


class LazyModule(ModuleType):
    """Stands for a module that a process may never need and that takes long to import.

    Type checkers are shown the module itself:

        if TYPE_CHECKING:
            import pyarrow.compute as pc
        else:
            pc = LazyModule("pyarrow.compute")

    `importlib.util.LazyLoader` does the same, but two threads at once may see half a module before
    Python 3.12.3 (https://github.com/python/cpython/issues/114763).
    """

    @override
    def __getattr__(self, name: str) -> object:
        """An attribute of the module, which is found here from now on.

        Raises:
            ImportError: The module cannot be imported.
        """
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def lazy_names(package: str, below: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package whose names are imported when they are asked for.

    PEP 562; type checkers are shown the imports themselves.

    Args:
        package: Its name.
        below: The package that `homes` are below.
        homes: By module, the names that it defines, with blanks between them.
    """
    modules = {name: home for home, names in homes.items() for name in names.split()}

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{below}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
